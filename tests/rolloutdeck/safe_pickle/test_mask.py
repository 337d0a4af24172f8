"""Samples of slime's files are written again without weight: all else is unchanged, and torch loads the file."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle import check_file_safety
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.rewrite.mask import mask_samples, write_plain_archive
from rolloutdeck.safe_pickle.rewrite.pickle_writer import COPY_BLOCK_BYTES

torch = pytest.importorskip("torch")

DATA = Path(__file__).parents[2] / "data/slime/rollout_data"


def load_weights_only(path: Path) -> Any:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("name", ["0.pt", "1.pt", "2.pt"])
def test_only_the_marked_samples_change_and_torch_loads_weights_only(tmp_path: Path, name: str) -> None:
    assert mask_samples(DATA / name, tmp_path / name, {1, 31}) == 32
    pinned, placed = load_weights_only(DATA / name), load_weights_only(tmp_path / name)
    assert [placed["samples"][position].pop("remove_sample") for position in (1, 31)] == [True, True]
    for position in (1, 31):
        pinned["samples"][position].pop("remove_sample")
    assert placed == pinned
    assert check_file_safety(tmp_path / name).loadable and check_file_safety(tmp_path / name).format == "torch"


def test_the_same_values_are_the_same_bytes(tmp_path: Path) -> None:
    for copy in ("a.pt", "b.pt"):
        mask_samples(DATA / "1.pt", tmp_path / copy, [7, 3])
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()


def test_all_kinds_of_json_values_are_written_and_loaded_unchanged(tmp_path: Path) -> None:
    shared, text = [1, 2], "t" * 300
    values = [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**70, 1.5, float("inf"), True, False, None]
    result = {
        "samples": [{"k": [*values, "", "日本\ud800", text, text, (), (1,), (1, 2, 3, 4), {}, shared, shared]}] * 300
    }
    with (tmp_path / "x.pt").open("wb") as file:
        write_plain_archive(result, file)
    match = load_weights_only(tmp_path / "x.pt")
    assert match == result
    assert match["samples"][0]["k"][-1] is match["samples"][0]["k"][-2]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"rollout_routed_experts": torch.zeros(2, 2)}, "it contains a tensor, which can't be written again"),
        ({"multimodal_inputs": {"image": b"\x89PNG"}}, "which can't be written again"),
    ],
)
def test_a_value_that_cannot_be_written_again_is_refused_and_no_file_is_left(
    tmp_path: Path, extra: dict[str, Any], reason: str
) -> None:
    torch.save({"rollout_id": 0, "samples": [{"reward": 1.0, **extra}]}, tmp_path / "0.pt")
    with pytest.raises(SafePickleError, match=reason):
        mask_samples(tmp_path / "0.pt", tmp_path / "out.pt", [0])
    assert [path.name for path in tmp_path.iterdir()] == ["0.pt"]


@pytest.mark.parametrize("places", [[32], [-1]])
def test_a_sample_that_does_not_exist_is_refused(tmp_path: Path, places: list[int]) -> None:
    with pytest.raises(SafePickleError, match="it has no samples at"):
        mask_samples(DATA / "0.pt", tmp_path / "0.pt", places)


def test_the_file_has_the_members_and_the_protocol_that_torch_writes(tmp_path: Path) -> None:
    mask_samples(DATA / "0.pt", tmp_path / "0.pt", [0])
    with zipfile.ZipFile(tmp_path / "0.pt") as created:
        names = [name.partition("/")[2] for name in created.namelist()]
        assert names == ["data.pkl", "byteorder", "version"]
        begin = [item.header_offset for item in created.infolist()]
        assert created.read("archive/data.pkl")[:2] == b"\x80\x02" and created.read("archive/byteorder") == b"little"
    data = (tmp_path / "0.pt").read_bytes()
    sizes = [struct.unpack_from("<2H", data, at + 26) for at in begin]
    assert {(at + 30 + sum(pair)) % 64 for at, pair in zip(begin, sizes, strict=True)} == {0}


def test_the_checksum_of_a_file_that_is_written_in_blocks_is_correct(tmp_path: Path) -> None:
    with (tmp_path / "x.pt").open("wb") as file:
        write_plain_archive({"samples": [{"response": letter * (COPY_BLOCK_BYTES + 1)} for letter in "abc"]}, file)
    with zipfile.ZipFile(tmp_path / "x.pt") as created:
        assert created.testzip() is None
    assert [item["response"][0] for item in load_weights_only(tmp_path / "x.pt")["samples"]] == ["a", "b", "c"]


def test_of_two_samples_that_are_one_object_only_the_marked_one_changes(tmp_path: Path) -> None:
    first = {"reward": 1.0}
    torch.save({"samples": [first, first, first]}, tmp_path / "0.pt")
    mask_samples(tmp_path / "0.pt", tmp_path / "out.pt", [1])
    assert load_weights_only(tmp_path / "out.pt")["samples"] == [first, {**first, "remove_sample": True}, first]


@pytest.mark.parametrize(
    ("samples", "reason"),
    [({"0": {}}, "it has no samples at"), ([{}, 5], "its sample 1 is not a dict"), (None, "it has no samples at")],
)
def test_samples_that_are_not_a_list_of_dicts_are_refused(tmp_path: Path, samples: Any, reason: str) -> None:
    torch.save({"samples": samples}, tmp_path / "0.pt")
    with pytest.raises(SafePickleError, match=reason):
        mask_samples(tmp_path / "0.pt", tmp_path / "out.pt", [0, 1] if samples else [])
