"""The legacy clients of release 0.1.2."""
