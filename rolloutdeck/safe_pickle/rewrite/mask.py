"""Marks samples of a file that slime loads as removed: they keep their place and their reward, and train nothing.

slime zeroes the loss mask of a sample with `remove_sample`, and goes on to count it in the rewards of its group (slime
624b824a, `ray/rollout.py:680`). The file is written anew as `torch.save` writes plain values: one stored ZIP, a pickle
of protocol 2 without a single name in it, so that torch takes it with `weights_only=True`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import open_torch_dict
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.rewrite.archive_writer import ZipWriter
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import PickleWriter


def mask_samples(source: str | os.PathLike[str], target: str | os.PathLike[str], places: Collection[int]) -> int:
    """Writes `target` as `source` with the samples at `places`, from 0, marked; how many samples there are.

    The bytes of `target` depend on the values in `source` and on the places alone. Raises SafePickleError for a place
    that is not there and for values that can't be written again, such as tensors; OSError.
    """
    with open_torch_dict(source) as saved:
        samples = saved.get("samples")
        if not isinstance(samples, list) or not set(places) <= set(range(len(samples))):
            raise SafePickleError(f"it has no samples at {sorted(places)[:5]}")
        for place in places:
            if not isinstance(samples[place], dict):
                raise SafePickleError(f"its sample {place} is none")
            samples[place] = {**samples[place], "remove_sample": True}
        with open_checked_output(Path(target)) as file:
            write_plain_archive(saved, file)
        return len(samples)


def write_plain_archive(value: Any, file: BinaryIO) -> None:
    """The archive that `torch.save` makes of plain values. Raises SafePickleError for others."""
    archive = ZipWriter(file)
    archive.begin("data.pkl")
    archive.write(b"\x80\x02")
    PlainPickler(archive).value(value)
    archive.write(b".")
    for name, content in (("byteorder", b"little"), ("version", b"3\n")):
        archive.begin(name)
        archive.write(content)
    archive.end()


class PlainPickler(PickleWriter):
    """A pickle of protocol 2, the one that torch's own loader of weights knows."""

    def __init__(self, file: ZipWriter) -> None:
        super().__init__(file)  # type: ignore[arg-type]
        self.put = file.write  # type: ignore[assignment]

    def remember(self, key: Any, value: Any) -> None:
        at = self.memo[key] = len(self.memo)
        self.alive.append(value)
        self.put(b"q" + bytes([at]) if at < 256 else b"r" + struct.pack("<I", at))

    def text(self, value: str) -> None:
        if self.known(value):
            return
        data = value.encode("utf-8", "surrogatepass")
        self.put(b"X" + struct.pack("<I", len(data)) + data)
        self.remember(value, value)

    table: Mapping[type, Callable[[Any, Any], None]] = {
        type(None): PickleWriter.none,
        bool: PickleWriter.truth,
        int: PickleWriter.integer,
        float: PickleWriter.real,
        str: text,
        tuple: PickleWriter.tuple_of,
        list: PickleWriter.list_of,
        dict: PickleWriter.dict_of,
    }
