"""Snowflake's Arctic platform: registered, so that its client can be checked; driving it is not built yet."""
