"""Checkpoints: what one holds, how it is written and judged, which ones stay (docs/checkpoints.md)."""
