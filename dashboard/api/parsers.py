"""Reads bodies and query parameters of requests; whatever is wrong with them becomes one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from rolloutdeck.protocol import MAX_JSON_BYTES
from rollouts.errors import InvalidInputError, TooLargeError
from rollouts.lib import parse_integer, parse_text


class LenientJSON(BaseParser):
    """JSON as trainers write it: bare NaN and Infinity are taken, and become null where they are stored."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        raw = stream.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise TooLargeError(f"A JSON body may have {MAX_JSON_BYTES} bytes; send less at once, or a dump.")
        try:
            return json.loads(raw.decode("utf-8"), parse_constant=float)
        except UnicodeDecodeError as error:
            raise InvalidInputError("The body is not UTF-8.") from error
        except RecursionError as error:
            raise InvalidInputError("The body's JSON is nested too deeply.") from error
        except ValueError as error:
            raise InvalidInputError(f"The body is not JSON: {error}.") from error


def parse_json_body(request: Request, view: Any) -> dict[str, Any]:
    """The JSON object of the body. Raises BadInput for anything else and for fields that the view does not take."""
    known = view.takes[request.method]
    data = request.data
    if not isinstance(data, dict):
        raise InvalidInputError("The body must be a JSON object.")
    if strange := [key for key in data if key not in known]:
        name = strange[0][:40]
        raise InvalidInputError(f"{name!r} is no field of this request; known are {', '.join(known)}.", name)
    return data


def parse_query_params(request: Request, view: Any) -> dict[str, str]:
    """The query parameters. Raises BadInput for names that the view does not take and for values no database takes."""
    known = view.takes.get(request.method, {})
    every = (*known, "page", "page_size") if getattr(view, "paged", False) else tuple(known)
    found: dict[str, str] = {}
    for key, value in request.query_params.items():
        if key not in every:
            name = key[:40]
            raise InvalidInputError(
                f"{name!r} is no parameter of this address; known are {', '.join(every) or 'none'}.", name
            )
        found[key] = parse_text(str(value), key, most=8000)
    return found


def parse_count(value: Any, field: str, *, most: int, default: int) -> int:
    """A number of things asked for, at least one."""
    found = parse_integer(value, field, least=1, most=most)
    return default if found is None else found
