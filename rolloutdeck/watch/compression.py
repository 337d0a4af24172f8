"""Compressed dump files such as `12.jsonl.gz` and `00000.jsonl.zst`. The server decompresses them.

Standard library only, which can read gzip; a zstd file is recognized by its name or by the user's options.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TypeVar

from rolloutdeck.trainer_api import FileHead, FileKind

GZIP, ZSTD = ".gz", ".zst"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_WINDOW = 16 + zlib.MAX_WBITS

P = TypeVar("P", bound=PurePath)


def remove_compression_suffix(path: P) -> P:
    return path.with_suffix("") if is_compressed(path) else path


def remove_compression_ending(name: str) -> str:
    return name.removesuffix(GZIP).removesuffix(ZSTD)


def is_compressed(path: PurePath) -> bool:
    return path.suffix in (GZIP, ZSTD)


def read_compressed_head(path: Path, max_bytes: int) -> FileHead:
    """Returns the first rows of a gzip file; no rows for a zstd file. Raises OSError."""
    if path.suffix != GZIP:
        return FileHead(name_only=True)
    with path.open("rb") as file:
        compressed, start = file.read(max_bytes), b""
    while compressed and len(start) < max_bytes:
        decompressor = zlib.decompressobj(GZIP_WINDOW)
        try:
            start += decompressor.decompress(compressed, max_bytes - len(start))
        except zlib.error:
            break
        compressed = decompressor.unused_data
    return FileHead.from_bytes(start)


def read_plain_size(path: Path) -> int | None:
    """Returns how many bytes a compressed file holds; None if it does not say so, as zstd files that were written as a
    stream. Of gzip files only up to 4 GB is known, and of files with several members only the size of one. Sources:
    RFC 1952, 2.3.1 (ISIZE), and RFC 8878, 3.1.1.1 (Frame_Content_Size). Raises OSError."""
    with path.open("rb") as file:
        if path.suffix == GZIP:
            file.seek(-min(4, path.stat().st_size), 2)
            return int.from_bytes(file.read(4), "little")
        header = file.read(18)
    if len(header) < 6 or header[:4] != ZSTD_MAGIC:
        return None
    size_flag, is_single, dictionary_flag = header[4] >> 6, header[4] >> 5 & 1, header[4] & 3
    length = (is_single, 2, 4, 8)[size_flag]
    start = 6 - is_single + (0, 1, 2, 4)[dictionary_flag]
    size = int.from_bytes(header[start : start + length], "little")
    return size + 256 * (length == 2) if length else None


def build_compressed_kind(kind: FileKind) -> FileKind:
    """Returns the kind of the compressed file: sent when complete; step and split are read without the suffix."""
    return replace(
        kind,
        grows=False,
        step=lambda path: kind.step(remove_compression_suffix(path)),
        rows_have_step=lambda path, head: kind.rows_have_step(remove_compression_suffix(path), head),
        split=lambda path: kind.split(remove_compression_suffix(path)),
    )
