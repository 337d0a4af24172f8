"""What a host says about the files of a step that it has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rolloutdeck import protocol
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text, redact_secrets

MAX_FACTS_BYTES = 32 << 10  # of JSON
MAX_ORIGIN_CHARS = {"host": 120, "path": 1000, "command": 4000}


@dataclass(frozen=True, slots=True)
class ArtifactManifest:
    """A host's description of the files of one step.

    `origin` is {host, path, command}. `gone` says why the files cannot be uploaded any more.
    """

    role: str
    step: int
    files: dict[str, dict[str, Any]]
    split: str = "train"
    step_kind: str = "global_step"
    facts: dict[str, Any] | None = None
    origin: dict[str, str] | None = None
    send_now: bool = False
    gone: str = ""

    @classmethod
    def from_request(cls, data: Mapping[str, Any]) -> ArtifactManifest:
        """Returns the manifest in a request body. Raises InvalidInputError with the name of the field."""
        role = parse_choice(data.get("role"), "role", protocol.ARTIFACT_ROLES, default="rollout")
        step = parse_integer(data.get("step"), "step")
        if step is None:
            raise InvalidInputError("`step` is required: the step of the files.", "step")
        return cls(
            role,
            step,
            parse_files(data.get("files")),
            split=parse_choice(data.get("split"), "split", protocol.SPLITS, default="train"),
            step_kind=parse_choice(data.get("step_kind"), "step_kind", protocol.STEP_KINDS, default="global_step"),
            facts=parse_facts(data.get("facts")),
            origin=parse_origin(data.get("origin")),
            send_now=parse_boolean(data.get("send_now", False), "send_now"),
            gone=parse_text(data.get("gone"), "gone", max_chars=500),
        )


def parse_files(files: Any) -> dict[str, dict[str, Any]]:
    """Returns {path: {sha256, bytes}}. Raises InvalidInputError."""
    try:
        protocol.check_manifest(files)
    except ValueError as error:
        raise InvalidInputError(str(error), "files") from error
    return {str(path): {"sha256": file["sha256"], "bytes": file["bytes"]} for path, file in files.items()}


def parse_facts(facts: Any) -> dict[str, Any]:
    """Returns the facts without secrets. Names that this server does not compare are stored too.

    Raises InvalidInputError.
    """
    if facts is None:
        return {}
    if not isinstance(facts, Mapping) or len(json.dumps(facts)) > MAX_FACTS_BYTES:
        raise InvalidInputError(f"`facts` must be an object of at most {MAX_FACTS_BYTES} bytes.", "facts")
    return dict(redact_secrets(dict(facts)))


def merge_facts(stored: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stored facts updated with the reported ones. Raises InvalidInputError if they are too large."""
    return parse_facts({**stored, **reported})


def parse_origin(origin: Any) -> dict[str, str]:
    """Returns {host, path, command} without secrets. Raises InvalidInputError."""
    if origin is None:
        return {}
    if not isinstance(origin, Mapping):
        raise InvalidInputError("`origin` must be an object {host, path, command}.", "origin")
    fields = {name: parse_text(origin.get(name), "origin", max_chars=chars) for name, chars in MAX_ORIGIN_CHARS.items()}
    return dict(redact_secrets(fields))
