"""Marks samples of a file that slime loads as removed. They keep their position and reward, but are not trained on.

slime sets the loss mask of a sample with `remove_sample` to 0, and still counts its reward in its group (slime
624b824a, `ray/rollout.py:680`). The file is written again as `torch.save` writes plain values: one stored ZIP, with a
pickle of protocol 2 without any global, so that torch accepts it with `weights_only=True`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.batches import open_torch_dict
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.rewrite.archive_writer import ArchivePickler, write_archive
from rolloutdeck.safe_pickle.rewrite.atomic import open_checked_output
from rolloutdeck.safe_pickle.rewrite.pickle_writer import PickleWriter


def mask_samples(source: str | os.PathLike[str], target: str | os.PathLike[str], positions: Collection[int]) -> int:
    """Writes `target` as `source` with the samples at `positions`, from 0, marked. Returns the number of all samples.

    The bytes of `target` depend only on the values in `source` and the positions. Raises SafePickleError for a position
    that does not exist and for values that can't be written, such as tensors; OSError.
    """
    with open_torch_dict(source) as saved:
        samples = saved.get("samples")
        if not isinstance(samples, list) or not set(positions) <= set(range(len(samples))):
            raise SafePickleError(f"it has no samples at {sorted(positions)[:5]}")
        for position in positions:
            if not isinstance(samples[position], dict):
                raise SafePickleError(f"its sample {position} is not a dict")
            samples[position] = {**samples[position], "remove_sample": True}
        with open_checked_output(Path(target)) as file:
            write_plain_archive(saved, file)
        return len(samples)


def write_plain_archive(value: Any, file: BinaryIO) -> None:
    """Writes the archive that `torch.save` writes for plain values. Raises SafePickleError for other values."""
    write_archive(value, file, PlainPickler)


class PlainPickler(ArchivePickler):
    """Writes a pickle of protocol 2, which torch reads with `weights_only=True`."""

    protocol = 2

    writers_by_type: Mapping[type, Callable[[Any, Any], None]] = {
        str: PickleWriter.write_text,
        tuple: PickleWriter.write_tuple,
        list: PickleWriter.write_list,
        dict: PickleWriter.write_dict,
    }
