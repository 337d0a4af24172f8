"""Responses as JSON."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.renderers import JSONRenderer
from rest_framework.utils.encoders import JSONEncoder

OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


class OrjsonRenderer(JSONRenderer):
    """DRF's JSON, written by orjson, because a page of curves has a hundred thousand numbers."""

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        if data is None or self.get_indent(accepted_media_type or "", renderer_context or {}):
            return bytes(super().render(data, accepted_media_type, renderer_context))
        try:
            return orjson.dumps(data, default=JSONEncoder().default, option=OPTIONS)
        except TypeError:  # an unpaired surrogate, or an integer of more than 64 bits
            return json.dumps(data, cls=JSONEncoder).encode()
