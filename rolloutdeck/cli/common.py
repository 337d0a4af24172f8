"""What the commands have in common: the server, the run and the files that the arguments and the environment name."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

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
    """To the person at the terminal; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def load_settings(args: argparse.Namespace) -> Settings:
    """The environment, with what the arguments say in its place. Raises UsageError where no server is named."""
    found = Settings.from_environment()
    url = args.url or found.url
    token = args.token or found.token
    if args.url and not args.token and not is_same_server(args.url, found.url):
        token = found.token if not is_same_server(found.url, load_local_server().get("url", "")) else ""
    if found.error and not args.token:
        raise UsageError(found.error)
    if not url:
        raise UsageError("No server is known: set ROLLOUTDECK_URL, say --url, or start one here with `rolloutdeck up`.")
    return replace(found, url=url, token=token)


def build_server_client(settings: Settings) -> ServerClient:
    return ServerClient(settings.url, settings.token, settings.ca_bundle)


def require_run(args: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """Project and run. Raises UsageError where one is missing."""
    project, run = require_project(args, settings), args.run or settings.run
    if not run:
        raise UsageError("Which run? Say --run NAME or set ROLLOUTDECK_RUN.")
    return project, run


def require_project(args: argparse.Namespace, settings: Settings) -> str:
    project: str = args.project or settings.project
    if not project:
        raise UsageError("Which project? Say --project NAME or set ROLLOUTDECK_PROJECT.")
    return project


def parse_scan_options(args: argparse.Namespace) -> ScanOptions:
    """What the arguments say about the files. Raises UsageError for an unknown format, axis, step kind or part."""
    form, columns = resolve_table_format(",".join(args.map), args.format)
    try:
        list_kinds(form)
        parse_column_mapping(columns)
    except ValueError as error:
        raise UsageError(str(error)) from error
    chosen = {}
    for said in args.step_kind:
        axis, _, kind = said.rpartition("=")
        if axis not in AXES or kind not in STEP_KINDS:
            raise UsageError(
                f"--step-kind {said}: say KIND, train=KIND, eval=KIND or metrics=KIND; "
                f"KIND is one of {', '.join(STEP_KINDS)}."
            )
        chosen[axis] = kind
    return ScanOptions(args.split, form, chosen, columns)


def resolve_table_format(mapped: str, form: str) -> tuple[str, str]:
    """Format and columns that a person means who maps columns: presets of trainers are formats of their own."""
    if not mapped or form:
        return form, mapped
    if mapped in COLUMN_PRESETS and mapped in {kind.format for kind in list_kinds()}:
        return mapped, ""
    return "table", mapped


def parse_artifact_options(args: argparse.Namespace, default: str) -> ArtifactOptions:
    """What the arguments say about steps that can be loaded again. Raises UsageError for a tokenizer that is none."""
    mode = args.artifacts or default
    if not args.tokenizer:
        return ArtifactOptions(mode)
    try:
        return ArtifactOptions(mode, build_tokenizer_artifact(args.tokenizer))
    except (FileChangedError, ValueError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{args.tokenizer} can't be read: {error.strerror or error}.") from error


def send_request(server: ServerClient, method: str, path: str, **options: object) -> ServerResponse:
    """A good answer. Raises UsageError with the server's own sentence otherwise."""
    try:
        answer = server.request(method, path, **options)  # type: ignore[arg-type]
    except ServerUnreachableError as error:
        raise UsageError(f"The server does not answer: {error}.") from error
    if not answer.is_success:
        raise UsageError(format_sentence(answer.error_message))
    return answer


def format_sentence(text: str) -> str:
    first = text[:1] if text.startswith("http") else text[:1].upper()
    return first + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def format_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
