"""The command line: reads the arguments, calls one command, turns what stops it into one sentence and a status.

Status: 0 all good, 1 something was lost or failed, 2 bad input or no server, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import COLUMN_PRESETS, SPLITS, STEP_KINDS, TOKEN_SCOPES

Adder = Callable[[argparse.ArgumentParser], None]


def _server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--url", default="", help="address of the server; default: ROLLOUTDECK_URL, else the local one")
    group.add_argument(
        "--token", default="", help="default: ROLLOUTDECK_TOKEN, ROLLOUTDECK_TOKEN_FILE or the local one"
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    parser.add_argument("--run", default="", help="name of the run; default: ROLLOUTDECK_RUN")


def _files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--split", choices=SPLITS, default="", help="default: by the folders' names, else by content")
    parser.add_argument("--format", default="", help="default: found by content, like verl-jsonl")
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="PART=COLUMN,…",
        help="columns of a CSV, JSONL or Parquet table, like prompt=question,response=answer, or those of "
        + ", ".join(COLUMN_PRESETS),
    )
    parser.add_argument("--attempt", default="", help="the launch these files belong to; default: files")
    parser.add_argument(
        "--step-kind",
        action="append",
        default=[],
        metavar="[train=|eval=|metrics=]KIND",
        help=f"what the steps count: {', '.join(STEP_KINDS)}; may be given several times; default: global_step",
    )


def _keeping(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--artifacts",
        choices=("now", "on-pin", "never"),
        default="",
        help=f"when steps that can be replayed are sent; default: {default}",
    )
    parser.add_argument(
        "--tokenizer", type=Path, metavar="PATH", help="tokenizer.json of the run's token ids, or its folder"
    )


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="folders to watch as well")
    parser.add_argument("--data", type=Path, default=None, help="default: ROLLOUTDECK_DATA, else ~/.rolloutdeck/data")
    parser.add_argument("--host", default="", help="default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: 8460")
    parser.add_argument("--demo", action="store_true", help="train a tiny model beside it (needs torch)")


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files or folders")
    _run(parser)
    _files(parser)
    _keeping(parser, "now")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until everything is indexed")
    _server(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="folders; need not exist yet")
    parser.add_argument(
        "--tree", default="", metavar="PATTERN", help="like '/shared/rl/{user}/{project}/{run}/{split}'"
    )
    _run(parser)
    _files(parser)
    _keeping(parser, "on-pin")
    parser.add_argument("--poll", type=float, default=1.0, metavar="SECONDS", help="default: 1")
    parser.add_argument("--once", action="store_true", help="take what is whole now, then end")
    _server(parser)


def _sync(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spool", nargs="?", type=Path, metavar="SPOOL", help="default: ROLLOUTDECK_SPOOL, ~/.rolloutdeck"
    )
    _server(parser)


def _samples(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--split", choices=SPLITS, default="train")
    parser.add_argument("--step", default="latest", help="a number, latest (default) or all")
    parser.add_argument("--attempt", default="", help="default: the steps as they count now")
    parser.add_argument("--q", default="", metavar="QUERY", help="the query language of the pages, like 'score<0.5'")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--worst", type=int, metavar="N", help="the N with the lowest score (default: 5)")
    order.add_argument("--best", type=int, metavar="N", help="the N with the highest score")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="whole prompts and responses")
    form.add_argument("--json", action="store_true", help="a JSON object per line")
    _server(parser)


def _plan(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--plan", default="", metavar="NAME", help="default: ROLLOUTDECK_PLAN, else default")
    parser.add_argument(
        "--steps", type=int, default=0, metavar="N", help="show the first N steps; default: past the last target"
    )
    parser.add_argument("--json", action="store_true", help="the server's answer as it is")
    _server(parser)


def _token(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="create")
    create = verbs.add_parser("create", help="make a token; it is shown once")
    create.add_argument("name")
    create.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT; made where it does not exist")
    told = f"of {','.join(TOKEN_SCOPES)}, one or several; default: ingest. A trainer that replays needs ingest,read"
    create.add_argument("--scope", action="append", help=told)
    _server(create)


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="SETTING", help="key=value or --flag value, as the trainer takes them"
    )
    parser.add_argument("--trainer", required=True, help="verl, trl, slime, roll, cure")
    parser.add_argument(
        "--config", type=Path, help="JSON, YAML, a Python file (read, never run) or a file of overrides"
    )


def _pull(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="a folder of its own, absent or empty")
    parser.add_argument("--trainer", required=True, help="verl, slime, trl, roll, cure")
    parser.add_argument(
        "--way", default="", help="where a trainer loads in several ways: which, as its page of docs says"
    )
    parser.add_argument("--plan", default="", metavar="NAME[@REVISION]", help="default: ROLLOUTDECK_PLAN, else default")
    parser.add_argument("--steps", type=int, metavar="N", help="lay out the first N steps; default: all the run makes")
    parser.add_argument("--config", type=Path, help="of the run that will replay: JSON, YAML or a file of overrides")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="settings of that run, on top of its config on the server",
    )
    _server(parser)


COMMANDS: dict[str, tuple[str, str, Adder]] = {
    "up": ("rolloutdeck.up", "run the whole product on this machine", _up),
    "import": ("rolloutdeck.cli.import_", "bring existing dump folders into a run", _import),
    "watch": ("rolloutdeck.cli.watch", "follow the folder of a run that is being written", _watch),
    "sync": ("rolloutdeck.cli.sync", "send what earlier processes left in a spool", _sync),
    "samples": ("rolloutdeck.cli.samples", "list samples in the shell", _samples),
    "pull": ("rolloutdeck.cli.pull", "put a replay plan's files where a trainer loads them", _pull),
    "plan": ("rolloutdeck.cli.plan", "show what the next run replays, and whether it fits", _plan),
    "token": ("rolloutdeck.cli.token", "make a token", _token),
    "check": ("rolloutdeck.cli.check", "find settings of a trainer that would lose samples", _check),
}


def build_parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="rolloutdeck", description="See what a model writes while it is trained with reinforcement learning."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, summary, add) in COMMANDS.items():
        add(commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + "."))
    return top


def reorder_check_arguments(words: Sequence[str]) -> list[str]:
    """The words of a command; those of `check` with ours first, since all others are the trainer's, flags and all."""
    if list(words[:1]) != ["check"]:
        return list(words)
    own, theirs, rest = list[str](), list[str](), list(words[1:])
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word.partition("=")[0] not in ("--trainer", "--config", "-h", "--help"):
            theirs.append(word)
            continue
        own.append(word)
        if rest and word in ("--trainer", "--config"):
            own.append(rest.pop(0))
    return ["check", *own, "--", *theirs, *(word for word in rest if word != "--")]


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = build_parser().parse_args(reorder_check_arguments(sys.argv[1:] if argv is None else argv))
    except SystemExit as end:  # argparse has said why
        return end.code if isinstance(end.code, int) else 2
    try:
        status: int = importlib.import_module(COMMANDS[args.command][0]).main(args)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(error, file=sys.stderr)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"{error.filename or args.command}: {error.strerror or error}.", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2
