"""Reads the options for server, run and files from arguments and environment."""

from __future__ import annotations

import argparse
from dataclasses import replace

from rolloutdeck.cli.common.messages import print_message
from rolloutdeck.client import FileChangedError, build_tokenizer_artifact
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import (
    ServerClient,
    Settings,
    find_local_token,
    is_same_server,
    list_running_servers,
    load_local_server,
)
from rolloutdeck.protocol import COLUMN_PRESETS, STEP_KINDS, parse_column_mapping
from rolloutdeck.trainer_api import list_kinds
from rolloutdeck.watch import ArtifactOptions, ScanOptions


def connect(args: argparse.Namespace) -> tuple[Settings, ServerClient]:
    """Returns the settings of the environment, overridden by the arguments, and a client of their server.

    Sends nothing. Raises UsageError if no server is set.
    """
    settings = Settings.from_environment()
    url = args.url or settings.url
    token = args.token or settings.token
    if args.url and not args.token and not is_same_server(args.url, settings.url):
        # The token of a local server is never sent to another server.
        is_local = settings.token == find_local_token(settings.url)
        token = find_local_token(args.url) or ("" if is_local else settings.token)
    if settings.error and not args.token:
        raise UsageError(settings.error)
    if not url:
        raise UsageError("No server is set. Set ROLLOUTDECK_URL, use --url, or start a server with `rolloutdeck up`.")
    if not args.url and is_same_server(url, load_local_server().get("url", "")):
        _name_chosen_server(url)
    return replace(settings, url=url, token=token), ServerClient(url, token, settings.ca_bundle)


def refuse_redaction(settings: Settings) -> None:
    """Raises UsageError if texts must be redacted: this command sends files as they are."""
    if settings.redact:
        message = "ROLLOUTDECK_REDACT is set, but this command sends files as they are. Unset it to send them."
        raise UsageError(message)


def _name_chosen_server(url: str) -> None:
    """Names the server if the user has several on this machine: the one started last is chosen."""
    servers = list_running_servers()
    others = [server["url"] for server in servers if not is_same_server(server["url"], url)]
    if others:
        data = next((server["data"] for server in servers if is_same_server(server["url"], url)), "")
        folder = f" (data in {data})" if data else ", which does not run"
        print_message(f"Server: {url}{folder}. You also have {', '.join(others)}; use --url for another one.")


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


def parse_file_args(args: argparse.Namespace) -> tuple[ScanOptions, ArtifactOptions]:
    """Returns the options for dump files and for replayable steps. Raises UsageError if one is invalid."""
    return _parse_scan_options(args), _parse_artifact_options(args)


def _parse_scan_options(args: argparse.Namespace) -> ScanOptions:
    format_name, columns = resolve_table_format(",".join(args.map), args.format)
    try:
        list_kinds(format_name)
        parse_column_mapping(columns)
    except ValueError as error:
        raise UsageError(str(error)) from error
    step_kinds = {}
    for option in args.step_kind:
        axis, _, kind = option.rpartition("=")
        if axis not in ("train", "eval", "metrics", "") or kind not in STEP_KINDS:
            use = f"Use KIND, train=KIND, eval=KIND or metrics=KIND; KIND is one of {', '.join(STEP_KINDS)}."
            raise UsageError(f"--step-kind {option} is invalid. {use}")
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


def _parse_artifact_options(args: argparse.Namespace) -> ArtifactOptions:
    try:
        return ArtifactOptions(args.artifacts, build_tokenizer_artifact(args.tokenizer) if args.tokenizer else None)
    except (FileChangedError, ValueError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{args.tokenizer} can't be read: {error.strerror or error}.") from error
