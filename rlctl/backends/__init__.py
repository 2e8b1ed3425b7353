"""Where the work is done: one folder a backend, found by name through `registry`."""
