"""Flags: one sample or many, with a reason.

Depends on: labels.
Invariant: a flag is a label, so it is withdrawn, never deleted, and follows the sample id through every re-index.
"""

from rollouts.flags.bulk import collect_sample_ids, flag_samples, withdraw_flag
from rollouts.flags.flags import load_flags

__all__ = ["collect_sample_ids", "flag_samples", "load_flags", "withdraw_flag"]
