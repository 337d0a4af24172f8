"""Formats of evaluation harnesses, which evaluate checkpoints of a training."""
