"""ROLL's DataProto, as `rollout_mock` pickles it: verl's, with the tensors in a BytesIO (protocol.py:321-340)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import (
    AbstractBytes,
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    RuleViolationError,
    is_count,
)
from rolloutdeck.safe_pickle.verify.rules import batches

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Verifier


def verify_buffer_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """(bytes, position, no attributes)."""
    had_state, target.has_state = target.has_state, True
    if had_state or not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != 3:
        raise RuleViolationError("an invalid buffer, or one that is filled twice")
    data, position, attributes = state.items
    if (
        not isinstance(data, AbstractBytes)
        or not is_count(position)
        or position > data.length
        or attributes is not None
    ):
        raise RuleViolationError("an invalid buffer, or one with attributes")
    target.facts = {"data": data}


def verify_rollout_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """(buffer, columns, no external batch, meta info); torch.load reads the buffer."""
    had_state, target.has_state, target.facts = target.has_state, True, {}
    if had_state or not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != 4:
        raise RuleViolationError("an invalid batch, or one that is filled twice")
    buffer, columns, external_batch, meta = state.items
    if (
        not isinstance(buffer, AbstractObject)
        or buffer.kind != "buffer"
        or "data" not in buffer.facts
        or external_batch is not None
    ):
        raise RuleViolationError("a batch that is not in the file")
    batches.fill_data_proto(verifier, target, buffer.facts["data"], columns, meta)


ROLL_NEW_RULES = {
    "roll.distributed.scheduler.protocol.DataProto": batches.build_new_rule("rollout"),
    "_io.BytesIO": batches.build_new_rule("buffer"),
}
ROLL_STATE_RULES = {"rollout": verify_rollout_state, "buffer": verify_buffer_state}
