"""The embedded backend: torch in this process, sampler and trainer on the same weights."""
