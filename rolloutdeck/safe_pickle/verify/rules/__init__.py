"""The allowlist of the verifier: every global that a trainer's file may name, and what it may be called with.

The list covers the dumps of verl's three skip roles, of RolloutSkip's two older layouts (0.8 to 0.10, numpy 1 and 2,
tensordict 0.10), and of ROLL's `rollout_mock`.
Depends on: the abstract values of `rolloutdeck.safe_pickle.verify`.
Invariant: an allowed name is not enough. A rule checks the shape of every argument, so that no argument can make the
global do anything that it does not do in those files (a numpy dtype with its object flag cleared, a tensor beyond its
storage, an attribute set by name).
"""

from __future__ import annotations

from collections.abc import Callable

from rolloutdeck.safe_pickle.verify.abstract_values import AbstractObject, AbstractValue, Verifier
from rolloutdeck.safe_pickle.verify.rules import arrays, batches, stdlib, tensors
from rolloutdeck.safe_pickle.verify.rules.tensors import verify_storage

__all__ = ["CALL_RULES", "ALLOWED_GLOBALS", "NEW_RULES", "STATE_RULES", "CallRule", "StateRule", "verify_storage"]

CallRule = Callable[[Verifier, list[AbstractValue]], AbstractValue]
StateRule = Callable[[Verifier, AbstractObject, AbstractValue], None]

CALL_RULES: dict[str, CallRule] = {**stdlib.CALL_RULES, **arrays.CALL_RULES, **tensors.CALL_RULES, **batches.CALL_RULES}
NEW_RULES: dict[str, CallRule] = {**tensors.NEW_RULES, **batches.NEW_RULES}
STATE_RULES: dict[str, StateRule] = {**arrays.STATE_RULES, **tensors.STATE_RULES, **batches.STATE_RULES}
ALLOWED_GLOBALS = frozenset((*CALL_RULES, *NEW_RULES, *arrays.GLOBALS, *tensors.GLOBALS, *batches.GLOBALS))
