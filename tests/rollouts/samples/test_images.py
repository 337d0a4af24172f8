"""Images are stored once per run, in place of the data URLs in messages and keys, and are never loaded from a path."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rollouts.samples import Record, images
from rollouts.samples.images import extract_images, list_images
from rollouts.storage import access, read_image
from tests.support.images import IMAGES, PNG, SVG, data_url

DIGEST = sha256(PNG).hexdigest()
URL = data_url(PNG)
pytestmark = pytest.mark.disk  # without a database


def build_record(content: Any, **extras: Any) -> Record:
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "red"}]
    return extract_images(Record("p", "r", messages, extras=extras), "run-1")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "image_url", "image_url": URL},
        {"type": "input_image", "image_url": URL},
        {"type": "image", "image": URL},
        {"type": "image", "image": data_url(PNG, "image")},
        {"type": "image", "image": data_url(PNG, "image/svg+xml")},
        {"type": "image", "bytes": URL, "path": "a.png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]}},
    ],
)
def test_an_image_of_a_message_is_stored_and_named_by_its_hash(part: dict[str, Any]) -> None:
    record = build_record([part, {"type": "text", "text": "What colour?"}])
    assert [(item.origin, item.sha256, item.kind, item.width, item.height) for item in list_images(record)] == [
        ("user", DIGEST, "png", 3, 2)
    ]
    assert read_image("run-1", DIGEST) == PNG and "base64," not in repr(record.messages)
    assert record.messages and record.messages[0]["content"][1] == {"type": "text", "text": "What colour?"}


def test_images_under_keys_of_the_trainer_are_stored_and_listed_once() -> None:
    record = build_record(
        [{"type": "image"}], images=[{"bytes": URL, "path": None}, {"bytes": URL}], pic={"raw": URL}, n=3
    )
    assert [(item.origin, item.sha256) for item in list_images(record)] == [("images", DIGEST)]
    assert record.extras["n"] == 3 and record.extras["images"][0]["bytes"].startswith(f"image:{DIGEST}:png:3x2:")


def test_a_json_schema_is_no_image() -> None:
    """Its `type` may be a list, or the schema of a property with that name."""
    schema = {"type": ["object", "null"], "properties": {"type": {"type": "string"}, "image": {"type": "string"}}}
    assert list_images(build_record([schema, schema["properties"]], schema=schema)) == []


def test_a_record_without_images_is_not_changed() -> None:
    content, tokens = [{"type": "text", "text": "hi"}], list(range(5000))
    record = build_record(content, tokens=tokens, info={"a": ["b"]})
    assert record.messages and record.messages[0]["content"] is content and record.extras["tokens"] is tokens
    assert list_images(record) == []


@pytest.mark.parametrize(
    ("part", "location"),
    [
        ({"type": "image", "image": "/data/a.png"}, "/data/a.png"),
        ({"type": "image", "image": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"type": "image_url", "image_url": {"url": "https://example.org/a"}}, "https://example.org/a"),
        ({"type": "image", "path": "x"}, "x"),
    ],
)
def test_a_path_or_url_is_shown_as_text(part: dict[str, Any], location: str) -> None:
    assert [(item.location, item.sha256) for item in list_images(build_record([part]))] == [(location, "")]


def test_the_name_of_a_container_is_no_image() -> None:
    record = build_record("hi", image="python:3.11", image_path="a/b.jpg", image_url="https://example.org/x")
    assert [item.location for item in list_images(record)] == ["a/b.jpg", "https://example.org/x"]


@pytest.mark.parametrize("data", [SVG, b"<html>", b""])
def test_data_that_is_no_image_is_not_stored(data: bytes, data_dir: Path) -> None:
    (image,) = list_images(build_record([{"type": "image", "image": data_url(data, "image/png")}]))
    assert "only PNG, JPEG, GIF and WebP" in image.problem and not (data_dir / "images").exists()


def test_too_many_pixels_are_not_stored(data_dir: Path) -> None:
    huge = PNG[:16] + (60_000).to_bytes(4, "big") * 2 + PNG[24:]
    (image,) = list_images(build_record([{"type": "image", "image": data_url(huge)}]))
    assert "60000 × 60000 pixels" in image.problem and not (data_dir / "images").exists()


def test_a_sample_has_a_limited_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_SAMPLE_IMAGES", 2)
    record = build_record([{"type": "image", "image": data_url(data)} for data in IMAGES.values()])
    assert record.messages
    assert [part["image"][:6] for part in record.messages[0]["content"]][:3] == ["image:", "image:", "data:i"]
    assert len(list_images(record)) == 2


def test_shared_images_are_those_of_all_samples() -> None:
    both, own = (
        list_images(build_record([{"image": URL}, *more])) for more in ([], [{"image": data_url(IMAGES["gif"])}])
    )
    shared, rest = images.split_shared_images([both, own])
    assert ([item.kind for item in shared], [[item.kind for item in items] for items in rest]) == (
        ["png"],
        [[], ["gif"]],
    )
    assert images.split_shared_images([]) == ([], [])


def test_an_image_that_records_share_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []
    find = access.find_file
    monkeypatch.setattr(access, "find_file", lambda key: lookups.append(key) or find(key))
    stored: set[str] = set()
    for _record in range(8):
        record = Record("p", "r", extras={"image": URL})
        assert extract_images(record, "run-1", stored).extras["image"] != URL
    assert len(lookups) == 1 and len(stored) == 1
