"""ROLL's DataProto, as `rollout_mock` pickles it: verl's, with the tensors in a BytesIO (protocol.py:321-340)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import Box, Data, Thing, Unfit, Value, is_count
from rolloutdeck.safe_pickle.verify.rules import batches

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Judge


def buffer_state(judge: Judge, thing: Thing, state: Value) -> None:
    """(bytes, position, no attributes)."""
    filled, thing.built = thing.built, True
    if filled or not isinstance(state, Box) or state.kind != "tuple" or len(state.items) != 3:
        raise Unfit("a buffer that is none, or that is filled twice")
    data, position, attributes = state.items
    if not isinstance(data, Data) or not is_count(position) or position > data.length or attributes is not None:
        raise Unfit("a buffer that is none, or that is given attributes")
    thing.facts = {"data": data}


def rollout_state(judge: Judge, thing: Thing, state: Value) -> None:
    """(buffer, columns, no batch that lies elsewhere, meta info); torch.load reads the buffer."""
    filled, thing.built, thing.facts = thing.built, True, {}
    if filled or not isinstance(state, Box) or state.kind != "tuple" or len(state.items) != 4:
        raise Unfit("a batch that is none, or that is filled twice")
    buffer, columns, elsewhere, meta = state.items
    if not isinstance(buffer, Thing) or buffer.kind != "buffer" or "data" not in buffer.facts or elsewhere is not None:
        raise Unfit("a batch that is not inside it")
    batches.fill(judge, thing, buffer.facts["data"], columns, meta)


NEW = {
    "roll.distributed.scheduler.protocol.DataProto": batches.maker("rollout"),
    "_io.BytesIO": batches.maker("buffer"),
}
STATES = {"rollout": rollout_state, "buffer": buffer_state}
