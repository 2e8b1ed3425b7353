"""rlctl: post-train language models with GRPO on whatever compute you have.

Importing this package loads nothing heavy; plugins may import it at any time.
"""

__version__ = "0.1.0"
