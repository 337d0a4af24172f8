"""Dumps that verl's plug-in can't load. Those that it loads: `tests/trainers/verl/test_loading.py`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from rolloutdeck.safe_pickle import SafePickleError
from tests.rolloutdeck.safe_pickle import assembler as asm

PLUGIN = "rolloutdeck.trainers.verl.plugin"


@pytest.fixture
def load_batch(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, without torch, tensordict and verl: a dump is refused before they are used."""
    with monkeypatch.context() as patch:
        for name in ("torch", "tensordict", "verl", "verl.protocol"):
            patch.setitem(sys.modules, name, MagicMock())
        for name in ("load_batch", "native_types", "tensors"):
            patch.delitem(sys.modules, f"{PLUGIN}.{name}", raising=False)
        yield importlib.import_module(f"{PLUGIN}.load_batch")
    for name in ("load_batch", "native_types", "tensors"):
        sys.modules.pop(f"{PLUGIN}.{name}", None)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (
            asm.expanded_tensor(asm.storage(2, kind="Long"), 2, 2),
            "its field 'other' can't be rebuilt: a tensor of shape (2, 2) that is not contiguous",
        ),
        (
            asm.non_tensor_stack(asm.non_tensor_data(asm.number(1)), asm.non_tensor_data(asm.number(2))),
            "the column 'other' is among its tensors, where verl writes none",
        ),
    ],
    ids=["a tensor that is not contiguous", "a column"],
)
def test_a_field_that_is_not_built_is_refused_with_its_reason(
    load_batch: ModuleType, tmp_path: Path, field: bytes, reason: str
) -> None:
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(asm.proto(asm.bytes_(asm.torch_file(asm.tensordict(other=field), bytes(16)))))
    with pytest.raises(SafePickleError) as caught:
        load_batch.load_native_batch(path)
    assert str(caught.value) == reason
