"""The Ray backend: vLLM samplers and DeepSpeed trainers as actors of a Ray cluster."""
