"""The type and the size of an image come from its bytes; other bytes are no image."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from rolloutdeck.protocol import MAX_IMAGE_BYTES, decode_data_url, detect_image, encode_data_url, images
from tests.support.images import IMAGES, PNG, SVG, data_url


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_of_each_type_has_its_type_and_size(name: str) -> None:
    info = detect_image(IMAGES[name])
    assert info and (info.kind, info.width, info.height) == (name.partition("-")[0], 3, 2)
    assert info.media_type == f"image/{info.kind}" and not info.is_too_large


@pytest.mark.parametrize("data", [b"", b"<svg/>", SVG, b"%PDF-1.7", b"<html>", b"BM" + bytes(80), PNG[1:], b"\0" + PNG])
def test_other_bytes_are_no_image(data: bytes) -> None:
    assert detect_image(data) is None and encode_data_url(data) is None


@pytest.mark.parametrize(("name", "end"), list(product(IMAGES, range(40))))
def test_a_truncated_image_is_an_image_only_if_its_size_is_known(name: str, end: int) -> None:
    info = detect_image(IMAGES[name][:end])
    assert info is None or (info.width, info.height) == (3, 2)


def test_the_size_of_a_gif_includes_a_larger_frame() -> None:
    frame = IMAGES["gif"].index(b"\x2c\0\0\0\0\x03\0\x02\0")
    grown = bytearray(IMAGES["gif"])
    struct.pack_into("<HH", grown, frame + 5, 60_000, 50_000)
    info = detect_image(bytes(grown))
    assert info and (info.width, info.height) == (60_000, 50_000) and info.is_too_large


def test_a_jpeg_without_a_frame_ends_the_search() -> None:
    assert detect_image(b"\xff\xd8\xff\xe0\0\0" + b"\xff" * 1000) is None
    assert detect_image(b"\xff\xd8" + b"\xff\xe0\0\x02" * 100_000) is None


def test_a_data_url_keeps_the_bytes_whatever_type_it_declares() -> None:
    assert decode_data_url(encode_data_url(PNG) or "") == PNG
    assert decode_data_url(data_url(PNG, "image")) == PNG  # as Qwen's tools write it
    assert decode_data_url(data_url(PNG, "image/svg+xml")) == PNG


@pytest.mark.parametrize(
    "url", ["", "data:image/png,abc", "data:text/html;base64,PGI+", "data:image/png;base64,a", "http://a/b.png"]
)
def test_other_texts_are_no_data_url_of_an_image(url: str) -> None:
    assert decode_data_url(url) is None


def test_a_large_image_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", len(PNG) - 1)
    assert decode_data_url(data_url(PNG)) is None and encode_data_url(PNG) is None
    assert MAX_IMAGE_BYTES == 16 << 20
