"""Jagged tensors whose offsets or cached lengths would send torch's kernels beyond the values are refused."""

from __future__ import annotations

import collections
import io
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle import check_file_safety

torch = pytest.importorskip("torch")
nested = pytest.importorskip("torch.nested._internal.nested_tensor")

VALUES, OFFSETS = torch.arange(6, dtype=torch.float32), torch.tensor([0, 2, 6])


class PickledCall:
    """Is pickled as a call of a function."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def build_jagged(offsets: Any, cache: dict[str, Any]) -> PickledCall:
    fields = {
        "values": VALUES, "offsets": offsets, "lengths": None, "_ragged_idx": 1, "_metadata_cache": cache,
        "requires_grad": False,
    }  # fmt: skip
    return PickledCall(torch._tensor._rebuild_from_type_v2, nested._rebuild_njt, nested.NestedTensor, (fields,), {})


def find_reasons(path: Path, value: Any) -> str:
    # The offsets are saved first, so that their member has the key that an embedded storage has too.
    torch.save({"offsets": OFFSETS, "field": value}, path, pickle_protocol=4)
    report = check_file_safety(path)
    return "" if report.loadable else " ".join(report.reasons)


def test_offsets_in_embedded_bytes_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save(torch.tensor([0, 3, 1 << 20]).storage(), buffer)
    storage = PickledCall(torch.storage._load_from_bytes, buffer.getvalue())
    offsets = PickledCall(torch._utils._rebuild_tensor_v2, storage, 0, (3,), (1,), False, collections.OrderedDict())
    assert "offsets are in embedded bytes" in find_reasons(tmp_path / "a.pt", build_jagged(offsets, {}))


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ({"min_seqlen": 2, "max_seqlen": 4}, ""),
        ({"max_seqlen": 1 << 40}, "cached lengths"),
        ({"max_seqlen": 3}, "cached lengths"),
        ({"min_seqlen": 0}, "cached lengths"),
    ],
)
def test_cached_lengths_are_those_of_the_rows(tmp_path: Path, lengths: dict[str, int], reason: str) -> None:
    cache = {name: torch.zeros(length, 0) for name, length in lengths.items()}
    found = find_reasons(tmp_path / "a.pt", build_jagged(OFFSETS, cache))
    assert reason in found and bool(found) == bool(reason)
