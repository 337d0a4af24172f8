"""Every global that a file of verl or ROLL may name, and what it may be called with.

The list is complete over the dumps of verl's three skip roles and of RolloutSkip's two older layouts (0.8 to 0.10,
numpy 1 and 2, tensordict 0.10), and over those of ROLL's `rollout_mock`. A name alone allows nothing: a rule looks at
the shape of every argument, so that no argument can make the named thing do what it does not do in those files (a numpy
dtype with its object flag cleared, a tensor beyond its storage, an attribute set by name).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import Thing, Value
from rolloutdeck.safe_pickle.verify.rules import arrays, batches, roll, stdlib, tensors
from rolloutdeck.safe_pickle.verify.rules.tensors import storage

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Judge

__all__ = ["CALLS", "NAMES", "NEW", "STATES", "Rule", "State", "storage"]

Rule = Callable[["Judge", list[Value]], Value]
State = Callable[["Judge", Thing, Value], None]

CALLS: dict[str, Rule] = {
    **stdlib.CALLS,
    **arrays.CALLS,
    **tensors.CALLS,
    **batches.CALLS,
}
NEW: dict[str, Rule] = {**tensors.NEW, **batches.NEW, **roll.NEW}
STATES: dict[str, State] = {**arrays.STATES, **tensors.STATES, **batches.STATES, **roll.STATES}
NAMES = frozenset({*CALLS, *NEW, *arrays.NAMES, *tensors.NAMES, *batches.NAMES})
