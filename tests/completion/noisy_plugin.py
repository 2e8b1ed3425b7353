"""A plugin that prints while it is imported, and then fails."""

print("noise on stdout")
raise RuntimeError("noise in an error")
