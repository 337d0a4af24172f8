"""Functions that the commands share: they read server, run and file options from arguments and environment."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

from rolloutdeck.client import FileChangedError, build_tokenizer_artifact
from rolloutdeck.errors import MissingError, UnavailableError, UsageError
from rolloutdeck.lib import (
    ServerClient,
    ServerResponse,
    ServerUnreachableError,
    Settings,
    encode_json,
    find_local_token,
    is_same_server,
    list_running_servers,
    load_local_server,
)
from rolloutdeck.protocol import COLUMN_PRESETS, STEP_KINDS, parse_column_mapping
from rolloutdeck.trainer_api import list_kinds
from rolloutdeck.watch import ArtifactOptions, ScanOptions

MAX_REQUEST_BYTES = 4 << 20  # of several rows; the server takes MAX_JSON_BYTES
UNAVAILABLE_STATUSES = (429, 502, 503, 504)

Row = TypeVar("Row")


def print_message(text: str) -> None:
    """Prints a message for the user to standard error. Standard output is for results."""
    print(text, file=sys.stderr, flush=True)


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


def send_request(server: ServerClient, method: str, path: str, body: Any = None, **options: Any) -> ServerResponse:
    """Sends a request, with `body` as JSON if it is given, and returns the successful response.

    Raises UsageError with the server's message if the response is an error; MissingError for 404, UnavailableError if
    the server does not answer at the moment or is busy.
    """
    try:
        if body is None:
            response = server.request(method, path, **options)
        else:
            response = server.send_json(method, path, body, **options)
    except ServerUnreachableError as error:
        raise UnavailableError(f"The server does not answer: {error}.") from error
    if response.is_success:
        return response
    message = end_sentence(response.error_message)
    if response.status in UNAVAILABLE_STATUSES:
        raise UnavailableError(message, response.retry_after)
    raise (MissingError if response.status == 404 else UsageError)(message)


def split_rows(rows: Iterable[Row], max_rows: int) -> Iterator[list[Row]]:
    """Yields the rows in parts for one request each: of at most `max_rows` rows and `MAX_REQUEST_BYTES` of JSON. A
    single row may be larger."""
    part: list[Row] = []
    size = 0
    for row in rows:
        row_bytes = len(encode_json(row))
        if part and (len(part) >= max_rows or size + row_bytes > MAX_REQUEST_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += row_bytes
    if part:
        yield part


def read_text_lines(file: Iterable[str], path: Path) -> Iterator[str]:
    """Yields the lines of a file that was opened as UTF-8. Raises UsageError if it is no text in UTF-8."""
    try:
        yield from file
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8.") from None


@contextlib.contextmanager
def open_replacement(path: Path, *, is_input: bool = False) -> Iterator[IO[str]]:
    """Opens a text file whose content is that of `path` when the block ends without an error.

    `is_input`: the block reads `path`. Then `path` is only replaced as a whole, since a copy that fails would lose its
    rows. Otherwise it is overwritten if it can't be replaced: it is a mount, or its folder is not writable.
    """
    if path.exists() and not path.is_file():  # a pipe or a device, such as /dev/null, can't be replaced
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    final = path.resolve()  # a link stays a link
    temporary = _create_temporary_file(final, may_copy=not is_input)
    try:
        with temporary.open("w", encoding="utf-8") as file:  # Windows does not rename an open file
            yield file
        if final.exists():
            temporary.chmod(final.stat().st_mode & 0o777)
        try:
            temporary.replace(final)
        except OSError:
            if is_input:
                raise
            shutil.copyfile(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def _create_temporary_file(final: Path, *, may_copy: bool) -> Path:
    """Creates a file in the folder of `final`, or elsewhere if only `final` itself can be written."""
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        temporary.open("x").close()
    except OSError:
        if not may_copy or not os.access(final, os.W_OK):
            raise
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        return Path(name)
    return temporary


def format_sentence(message: object) -> str:
    """Returns a text or an error's message with a capital first letter (except for a URL) and a final full stop."""
    text = str(message)
    return end_sentence(text if text.startswith("http") else text[:1].upper() + text[1:])


def end_sentence(text: str) -> str:
    """Returns a message of the server with a final full stop. Its first word may be a name, which keeps its case."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def format_count(count: int, noun: str) -> str:
    """Returns `1 file`, `2 files`, `1,000 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
