"""Functions that the commands share: they read server, run and file options from arguments and environment."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from rolloutdeck.client import FileChangedError, build_tokenizer_artifact
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import (
    ServerClient,
    ServerResponse,
    ServerUnreachableError,
    Settings,
    is_same_server,
    load_local_server,
)
from rolloutdeck.protocol import COLUMN_PRESETS, STEP_KINDS, parse_column_mapping
from rolloutdeck.trainer_api import list_kinds
from rolloutdeck.watch import ArtifactOptions, ScanOptions

AXES = ("train", "eval", "metrics", "")


def print_message(text: str) -> None:
    """Prints a message for the user to standard error. Standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def load_settings(args: argparse.Namespace) -> Settings:
    """Returns the settings of the environment, overridden by the arguments. Raises UsageError if no server is set."""
    settings = Settings.from_environment()
    url = args.url or settings.url
    token = args.token or settings.token
    if args.url and not args.token and not is_same_server(args.url, settings.url):
        # The token of the local server is never sent to another server.
        token = settings.token if not is_same_server(settings.url, load_local_server().get("url", "")) else ""
    if settings.error and not args.token:
        raise UsageError(settings.error)
    if not url:
        raise UsageError("No server is set. Set ROLLOUTDECK_URL, use --url, or start a server with `rolloutdeck up`.")
    return replace(settings, url=url, token=token)


def build_server_client(settings: Settings) -> ServerClient:
    return ServerClient(settings.url, settings.token, settings.ca_bundle)


def require_run(args: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """Returns project and run name. Raises UsageError if one is missing."""
    project, run = require_project(args, settings), args.run or settings.run
    if not run:
        raise UsageError("No run is set. Use --run NAME or set ROLLOUTDECK_RUN.")
    return project, run


def require_project(args: argparse.Namespace, settings: Settings) -> str:
    """Returns the project name. Raises UsageError if it is missing."""
    project: str = args.project or settings.project
    if not project:
        raise UsageError("No project is set. Use --project NAME or set ROLLOUTDECK_PROJECT.")
    return project


def parse_scan_options(args: argparse.Namespace) -> ScanOptions:
    """Returns the file options. Raises UsageError if a format, axis, step kind or part of --map is unknown."""
    format_name, columns = resolve_table_format(",".join(args.map), args.format)
    try:
        list_kinds(format_name)
        parse_column_mapping(columns)
    except ValueError as error:
        raise UsageError(str(error)) from error
    step_kinds = {}
    for option in args.step_kind:
        axis, _, kind = option.rpartition("=")
        if axis not in AXES or kind not in STEP_KINDS:
            raise UsageError(
                f"--step-kind {option} is invalid. Use KIND, train=KIND, eval=KIND or metrics=KIND; "
                f"KIND is one of {', '.join(STEP_KINDS)}."
            )
        step_kinds[axis] = kind
    return ScanOptions(args.split, format_name, step_kinds, columns)


def resolve_table_format(mapping: str, format_name: str) -> tuple[str, str]:
    """Returns format and column mapping for the options --map and --format.

    The name of a trainer's preset is a format. Any other mapping means the format `table`.
    """
    if not mapping or format_name:
        return format_name, mapping
    if mapping in COLUMN_PRESETS and mapping in {kind.format for kind in list_kinds()}:
        return mapping, ""
    return "table", mapping


def parse_artifact_options(args: argparse.Namespace, default: str) -> ArtifactOptions:
    """Returns the options for replayable steps. Raises UsageError if the tokenizer is missing or invalid."""
    mode = args.artifacts or default
    if not args.tokenizer:
        return ArtifactOptions(mode)
    try:
        return ArtifactOptions(mode, build_tokenizer_artifact(args.tokenizer))
    except (FileChangedError, ValueError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{args.tokenizer} can't be read: {error.strerror or error}.") from error


def send_request(server: ServerClient, method: str, path: str, body: Any = None, **options: Any) -> ServerResponse:
    """Sends a request, with `body` as JSON if it is given, and returns the successful response.

    Raises UsageError with the server's message if the response is an error.
    """
    try:
        response = server.request(method, path, **options) if body is None else server.send_json(method, path, body)
    except ServerUnreachableError as error:
        raise UsageError(f"The server does not answer: {error}.") from error
    if not response.is_success:
        raise UsageError(format_sentence(response.error_message))
    return response


def format_sentence(text: str) -> str:
    """Returns the text with a capital first letter (except for a URL) and a final full stop."""
    first = text[:1] if text.startswith("http") else text[:1].upper()
    return first + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def format_count(count: int, noun: str) -> str:
    """Returns `1 file`, `2 files`, `1,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
