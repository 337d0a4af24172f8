"""Conversion of trainer data to JSON: values of rows, configs and metrics, with arrays and tensors.

Their libraries are not imported; the objects are recognized by their methods.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from rolloutdeck.client import process_identity
from rolloutdeck.protocol import build_image_reference, encode_data_url

MAX_NUMBER_BITS = 1023  # of an integer that a float can have
MAX_METRIC_NAME_LENGTH = 300  # characters of a metric's name


def convert_for_json(value: Any) -> Any:
    """Converts a value that `json` can't write: arrays and tensors to lists, 0-d ones to numbers, else to text."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (set, frozenset)):
        return list(value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        return convert_dataclass(value)
    if hasattr(value, "model_dump") and not isinstance(value, type):  # pydantic, such as the messages of OpenAI
        return value.model_dump()
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "item"):
        return value.item()
    return str(value)


def convert_dataclass(value: Any) -> dict[str, Any]:
    """Returns the attributes of a dataclass, and the fields that are slots of it or of its base classes."""
    values = dict(getattr(value, "__dict__", {}))
    slots = (field.name for field in fields(value) if field.name not in values)
    return {**values, **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


def has_json_form(value: Any) -> bool:
    """Whether a value is JSON, or `convert_for_json` converts it to more than its text for people."""
    if value is None or isinstance(value, (str, int, float, list, tuple, Mapping, bytes, bytearray, set, frozenset)):
        return True
    if isinstance(value, type):
        return False
    names = ("__dataclass_fields__", "model_dump", "tolist", "item", "getbands")
    return any(hasattr(value, name) for name in names)


class RowSerializer:
    """Serializes the rows of one call. An image that several rows share is sent with the first; the others name it."""

    def __init__(self) -> None:
        self._references: dict[int, tuple[Any, str]] = {}  # id of an image -> the image, its reference
        self._sent: set[str] = set()
        self._added: list[str] = []  # references whose images are in the last row
        options: dict[str, Any] = {"separators": (",", ":"), "default": self._convert}
        self._write = json.JSONEncoder(ensure_ascii=False, **options).encode
        self._write_ascii = json.JSONEncoder(**options).encode

    def serialize_row(self, row: Mapping[str, Any]) -> bytes:
        r"""Returns one row as a JSON line.

        NaN and Infinity are written bare: a NaN score differs from a score that was never recorded, and the native
        format reads both. Unpaired surrogates are written as `\ud800`. Raises an exception of any kind if the row has
        no JSON form: it may contain itself, or an object whose own method fails.
        """
        self._added = []
        try:
            return self._encode(row)
        except Exception:
            self.forget_last_row()
            raise

    def _encode(self, row: Mapping[str, Any]) -> bytes:
        try:
            text = self._write(row)
        except TypeError:  # keys that are not text
            self.forget_last_row()
            row = convert_keys_to_text(row)
            text = self._write(row)
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError:
            self.forget_last_row()
            return self._write_ascii(row).encode() + b"\n"

    def forget_last_row(self) -> None:
        """The last row is not used, so its images must be sent again."""
        self._sent.difference_update(self._added)
        self._references = {key: known for key, known in self._references.items() if known[1] in self._sent}
        self._added = []

    def _convert(self, value: Any) -> Any:
        if not isinstance(value, (bytes, bytearray)) and not is_pillow_image(value):
            return convert_for_json(value)
        if known := self._references.get(id(value)):
            return known[1]
        data = bytes(value) if isinstance(value, (bytes, bytearray)) else encode_png(value)
        url = encode_data_url(data)
        if url is None:
            return convert_for_json(value)
        reference = build_image_reference(data)
        self._references[id(value)] = value, reference
        if reference in self._sent:
            return reference
        self._sent.add(reference)
        self._added.append(reference)
        return url


def is_pillow_image(value: Any) -> bool:
    return hasattr(value, "tobytes") and hasattr(value, "getbands")


def encode_png(image: Any) -> bytes:
    """Returns an image of Pillow as a PNG; empty if Pillow cannot write it."""
    for mode in ("", "RGB"):  # PNG does not have all modes
        buffer = io.BytesIO()
        with suppress(Exception):  # a file that is truncated or closed: only this image is lost
            (image.convert(mode) if mode else image).save(buffer, "PNG", compress_level=1)
            return buffer.getvalue()
    return b""


def convert_keys_to_text(value: Any) -> Any:
    """Returns the value with every key of its dicts as text."""
    if isinstance(value, Mapping):
        return {str(key): convert_keys_to_text(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [convert_keys_to_text(inner) for inner in value]
    return value


def flatten_metrics(values: Mapping[str, Any], prefix: str = "") -> dict[str, float | int | None]:
    """Returns metrics as plain numbers.

    Nested dicts are joined by "/", one-element arrays become numbers, NaN and Infinity become None. Values that are not
    numbers (text, longer arrays) are skipped.
    """
    numbers: dict[str, float | int | None] = {}
    for key, value in values.items():
        name = process_identity.clean_name(f"{prefix}{key}", MAX_METRIC_NAME_LENGTH)
        if isinstance(value, Mapping):
            numbers.update(flatten_metrics(value, f"{name}/"))
        else:
            _add_number(numbers, name, value)
    return numbers


def _add_number(numbers: dict[str, float | int | None], name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (int, float)) and hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, TypeError, RuntimeError):  # more than one element
            return
    if isinstance(value, bool):
        numbers[name] = int(value)
    elif isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS:
        numbers[name] = None  # as infinity: no float has it
    elif isinstance(value, float):
        numbers[name] = float(value) if math.isfinite(value) else None
    elif value is None or isinstance(value, int):
        numbers[name] = value
