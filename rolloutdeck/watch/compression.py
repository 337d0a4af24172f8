"""Dump files that somebody compressed: `12.jsonl.gz`, `00000.jsonl.zst`. The server unpacks them.

Standard library only, which unpacks gzip; a zstd file is known by its name or by what the person says.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from pathlib import Path, PurePath
from typing import BinaryIO, TypeVar

from rolloutdeck.trainer_api import FileHead, FileKind

GZIP, ZSTD = ".gz", ".zst"
CHUNK = 1 << 20
GZIP_WINDOW = 16 + zlib.MAX_WBITS

P = TypeVar("P", bound=PurePath)


def remove_compression_suffix(path: P) -> P:
    """The path without the ending that says how it is compressed."""
    return path.with_suffix("") if is_compressed(path) else path


def remove_compression_ending(name: str) -> str:
    return name.removesuffix(GZIP).removesuffix(ZSTD)


def is_compressed(path: PurePath) -> bool:
    return path.suffix in (GZIP, ZSTD)


def read_compressed_head(path: Path, most: int) -> FileHead:
    """The first rows of a compressed file, none of a zstd file. Raises OSError."""
    if path.suffix != GZIP:
        return FileHead(unseen=True)
    with path.open("rb") as file:
        packed, start = file.read(most), b""
    while packed and len(start) < most:
        inner = zlib.decompressobj(GZIP_WINDOW)
        try:
            start += inner.decompress(packed, most - len(start))
        except zlib.error:
            break
        packed = inner.unused_data
    return FileHead.of(start)


def build_compressed_kind(kind: FileKind) -> FileKind:
    """A kind of file as it is taken compressed: at once, its step and split said by the name that it had before."""
    return replace(
        kind,
        arrives="whole",
        step=lambda path: kind.step(remove_compression_suffix(path)),
        split=lambda path: kind.split(remove_compression_suffix(path)),
    )


def is_complete_gzip(file: BinaryIO) -> bool:
    """Whether a gzip file can be unpacked to its end."""
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file) as plain:
            while plain.read(CHUNK):
                pass
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False
    return True
