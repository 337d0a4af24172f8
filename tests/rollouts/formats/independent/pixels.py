"""Images of a vision batch: what the product shows must be the same bytes, or a PNG with the same pixels."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from tests.rollouts.formats.independent.pickled import Instance

BANDS = {"1": 1, "L": 1, "LA": 2, "P": 1, "RGB": 3, "RGBA": 4}


class Pixels:
    """Equals the data URL of a PNG with these pixels."""

    def __init__(self, mode: str, size: tuple[int, int], data: bytes) -> None:
        self.mode, self.size, self.data = mode, tuple(size), data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and decode_png(other, BANDS[self.mode]) == (self.size, self.data)

    __hash__ = None  # type: ignore[assignment]


def decode_png(url: str, bands: int) -> tuple[tuple[int, int], bytes]:
    """Returns size and pixels of an image of 8 bits per band whose lines are not filtered."""
    body = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    (width, height, depth), position, packed = struct.unpack(">IIB", body[16:25]), 8, b""
    assert depth == 8
    while position < len(body):
        (length,) = struct.unpack(">I", body[position : position + 4])
        packed += body[position + 8 : position + 8 + length] if body[position + 4 : position + 8] == b"IDAT" else b""
        position += length + 12
    raw, line = zlib.decompress(packed), width * bands + 1
    assert not any(raw[::line]), "write the filters of PNG here"
    return (width, height), b"".join(raw[position + 1 : position + line] for position in range(0, len(raw), line))


def convert_images(value: Any) -> Any:
    """Encoded images become data URLs, objects of Pillow `Pixels`."""
    if isinstance(value, bytes):
        kind = "png" if value.startswith(b"\x89PNG") else "jpeg"
        return f"data:image/{kind};base64,{base64.b64encode(value).decode()}"
    if isinstance(value, Instance) and value.name.startswith("PIL."):
        _, mode, size, _, data = value.state[:5]
        return Pixels(mode, size, data)
    if isinstance(value, list):
        return [convert_images(item) for item in value]
    if isinstance(value, dict):
        if value.get("bytes"):  # the same image, decoded by the trainer
            value = {key: item for key, item in value.items() if key != "image"}
        return {key: convert_images(item) for key, item in value.items()}
    return value
