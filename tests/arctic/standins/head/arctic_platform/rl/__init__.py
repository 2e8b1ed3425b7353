"""The legacy clients of the development version."""
