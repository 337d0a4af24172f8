"""The images of a sample: moved out of its messages and keys when it is indexed, listed when it is shown.

An image arrives as a base64 data URL: in a part of a message (`{"type": "image_url", "image_url": {"url": …}}`,
`{"type": "image", "image": …}`), or under a key of the trainer (`images`). The body stores a reference in its place,
`image:<sha256>:<type>:<width>x<height>:<bytes>`, and `rollouts/storage` the file. Type and size are read from the
content. What is not a PNG, JPEG, GIF or WebP within the limits stays as it is. Nothing is loaded from a path or a URL.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, Final

from django.utils.translation import gettext as _

from rolloutdeck.protocol import DATA_URL_START, build_image_reference, decode_data_url, detect_image
from rollouts.samples.record import Record
from rollouts.storage import store_image

MAX_SAMPLE_IMAGES: Final = 64
MAX_DEPTH: Final = 8
MAX_LIST_VALUES: Final = 256  # a longer list holds tokens, not images
MAX_LOCATION_CHARS: Final = 300
REFERENCE: Final = re.compile(r"image:([0-9a-f]{64}):(png|jpeg|gif|webp):(\d{1,6})x(\d{1,6}):(\d{1,9})")
IMAGE_KEYS: Final = frozenset(("image", "images", "image_url", "image_urls", "image_path", "image_paths"))
IMAGE_PART_TYPES: Final = ("image", "image_url", "input_image")  # no set: the `type` of a JSON Schema may be a list
# A container's name, such as `python:3.11`, is also an "image". Only a text like these is a path or URL of a picture.
LOCATION: Final = re.compile(r"\A(?:https?|file|s3|gs)://|\.(?:png|jpe?g|gif|webp|bmp|tiff?|svg|avif)\Z", re.IGNORECASE)
PLAIN_TYPES: Final = frozenset((int, float, bool, type(None)))

StoreImage = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class SampleImage:
    """An image of a sample. `origin` is the role of its message or the name of its key.

    A stored image has `sha256`, `kind`, `width`, `height` (pixels) and `bytes`. Else `location` is the path or URL that
    the dump names, which is never opened, or `problem` says why it is not shown.
    """

    origin: str
    sha256: str = ""
    kind: str = ""
    width: int = 0
    height: int = 0
    bytes: int = 0
    location: str = ""
    problem: str = ""

    @property
    def key(self) -> str:
        """Equal for the same image in two places."""
        return self.sha256 or self.location or self.problem

    @property
    def alt(self) -> str:
        message = _("Image from {origin}, {width} × {height} pixels")
        return message.format(origin=self.origin, width=self.width, height=self.height)


def extract_images(record: Record, owner: str, stored: set[str] | None = None) -> Record:
    """Stores the images of a record for `owner` and puts references in their place. `stored` are the hashes of images
    that are stored already; new ones are added. Raises StorageUnavailableError."""
    extractor = ImageExtractor(partial(store_image, owner, known=stored))
    for position, message in enumerate(record.messages or ()):
        content = message.get("content")
        if type(content) is list and contains_image(content):
            assert record.messages
            record.messages[position] = {**message, "content": extractor.replace(content, 0)}
    for key, value in record.extras.items():
        if contains_image(value):
            record.extras[key] = extractor.replace(value, 0)
    return record


def contains_image(value: Any, depth: int = 0) -> bool:
    """Returns whether a value has an embedded image. Most values have none, and building a new one takes longer."""
    kind = type(value)
    if kind is str:
        return bool(value.startswith(DATA_URL_START))
    if kind in PLAIN_TYPES:
        return False
    members: Iterable[Any] = ()
    if kind is dict:
        if value.get("type") == "base64":
            return True
        members = value.values()
    elif kind is list and 0 < len(value) <= MAX_LIST_VALUES and type(value[0]) not in PLAIN_TYPES:
        members = value
    return depth < MAX_DEPTH and any(contains_image(member, depth + 1) for member in members)


class Expected(IntEnum):
    """Whether a text is expected to name an image: no; perhaps, by its key; yes, by the type of its part."""

    NOTHING = 0
    NAME = 1
    PART = 2


class ImageExtractor:
    """Replaces the images of one record. Values without images are returned unchanged."""

    def __init__(self, store: StoreImage) -> None:
        self.store, self.count = store, 0

    def replace(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.replace_url(value) if value.startswith(DATA_URL_START) else value
        if depth > MAX_DEPTH:
            return value
        if isinstance(value, dict):
            if value.get("type") == "base64" and isinstance(value.get("data"), str):  # Anthropic's `source`
                url = f"{DATA_URL_START}/unknown;base64,{value['data']}"
                return value if (reference := self.replace_url(url)) == url else {**value, "data": reference}
            items = {key: self.replace(inner, depth + 1) for key, inner in value.items()}
            return items if any(items[key] is not value[key] for key in items) else value
        if isinstance(value, list) and value and len(value) <= MAX_LIST_VALUES and type(value[0]) not in PLAIN_TYPES:
            members = [self.replace(inner, depth + 1) for inner in value]
            return members if any(new is not old for new, old in zip(members, value, strict=True)) else value
        return value

    def replace_url(self, url: str) -> str:
        data = decode_data_url(url) if self.count < MAX_SAMPLE_IMAGES else None
        info = detect_image(data) if data else None
        if not data or not info or info.is_too_large:
            return url
        self.count += 1
        self.store(data)
        return build_image_reference(data)


def list_images(record: Record) -> list[SampleImage]:
    """Returns the images of a record, each once, at most `MAX_SAMPLE_IMAGES`: those of its messages first."""
    images: dict[str, SampleImage] = {}
    for image in iterate_images(record):
        images.setdefault(image.key, image)
        if len(images) == MAX_SAMPLE_IMAGES:
            break
    return list(images.values())


def split_shared_images(images: Sequence[list[SampleImage]]) -> tuple[list[SampleImage], list[list[SampleImage]]]:
    """Returns the images that all samples have (those of their prompt), and for each sample its other images."""
    shared_keys = set.intersection(*({image.key for image in own} for own in images)) if images else set()
    shared = [image for image in images[0] if image.key in shared_keys] if images else []
    return shared, [[image for image in own if image.key not in shared_keys] for own in images]


def list_part_images(part: dict[str, Any], role: str) -> list[SampleImage]:
    """Returns the images of one part of a message."""
    return list(find_images(part, role, Expected.NOTHING, 0))


def iterate_images(record: Record) -> Iterator[SampleImage]:
    for message in record.messages or ():
        yield from find_images(message.get("content"), str(message.get("role", "")), Expected.NOTHING, 0)
    for key, value in record.extras.items():
        if isinstance(value, (str, list, dict)):
            yield from find_images(value, key, Expected.NAME if key.lower() in IMAGE_KEYS else Expected.NOTHING, 0)


def find_images(value: Any, origin: str, expected: Expected, depth: int) -> Iterator[SampleImage]:
    """Yields the images in a value."""
    if isinstance(value, str):
        if image := build_image(value, origin, expected):
            yield image
    elif depth > MAX_DEPTH:
        return
    elif isinstance(value, list) and len(value) <= MAX_LIST_VALUES:
        for inner in value:
            yield from find_images(inner, origin, expected, depth + 1)
    elif isinstance(value, dict):
        if value.get("type") in IMAGE_PART_TYPES:
            expected = Expected.PART
        for key in select_image_keys(value) if expected else value:
            below = expected or (Expected.NAME if key.lower() in IMAGE_KEYS else Expected.NOTHING)
            yield from find_images(value[key], origin, below, depth + 1)


def select_image_keys(value: dict[str, Any]) -> list[str]:
    """Returns the keys of an image that may have its bytes, path or URL. Next to bytes a path is only a name."""
    embedded = [key for key in ("bytes", "data") if isinstance(value.get(key), str) and is_embedded(value[key])]
    return embedded or [key for key in ("image", "image_url", "url", "path", "source") if value.get(key)]


def is_embedded(text: str) -> bool:
    return text.startswith(DATA_URL_START) or REFERENCE.fullmatch(text) is not None


def build_image(text: str, origin: str, expected: Expected) -> SampleImage | None:
    """Returns the image of a text; None if it is no image."""
    if match := REFERENCE.fullmatch(text):
        sha256, kind, width, height, size = match.groups()
        return SampleImage(origin, sha256, kind, int(width), int(height), int(size))
    if text.startswith(DATA_URL_START):
        return SampleImage(origin, problem=describe_problem(text))
    is_location = expected == Expected.PART or (expected == Expected.NAME and LOCATION.search(text[-500:]))
    return SampleImage(origin, location=text[:MAX_LOCATION_CHARS]) if is_location and text else None


def describe_problem(url: str) -> str:
    """Returns why an embedded image is not shown. The type is read from the content again, as when it was indexed."""
    data = decode_data_url(url)
    info = detect_image(data) if data else None
    if info is None:
        return _("not shown: only PNG, JPEG, GIF and WebP images of at most 16 MB are shown")
    if info.is_too_large:
        message = _("not shown: {width} × {height} pixels are too many")
        return message.format(width=info.width, height=info.height)
    return _("not stored: the sample has more images than are stored, or was indexed by an older version")
