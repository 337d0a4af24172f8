"""Writes a trainer's batch again with one change, for a plan that excludes flagged samples.

Each function reads `source` and writes `target`. From verl's batches it removes all rows of a prompt
(`exclude_prompts`) or columns (`drop_columns`). ROLL's rows (`zero_rows`) and slime's samples (`mask_samples`) remain,
but do not contribute to the loss. Trainers accept different changes, so each has a separate function.
Depends on: `stream`, `load` and `batches`. The functions are imported when first used, since some need numpy.
Invariant: all write through `atomic`, so `target` is complete and safe to load, or it does not exist.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.rewrite.exclude import ExclusionResult as ExclusionResult
    from rolloutdeck.safe_pickle.rewrite.exclude import exclude_prompts as exclude_prompts
    from rolloutdeck.safe_pickle.rewrite.mask import mask_samples as mask_samples
    from rolloutdeck.safe_pickle.rewrite.repair import columns_to_drop as columns_to_drop
    from rolloutdeck.safe_pickle.rewrite.repair import drop_columns as drop_columns
    from rolloutdeck.safe_pickle.rewrite.zero import zero_rows as zero_rows

_MODULES = {
    "ExclusionResult": "exclude",
    "columns_to_drop": "repair",
    "drop_columns": "repair",
    "exclude_prompts": "exclude",
    "mask_samples": "mask",
    "zero_rows": "zero",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
