"""Writes a trainer's batch again with one change, for a plan that masks or drops selected samples.

Each function reads `source` and writes `target`. From verl's batches it removes all rows of a prompt
(`exclude_prompts`) or columns (`drop_columns`). ROLL's rows (`zero_rows`) and slime's samples (`mask_samples`) remain,
but do not contribute to the loss. Trainers accept different changes, so each has a separate function.
Depends on: `stream`, `load` and `batches`. The functions are imported when first used, since some need numpy.
Invariant: all write through `atomic`, so `target` is complete and safe to load, or it does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.lazy import lazy_names

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.rewrite.exclude import ExclusionResult, exclude_prompts
    from rolloutdeck.safe_pickle.rewrite.mask import mask_samples
    from rolloutdeck.safe_pickle.rewrite.repair import columns_to_drop, drop_columns
    from rolloutdeck.safe_pickle.rewrite.zero import zero_rows

__all__ = [
    "ExclusionResult", "columns_to_drop", "drop_columns", "exclude_prompts", "mask_samples", "zero_rows",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "exclude": ("ExclusionResult", "exclude_prompts"),
    "mask": ("mask_samples",),
    "repair": ("columns_to_drop", "drop_columns"),
    "zero": ("zero_rows",),
})  # fmt: skip
