"""Parses JSON bodies."""

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.parsers import BaseParser

from rolloutdeck.protocol import MAX_JSON_BYTES
from rollouts.errors import InvalidInputError, TooLargeError


class LenientJSON(BaseParser):
    """JSON as trainers write it: NaN and Infinity are accepted, and stored as null."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        raw = stream.read(MAX_JSON_BYTES + 1)
        if len(raw) > MAX_JSON_BYTES:
            raise TooLargeError(f"A JSON body can have {MAX_JSON_BYTES} bytes. Send less at once, or send a dump.")
        try:
            return json.loads(raw.decode("utf-8"), parse_constant=float)
        except UnicodeDecodeError as error:
            raise InvalidInputError("The body is not UTF-8.") from error
        except RecursionError as error:
            raise InvalidInputError("The body's JSON is nested too deeply.") from error
        except ValueError as error:
            raise InvalidInputError(f"The body is not JSON: {error}.") from error
