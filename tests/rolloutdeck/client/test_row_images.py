"""Images in rows of `log_samples`: encoded on the writer's thread and sent once per call. A broken one becomes text."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, BinaryIO

import pytest

from rolloutdeck.client.serialize import RowSerializer, convert_for_json
from tests.support.images import IMAGES, PNG, data_url

REFERENCE = f"image:{sha256(PNG).hexdigest()}:png:3x2:{len(PNG)}"


class Picture:
    """The methods of Pillow's images that are used. `saves` are its modes that can be written."""

    def __init__(self, mode: str = "RGB", saves: tuple[str, ...] = ("RGB",)) -> None:
        self.mode, self.saves, self.written = mode, saves, 0

    def tobytes(self) -> bytes:
        raise AssertionError("its pixels are not read")

    def getbands(self) -> tuple[str, ...]:
        return tuple(self.mode)

    def convert(self, mode: str) -> Picture:
        return Picture(mode, self.saves)

    def save(self, file: BinaryIO, kind: str, **options: Any) -> None:
        if self.mode not in self.saves:
            raise OSError("cannot write mode as PNG")
        self.written += 1
        file.write(PNG)


def serialize_images(*images: Any) -> list[Any]:
    serializer = RowSerializer()
    return [json.loads(serializer.serialize_row({"image": image}))["image"] for image in images]


def test_an_image_is_sent_once_and_referenced_by_the_other_rows() -> None:
    image = Picture()
    assert serialize_images(image, image, Picture(), PNG) == [data_url(PNG), REFERENCE, REFERENCE, REFERENCE]
    assert image.written == 1
    assert serialize_images(PNG) == [data_url(PNG)]  # another call: its dump may be the only one that arrives


def test_a_mode_that_png_does_not_have_is_converted_and_a_broken_image_becomes_text() -> None:
    (converted, broken) = serialize_images(Picture("CMYK"), broken_image := Picture(saves=()))
    assert converted == data_url(PNG) and broken == str(broken_image)


def test_other_bytes_stay_text() -> None:
    assert serialize_images(b"abc", b"\xff", IMAGES["gif"]) == ["abc", "\\xff", data_url(IMAGES["gif"], "image/gif")]
    assert convert_for_json(PNG[:4]) == "\\x89PNG"


def test_the_image_of_a_row_that_is_not_used_is_sent_again() -> None:
    serializer, image = RowSerializer(), Picture()
    with pytest.raises(ValueError, match="Circular"):
        row: dict[str, Any] = {"image": image}
        row["row"] = row
        serializer.serialize_row(row)
    assert json.loads(serializer.serialize_row({"image": image})) == {"image": data_url(PNG)}
    serializer.forget_last_row()
    assert json.loads(serializer.serialize_row({"image": image})) == {"image": data_url(PNG)}


@pytest.mark.parametrize("row", [{(1, 2): "key"}, {"lone": "\ud800"}])
def test_a_row_that_is_serialized_in_two_tries_has_its_image(row: dict[Any, Any]) -> None:
    assert data_url(PNG).encode() in RowSerializer().serialize_row({"image": Picture(), **row})
