"""What the commands have in common: the server, the run and the files that the arguments and the environment name."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from rolloutdeck.client.artifact import Unsteady, of_tokenizer
from rolloutdeck.errors import BadInput
from rolloutdeck.lib.environment import Settings, local_server, same_server
from rolloutdeck.lib.http import Answer, NotReachable, Server
from rolloutdeck.protocol.columns import PRESETS, told
from rolloutdeck.protocol.wire import STEP_KINDS
from rolloutdeck.trainer_api.registry import list_kinds
from rolloutdeck.watch.artifact_collector import Keeping
from rolloutdeck.watch.types import Choice

AXES = ("train", "eval", "metrics", "")


def say(text: str) -> None:
    """To the person at the terminal; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def settings_of(args: argparse.Namespace) -> Settings:
    """The environment, with what the arguments say in its place. Raises BadInput where no server is named."""
    found = Settings.read()
    url = args.url or found.url
    token = args.token or found.token
    if args.url and not args.token and not same_server(args.url, found.url):
        token = found.token if not same_server(found.url, local_server().get("url", "")) else ""
    if found.problem and not args.token:
        raise BadInput(found.problem)
    if not url:
        raise BadInput("No server is known: set ROLLOUTDECK_URL, say --url, or start one here with `rolloutdeck up`.")
    return replace(found, url=url, token=token)


def server_of(settings: Settings) -> Server:
    return Server(settings.url, settings.token, settings.ca_bundle)


def run_named(args: argparse.Namespace, settings: Settings) -> tuple[str, str]:
    """Project and run. Raises BadInput where one is missing."""
    project, run = project_named(args, settings), args.run or settings.run
    if not run:
        raise BadInput("Which run? Say --run NAME or set ROLLOUTDECK_RUN.")
    return project, run


def project_named(args: argparse.Namespace, settings: Settings) -> str:
    project: str = args.project or settings.project
    if not project:
        raise BadInput("Which project? Say --project NAME or set ROLLOUTDECK_PROJECT.")
    return project


def choice_of(args: argparse.Namespace) -> Choice:
    """What the arguments say about the files. Raises BadInput for an unknown format, axis, step kind or part."""
    form, columns = table_of(",".join(args.map), args.format)
    try:
        list_kinds(form)
        told(columns)
    except ValueError as error:
        raise BadInput(str(error)) from error
    chosen = {}
    for said in args.step_kind:
        axis, _, kind = said.rpartition("=")
        if axis not in AXES or kind not in STEP_KINDS:
            raise BadInput(
                f"--step-kind {said}: say KIND, train=KIND, eval=KIND or metrics=KIND; "
                f"KIND is one of {', '.join(STEP_KINDS)}."
            )
        chosen[axis] = kind
    return Choice(args.split, form, chosen, columns)


def table_of(mapped: str, form: str) -> tuple[str, str]:
    """Format and columns that a person means who maps columns: presets of trainers are formats of their own."""
    if not mapped or form:
        return form, mapped
    if mapped in PRESETS and mapped in {kind.format for kind in list_kinds()}:
        return mapped, ""
    return "table", mapped


def keeping_of(args: argparse.Namespace, default: str) -> Keeping:
    """What the arguments say about steps that can be loaded again. Raises BadInput for a tokenizer that is none."""
    mode = args.artifacts or default
    if not args.tokenizer:
        return Keeping(mode)
    try:
        return Keeping(mode, of_tokenizer(args.tokenizer))
    except (Unsteady, ValueError) as error:
        raise BadInput(str(error)) from error
    except OSError as error:
        raise BadInput(f"{args.tokenizer} can't be read: {error.strerror or error}.") from error


def asked(server: Server, method: str, path: str, **options: object) -> Answer:
    """A good answer. Raises BadInput with the server's own sentence otherwise."""
    try:
        answer = server.request(method, path, **options)  # type: ignore[arg-type]
    except NotReachable as error:
        raise BadInput(f"The server does not answer: {error}.") from error
    if not answer.ok:
        raise BadInput(sentence(answer.error))
    return answer


def sentence(text: str) -> str:
    first = text[:1] if text.startswith("http") else text[:1].upper()
    return first + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
