"""Formats of evaluation harnesses, which evaluate checkpoints of a training.

Depends on: samples, the readers of `rollouts.formats`, its table and `native`.
Invariant: without a step of the upload, the samples are those of step 0. A repeated sample has its own index.
"""

from rollouts.formats.evals import inspect_log, lighteval, lm_eval, openai_batch

__all__ = ["inspect_log", "lighteval", "lm_eval", "openai_batch"]
