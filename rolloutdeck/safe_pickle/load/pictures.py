"""Images in pickles: objects of Pillow, and encoded images as bytes. Pillow is not imported.

Pillow pickles an image without its file format: (info, mode, size, palette, raw pixels, …). `encode` writes these
pixels as a PNG. Source: `Image.__getstate__` of Pillow 12.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.protocol import MAX_IMAGE_BYTES, MAX_IMAGE_PIXELS
from rolloutdeck.safe_pickle.load.placeholders import Data, Name, Piece, read_byte_range

MAX_PALETTE_NUMBERS = 768  # red, green and blue of 256 colours
MAX_MAGIC_BYTES = 16  # enough to recognize an encoded image
# Pillow's modes that a PNG can store unchanged: bits per pixel, PNG's bit depth and colour type.
PNG_MODES = {"1": (1, 1, 0), "L": (8, 8, 0), "P": (8, 8, 3), "LA": (16, 8, 4), "RGB": (24, 8, 2), "RGBA": (32, 8, 6)}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(slots=True, eq=False)
class Picture:
    """An image. `mode` and `size` are Pillow's; without a mode, `data` is an encoded image. Its pixels stay in the file
    until `encode` reads them."""

    mode: str = ""
    size: tuple[int, int] = (0, 0)
    palette: list[Any] = field(default_factory=list)
    data: Data | None = None

    def __str__(self) -> str:
        return f"image of {self.size[0]} x {self.size[1]} pixels, {self.mode}" if self.mode else "image"

    def set_state(self, state: object) -> None:
        """`state`: [info, mode, size, palette, pixels, …], as Pillow writes it. Anything else is ignored."""
        if not isinstance(state, list) or len(state) < 5:
            return
        _, mode, size, palette, data = state[:5]
        is_size = isinstance(size, tuple) and len(size) == 2 and all(type(side) is int and side > 0 for side in size)
        if not isinstance(mode, str) or not is_size or not isinstance(data, bytes | Piece):
            return
        self.mode, self.size, self.data = mode[:8], size, data
        self.palette = palette if isinstance(palette, list) else []  # not copied, since images may share it

    def encode(self) -> bytes | None:
        """Returns the encoded image; None if it is too large or in a mode that a PNG does not have. Raises
        SafePickleError if the bytes can't be read."""
        if self.data is None:
            return None
        if not self.mode:
            return read_byte_range(self.data, 0, len(self.data)) if len(self.data) <= MAX_IMAGE_BYTES else None
        width, height = self.size
        bits, depth, colour = PNG_MODES.get(self.mode, (0, 0, 0))
        row_bytes = (width * bits + 7) // 8
        if not bits or width * height > MAX_IMAGE_PIXELS or row_bytes * height != len(self.data):
            return None
        pixels = read_byte_range(self.data, 0, len(self.data))
        rows = b"".join(b"\0" + pixels[at : at + row_bytes] for at in range(0, len(pixels), row_bytes))
        colours = self.palette if len(self.palette) <= MAX_PALETTE_NUMBERS else []
        colour_bytes = bytes(colour & 255 for colour in colours if type(colour) is int)
        palette = _build_chunk(b"PLTE", colour_bytes) if self.mode == "P" else b""
        header = _build_chunk(b"IHDR", struct.pack(">2I5B", width, height, depth, colour, 0, 0, 0))
        body = _build_chunk(b"IDAT", zlib.compress(rows, 1))
        return PNG_SIGNATURE + header + palette + body + _build_chunk(b"IEND", b"")


def _build_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def is_picture_class(name: Name) -> bool:
    """Whether it is a class of Pillow's images: `PIL.Image.Image`, `PIL.PngImagePlugin.PngImageFile`."""
    return name.module.startswith("PIL.") and (name.name == "Image" or name.name.endswith("ImageFile"))


def find_encoded_picture(data: Piece) -> Picture | None:
    """Returns bytes in the file as a picture if they begin as an encoded image does."""
    head = data.read(0, min(len(data), MAX_MAGIC_BYTES))
    starts = (PNG_SIGNATURE, b"\xff\xd8\xff", b"GIF87a", b"GIF89a")
    is_image = head.startswith(starts) or (head.startswith(b"RIFF") and head[8:12] == b"WEBP")
    return Picture(data=data) if is_image else None
