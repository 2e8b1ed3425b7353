"""A stand-in for the development version of the platform's package: same modules, signatures and wire."""
