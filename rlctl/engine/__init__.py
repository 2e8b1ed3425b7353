"""The torch code of the core: load a model, sample it, score it, and compute its GRPO gradient."""
