"""Logs of inspect_ai: zip files with zstd, and samples that were run again, failed or are damaged."""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import pytest
import zstandard

from rolloutdeck.protocol import wire
from rollouts.errors import UnreadableDumpError
from rollouts.formats.evals import inspect_log
from rollouts.formats.readers import zip_members
from rollouts.samples.record import LineProblem, Record, SkippedRow
from tests.rollouts.support.trainer_dumps import read_items
from tests.support.patching import patch_everywhere

STORED, DEFLATED, LZMA, ZSTD = 0, 8, 14, 93
CUT = "the zip is truncated here: the samples that followed are lost"


def sample(answer: str = "4", **more: Any) -> dict[str, Any]:
    output = {"model": "m", "choices": [{"stop_reason": "stop"}], "completion": answer}
    return {"id": 1, "epoch": 1, "input": "2+2?", "target": "4", "output": output, **more}


def compress_in_two_frames(body: bytes) -> bytes:
    """Compresses in two frames, as inspect_ai does with long texts."""
    half = len(body) // 2
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (body[:half], body[half:]))


def deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


PACK = {STORED: bytes, DEFLATED: deflate, ZSTD: compress_in_two_frames, LZMA: bytes}


def build_entry(
    name: str, value: Any, method: int = ZSTD, flags: int = 0, *, zip64: bool = False
) -> tuple[bytes, bytes]:
    """Returns a member with its header, and its entry in the list at the end of the zip, without the offset."""
    plain = value if isinstance(value, bytes) else json.dumps(value).encode()
    body, title = PACK[method](plain), name.encode()
    fields = struct.pack("<HHHHHI", 45, flags, method, 0, 0x21, zlib.crc32(plain))
    sizes, extra = struct.pack("<II", len(body), len(plain)), b""
    if zip64:  # as `ZipFile.open("w", force_zip64=True)` leaves it
        sizes, extra = b"\xff" * 8, struct.pack("<HHQQ", 1, 16, len(plain), len(body))
    header = b"PK\x03\x04" + fields + sizes + struct.pack("<HH", len(title), len(extra)) + title + extra + body
    small = struct.pack("<II", len(body), len(plain))
    central = b"PK\x01\x02" + b"\x2d\x03" + fields + small + struct.pack("<HHHHHI", len(title), 0, 0, 0, 0, 0)
    return header, central


def build_log(*entries: tuple[str, Any] | tuple[str, Any, int] | tuple[str, Any, int, int]) -> bytes:
    body, index = b"", b""
    for item in entries:
        header, central = build_entry(*item)
        index += central + struct.pack("<I", len(body)) + item[0].encode()
        body += header
    count = len(entries)
    return body + index + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count, count, len(index), len(body), 0)


def read_records(body: bytes, name: str = "a.eval") -> list[Any]:
    return read_items(inspect_log, body, filename=name)


def build_damaged_log(method: int) -> bytes:
    """A log whose only sample cannot be decompressed."""
    body = bytearray(build_log(("samples/1_epoch_1.json", sample("ab" * 50), method)))
    body[60:75] = bytes(item ^ 0xFF for item in body[60:75])
    return bytes(body)


@pytest.mark.parametrize("method", [STORED, DEFLATED, ZSTD])
def test_a_log_is_read_with_each_compression_method(method: int) -> None:
    header = {"version": 2, "status": "success", "eval": {"task": "sums"}}
    first, second = read_records(
        build_log(*((f"samples/{at}_epoch_1.json", sample(f"{at}", id=at), method) for at in (1, 2)),
            ("header.json", header, method))
    )  # fmt: skip
    assert (first.response, second.response, first.group, first.data_source) == ("1", "2", "1", "sums")


def test_the_last_run_of_a_sample_counts() -> None:
    (first,) = read_records(build_log(("samples/1_epoch_1.json", sample("5")), ("samples/1_epoch_1.json", sample("4"))))
    assert first.response == "4"


def test_a_damaged_sample_does_not_affect_the_others() -> None:
    name = "samples/{}_epoch_1.json"
    body = build_log(
        (name.format(1), sample("1")), (name.format(2), sample("2" * 99), STORED), (name.format(3), sample("3"))
    )
    broken = body.replace(b"2" * 99, b"7" * 99)
    first, problem, third = read_records(broken)
    assert (first.response, third.response) == ("1", "3")
    assert problem == LineProblem(2, "samples/2_epoch_1.json is damaged: its checksum differs")


@pytest.mark.parametrize("zip64", [False, True])
def test_the_complete_samples_of_a_truncated_log_are_read(zip64: bool) -> None:
    parts = [build_entry(f"samples/{at}_epoch_1.json", sample(f"{at}"), zip64=zip64)[0] for at in (1, 2, 3)]
    first, second, problem = read_records(b"".join(parts)[:-5])
    assert (first.response, second.response, problem) == ("1", "2", LineProblem(3, CUT))


