"""The codec of the development version."""

from tests.arctic.wire import WireError, decode, encode

__all__ = ["WireError", "decode", "encode"]
