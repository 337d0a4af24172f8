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


def buffer_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """(bytes, position, no attributes)."""
    filled, thing.built = thing.built, True
    if filled or not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != 3:
        raise RuleViolationError("a buffer that is none, or that is filled twice")
    data, position, attributes = state.items
    if (
        not isinstance(data, AbstractBytes)
        or not is_count(position)
        or position > data.length
        or attributes is not None
    ):
        raise RuleViolationError("a buffer that is none, or that is given attributes")
    thing.facts = {"data": data}


def rollout_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """(buffer, columns, no batch that lies elsewhere, meta info); torch.load reads the buffer."""
    filled, thing.built, thing.facts = thing.built, True, {}
    if filled or not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != 4:
        raise RuleViolationError("a batch that is none, or that is filled twice")
    buffer, columns, elsewhere, meta = state.items
    if (
        not isinstance(buffer, AbstractObject)
        or buffer.kind != "buffer"
        or "data" not in buffer.facts
        or elsewhere is not None
    ):
        raise RuleViolationError("a batch that is not inside it")
    batches.fill_data_proto(judge, thing, buffer.facts["data"], columns, meta)


ROLL_NEW_RULES = {
    "roll.distributed.scheduler.protocol.DataProto": batches.build_new_rule("rollout"),
    "_io.BytesIO": batches.build_new_rule("buffer"),
}
ROLL_STATE_RULES = {"rollout": rollout_state, "buffer": buffer_state}
