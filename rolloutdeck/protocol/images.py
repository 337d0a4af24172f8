"""Encoded images: their type and size, read from the content, and their form in JSON.

A name or a declared type is never trusted. Only types that every browser decodes and that hold no script are images
here: PNG, JPEG, GIF and WebP. SVG is text with scripts, so it is none. Formats: PNG (ISO/IEC 15948), JPEG (ITU-T T.81),
GIF89a, and the WebP container specification (RFC 9649).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

MAX_IMAGE_BYTES = 16 << 20  # of an encoded image
MAX_IMAGE_PIXELS = 50_000_000  # a browser needs 4 bytes for each
DATA_URL_START = "data:image"  # Qwen's tools write `data:image;base64,…`

_PNG_START = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
# Markers of a JPEG frame, which has the size: SOF0 to SOF15 without DHT, JPG and DAC.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_WITHOUT_LENGTH = frozenset((0x01, *range(0xD0, 0xD8)))


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """`kind` is png, jpeg, gif or webp; width and height are in pixels."""

    kind: str
    width: int
    height: int

    @property
    def media_type(self) -> str:
        return f"image/{self.kind}"

    @property
    def is_too_large(self) -> bool:
        return self.width * self.height > MAX_IMAGE_PIXELS


def detect_image(data: bytes) -> ImageInfo | None:
    """Returns type and size of an encoded image; None for all other bytes. Reads headers only and decodes nothing."""
    try:
        if data.startswith(_PNG_START):
            kind, size = "png", struct.unpack_from(">II", data, 16)
        elif data.startswith(b"\xff\xd8\xff"):
            kind, size = "jpeg", _find_jpeg_size(data)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            kind, size = "gif", _find_gif_size(data)
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            kind, size = "webp", _find_webp_size(data)
        else:
            return None
    except (struct.error, IndexError):  # it ends within its headers
        return None
    return ImageInfo(kind, *size) if min(size) > 0 else None


def _find_jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        if data[at] != 0xFF:
            return 0, 0
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _JPEG_WITHOUT_LENGTH:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        else:
            at += 2 + struct.unpack_from(">H", data, at + 2)[0]


def _find_gif_size(data: bytes) -> tuple[int, int]:
    """Returns the size of the screen, or of the first frame if that is larger: browsers enlarge the screen then."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    while data[at] == 0x21:  # an extension: its label, then blocks with their lengths
        at += 2
        while length := data[at]:
            at += 1 + length
        at += 1
    left, top, frame_width, frame_height = struct.unpack_from("<4H", data, at + 1)
    return max(width, left + frame_width), max(height, top + frame_height)


def _find_webp_size(data: bytes) -> tuple[int, int]:
    chunk = data[12:16]
    if chunk == b"VP8X" and len(data) >= 30:
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L" and data[20] == 0x2F:
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def encode_data_url(data: bytes) -> str | None:
    """Returns an encoded image as a data URL; None if the bytes are no image, or one of more than MAX_IMAGE_BYTES."""
    info = detect_image(data) if len(data) <= MAX_IMAGE_BYTES else None
    if info is None:
        return None
    from base64 import b64encode  # costs import time

    return f"data:{info.media_type};base64,{b64encode(data).decode()}"


def build_image_reference(data: bytes) -> str:
    """Returns the text that stands for a stored image: `image:<sha256>:<type>:<width>x<height>:<bytes>`."""
    info = detect_image(data)
    assert info is not None
    return f"image:{sha256(data).hexdigest()}:{info.kind}:{info.width}x{info.height}:{len(data)}"


def decode_data_url(url: str) -> bytes | None:
    """Returns the bytes of a base64 data URL of an image; None if it is anything else, or decodes to more than
    MAX_IMAGE_BYTES. The type that it declares is not checked, see `detect_image`."""
    head, comma, body = url.partition(",")
    if not comma or not head.startswith(DATA_URL_START) or not head.endswith(";base64"):
        return None
    if len(body) > MAX_IMAGE_BYTES * 3 // 2:
        return None
    from base64 import b64decode

    try:
        data = b64decode(body)
    except ValueError:
        return None
    return data if len(data) <= MAX_IMAGE_BYTES else None