def test_a_sample_that_failed_before_an_answer_is_skipped() -> None:
    failed_before = sample(
        "", error={"message": "no net", "traceback": "…"}, messages=[{"role": "user", "content": "2+2?"}]
    )
    failed_after = sample("so", error={"message": "too late", "traceback": "…"})
    skipped, record = read_records(
        build_log(("samples/1_epoch_1.json", failed_before), ("samples/1_epoch_2.json", failed_after))
    )
    assert isinstance(skipped, SkippedRow) and "before the model answered" in skipped.reason
    assert (record.response, record.extras["error"]) == ("so", "too late")


def test_each_value_of_a_scorer_is_a_part_of_the_reward() -> None:
    scores = {"judge": {"value": {"style": 0.5, "right": "C"}}, "match": {"value": "I"}}
    (first,) = read_records(build_log(("samples/1_epoch_1.json", sample(scores=scores))))
    assert first.rewards == {"judge/style": 0.5, "judge/right": 1.0, "match": 0.0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"PK\x03\x04", "is truncated"),
        (b"PK\x03\x04" + b"\0" * 64, "is truncated"),
        (build_damaged_log(DEFLATED), "cannot be decompressed"),
        (build_damaged_log(ZSTD), "cannot be decompressed"),
        (build_log(("samples/1_epoch_1.json", sample(), LZMA)), "method 14"),
        (build_log(("samples/1_epoch_1.json", sample(), STORED, 1)), "is encrypted"),
        (build_log(("samples/1_epoch_1.json", b"[1]")), "is a list, not an object"),
        (build_log(("samples/1_epoch_1.json", b'{"id": ')), "is not JSON"),
        (build_log(("samples/1_epoch_1.json", {"id": 1})), "neither `messages` nor an output"),
        (b"PK\x05\x06" + b"\0" * 18, "The log has no samples"),
    ],
)
def test_a_zip_that_is_no_log_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(UnreadableDumpError, match=message):
        read_records(body)


def test_a_log_that_decompresses_to_more_than_the_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = build_log(*((f"samples/{at}_epoch_1.json", sample("a" * 5000)) for at in range(9)))
    assert len(read_records(bomb)) == 9
    patch_everywhere(monkeypatch, wire, "MAX_LINE_BYTES", 4000)
    with pytest.raises(UnreadableDumpError, match="decompresses to more than"):
        read_records(bomb)
    patch_everywhere(monkeypatch, wire, "MAX_LINE_BYTES", 1 << 20)
    patch_everywhere(monkeypatch, wire, "MAX_DUMP_BYTES", 20000)
    with pytest.raises(UnreadableDumpError, match="The zip decompresses to more than"):
        read_records(bomb)
    monkeypatch.setattr(zip_members, "MAX_MEMBERS", 8)
    with pytest.raises(UnreadableDumpError, match="9 members"):
        read_records(bomb)


def test_a_member_that_decompresses_to_more_than_its_listed_size_is_damaged() -> None:
    body = build_log(("samples/1_epoch_1.json", sample("a" * 5000)), ("samples/2_epoch_1.json", sample("b")))
    size = struct.pack("<I", len(json.dumps(sample("a" * 5000))))
    problem, record = read_records(body.replace(size, struct.pack("<I", 9)))
    assert isinstance(problem, LineProblem) and "damaged" in problem.reason and record.response == "b"


def test_a_log_that_is_one_json_is_read_sample_by_sample() -> None:
    log = {"version": 2, "status": "success", "eval": {"task": "sums"}, "samples": [sample(), "torn", sample("5")]}
    first, problem, third = read_records(json.dumps(log).encode(), "a.json")
    assert isinstance(first, Record) and problem == LineProblem(2, "is a text, not an object") and third.response == "5"


def test_a_log_whose_zip_lists_wrong_offsets_is_refused() -> None:
    """If the start of the list is given too late, members would be before the beginning of the file."""
    body = build_log(("samples/1_epoch_1.json", sample()), ("samples/2_epoch_1.json", sample("5")))
    end = body.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<I", body, end + 16)
    for wrong in (start + 9, start - 9):
        with pytest.raises(UnreadableDumpError, match="is not at the offset that the zip lists"):
            read_records(body[: end + 16] + struct.pack("<I", wrong) + body[end + 20 :])


def test_members_of_any_name_are_harmless() -> None:
    body = io.BytesIO(
        build_log(
            ("samples/../../etc/x.json", sample()),
            ("samples/\udc80.json".encode("utf-8", "replace").decode(), sample("5")),
        )
    )
    assert {item.response for item in read_records(body.getvalue())} == {"4", "5"}
