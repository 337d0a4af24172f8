"""The entry point of the command line: parses the arguments, runs one command, prints its error.

Exit status: 0 success, 1 something was lost or failed, 2 bad input or no server, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rolloutdeck.cli.common import add_run_arguments, add_server_arguments
from rolloutdeck.cli.rescore import add_judge_arguments, add_rescore_arguments
from rolloutdeck.cli.review import add_guidance_arguments, add_labels_arguments, add_queues_arguments
from rolloutdeck.cli.server_arguments import (
    add_account_arguments,
    add_backup_arguments,
    add_copy_sqlite_arguments,
    add_forget_arguments,
    add_fsck_arguments,
    add_link_account_arguments,
    add_migrate_arguments,
    add_reset_second_factor_arguments,
    add_restore_arguments,
    add_storage_arguments,
    add_up_arguments,
    add_web_arguments,
    add_worker_arguments,
)
from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import COLUMN_PRESETS, SPLITS, STEP_KINDS, TOKEN_SCOPES
from rolloutdeck.trainer_api import TRAINERS

EXPORT_LAYOUTS = ("samples", "labels", "sft", "preferences", "kto", "reward")
AddArguments = Callable[[argparse.ArgumentParser], None]


def _add_file_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    map_help = "columns of a CSV, JSONL or Parquet table, for example prompt=question,response=answer; or a preset: "
    map_help += ", ".join(COLUMN_PRESETS)
    kind_help = f"unit of the step numbers: {', '.join(STEP_KINDS)}; repeatable; default: global_step"
    add("--split", choices=SPLITS, default="", help="default: detected from folder names, else from content")
    add("--format", default="", help="file format, one of docs/formats.md; default: detected")
    add("--map", action="append", default=[], metavar="PART=COLUMN,…", help=map_help)
    add("--attempt", default="", help="attempt that these files belong to; default: ROLLOUTDECK_ATTEMPT, else files")
    add("--step-kind", action="append", default=[], metavar="[train=|eval=|metrics=]KIND", help=kind_help)


def _add_artifact_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    add = parser.add_argument
    upload_help = f"when to upload the files of replayable steps; default: {default}"
    add("--artifacts", choices=("now", "on-pin", "never"), default=default, help=upload_help)
    add("--tokenizer", type=Path, metavar="PATH", help="the run's tokenizer.json, or its folder; decodes token ids")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="files or folders")
    add_run_arguments(parser)
    _add_file_arguments(parser)
    _add_artifact_arguments(parser, "now")
    parser.add_argument("--no-wait", action="store_true", help="exit without waiting for the indexing")
    add_server_arguments(parser)


def _add_watch(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="folders to watch; they may be created later")
    tree_help = "folder pattern, for example '/shared/rl/{user}/{project}/{run}/{split}'"
    add("--tree", default="", metavar="PATTERN", help=tree_help)
    add_run_arguments(parser)
    _add_file_arguments(parser)
    _add_artifact_arguments(parser, "on-pin")
    add("--poll", type=float, default=1.0, metavar="SECONDS", help="time between checks; default: 1")
    add("--once", action="store_true", help="send the complete files, say what can't be used, then exit")
    prune_help = "delete files once the server has indexed all of their rows; keeps the newest of each folder"
    add("--prune-source", action="store_true", help=prune_help)
    add("--dry-run", action="store_true", help="with --prune-source: only print which files would be deleted")
    add_server_arguments(parser)


def _add_sync(parser: argparse.ArgumentParser) -> None:
    spool_help = "a spool, or a folder of checkpoints; default: ROLLOUTDECK_SPOOL, else ~/.rolloutdeck/spool"
    parser.add_argument("spool", nargs="?", type=Path, metavar="SPOOL", help=spool_help)
    add_server_arguments(parser)


def _add_samples(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run_arguments(parser)
    add("--split", choices=SPLITS, default="train", help="default: train")
    add("--step", default="latest", help="a step number, latest (default) or all")
    add("--attempt", default="", help="default: the attempt that is current at each step")
    add("--q", default="", metavar="QUERY", help="search query as in the web UI, for example 'score<0.5'")
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--worst", type=int, metavar="N", help="N samples with the lowest score (default: 5)")
    order.add_argument("--best", type=int, metavar="N", help="N samples with the highest score")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="print full prompts and responses")
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_server_arguments(parser)


def _add_export(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    run_help = "name or id; repeatable; default: all runs that are not archived"
    add("--run", action="append", default=[], metavar="RUN", help=run_help)
    add("--out", type=Path, required=True, metavar="DIR", help="a new folder for the data and its card")
    add("--layout", choices=EXPORT_LAYOUTS, default="samples", help="default: samples")
    add("--format", choices=("jsonl", "parquet", "csv"), default="jsonl", help="default: jsonl")
    add("--split", choices=SPLITS, default="", help="default: both")
    add("--step", default="", metavar="N", help="default: all steps")
    add("--step-kind", choices=STEP_KINDS, default="", help="what the number of --step counts")
    add("--attempt", default="", help="default: the attempt that is current at each step")
    add("--q", default="", metavar="QUERY", help="search query as in the web UI; default: all samples")
    better = parser.add_argument_group("which response is better").add_argument
    better("--signal", choices=("score", "label", "rank"), default="", help="default: score")
    better("--question", default="", metavar="KEY", help="with --signal label: a question of the rubric")
    better("--good", default="", metavar="A,B", help="with --signal label: answers that are good; default: the first")
    better("--threshold", default="", metavar="SCORE", help="kto: a response is good from this score on; default: 0.5")
    margin_help = "pairs need a larger difference of scores; default: 0, or any for preferences by label or rank"
    better("--min-margin", default="", metavar="SCORE", help=margin_help)
    better("--pairs", choices=("best-worst", "all"), default="", help="of each group; default: best-worst")
    limits = parser.add_argument_group("what is written").add_argument
    limits("--max-per-prompt", default="", metavar="N", help="rows of one prompt at most")
    limits("--drop-near-duplicates", action="store_true", help="leave out texts that are almost the same")
    limits("--no-corrections", action="store_true", help="do not use corrected responses")
    limits("--ids", action="store_true", help="labels: also the ids of this server")
    limits("--form", choices=("auto", "text", "messages"), default="", help="default: as the first sample")
    add_server_arguments(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("q", metavar="QUERY", help="search query as in the web UI, for example 'is:truncated source:zh'")
    add("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    add("--limit", type=int, default=20, metavar="N", help="stop after N samples; default: 20")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="print full prompts and responses")
    form.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_server_arguments(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run_arguments(parser)
    add("--plan", default="", metavar="NAME", help="default: ROLLOUTDECK_PLAN, else default")
    add("--steps", type=int, default=0, metavar="N", help="show the first N steps; default: all targets and a few more")
    prompts_help = "first send the prompts of a dry run of the data loader: JSON lines {step, prompts}"
    add("--prompts", type=Path, metavar="FILE", help=prompts_help)
    kind_help = "what the steps of --prompts count; default: global_step"
    add("--step-kind", choices=STEP_KINDS, default="global_step", help=kind_help)
    add("--json", action="store_true", help="print the server's JSON response")
    add_server_arguments(parser)


def _add_retention(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("project", metavar="PROJECT", help="slug of the project")
    add("--apply", action="store_true", help="start a pass of the policy now, and wait until it ends")
    add("--json", action="store_true", help="print the server's JSON response")
    add_server_arguments(parser)


def _add_token(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="create")
    description = (
        "Create an access token of the API for a trainer or a program, and print it. It is shown only once. Needs "
    )
    description += "a token of an owner of the project with the scope admin: the user of `rolloutdeck up` has one."
    create = verbs.add_parser("create", help="create an access token and print it once", description=description)
    create.add_argument("name", help="says what the token is for")
    create.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT; created if it does not exist")
    scope_help = f"one or more of {','.join(TOKEN_SCOPES)}; default: ingest. For replay use ingest,read"
    create.add_argument("--scope", action="append", help=scope_help)
    create.add_argument("--days", type=int, metavar="N", help="it expires after N days; default: never")
    add_server_arguments(create)


def _add_check(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("overrides", nargs="*", metavar="SETTING", help="trainer setting, as key=value or --flag value")
    add("--trainer", required=True, help=", ".join(TRAINERS))
    config_help = "the trainer's JSON, YAML or Python file (parsed, never run), or a file of overrides"
    add("--config", type=Path, help=config_help)


def _add_pull(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run_arguments(parser)
    into_help = "target folder: new, empty or written by an earlier pull"
    add("--into", type=Path, required=True, metavar="DIR", help=into_help)
    add("--trainer", required=True, help=", ".join(TRAINERS))
    add("--way", default="", help="loading method, for trainers with several; see the trainer's docs")
    add("--plan", default="", metavar="NAME[@REVISION]", help="default: ROLLOUTDECK_PLAN, else default")
    add("--steps", type=int, metavar="N", help="place files for the first N steps; default: all steps of the run")
    add("--config", type=Path, help="config of the replaying run: JSON, YAML or a file of overrides")
    skip_help = "leave out the steps that conflict with the plan's other steps, instead of refusing the plan"
    add("--skip-conflicts", action="store_true", help=skip_help)
    set_help = "settings of the replaying run, on top of its config on the server"
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=set_help)
    add_server_arguments(parser)


COMMANDS: dict[str, tuple[str, str, AddArguments]] = {
    "up": ("rolloutdeck.up", "start the server on this machine", add_up_arguments),
    "import": ("rolloutdeck.cli.folders.import_", "import existing dump folders into a run", _add_import),
    "watch": (
        "rolloutdeck.cli.folders.watch",
        "upload the files of a running training as they are written",
        _add_watch,
    ),
    "sync": ("rolloutdeck.cli.sync", "upload spool files that earlier processes left", _add_sync),
    "samples": ("rolloutdeck.cli.samples", "list samples of a run", _add_samples),
    "search": (
        "rolloutdeck.cli.search",
        "search the samples of all runs of a project that are not archived",
        _add_search,
    ),
    "export": ("rolloutdeck.cli.export", "write samples, labels or training data into a folder", _add_export),
    "labels": (
        "rolloutdeck.cli.review.labels",
        "labels of samples, rubrics, the reward check",
        add_labels_arguments,
    ),
    "rescore": (
        "rolloutdeck.cli.rescore.command",
        "run another reward function on stored samples",
        add_rescore_arguments,
    ),
    "judge": ("rolloutdeck.cli.rescore.judge", "ask a model about stored samples", add_judge_arguments),
    "pull": (
        "rolloutdeck.cli.plans.pull",
        "download a plan's files for a trainer that loads folders",
        _add_pull,
    ),
    "plan": ("rolloutdeck.cli.plans.plan", "show what a replay plan will do, and what it did in a run", _add_plan),
    "retention": ("rolloutdeck.cli.retention", "show what a project's retention policy would drop", _add_retention),
    "queues": ("rolloutdeck.cli.review.queues", "list, create and close review queues", add_queues_arguments),
    "guidance": (
        "rolloutdeck.cli.review.guidance",
        "rules by which labels act on running trainings",
        add_guidance_arguments,
    ),
    "token": ("rolloutdeck.cli.token", "create an API token", _add_token),
    "web": ("rolloutdeck.cli.server_commands", "run one web process, without a supervisor", add_web_arguments),
    "worker": ("rolloutdeck.cli.server_commands", "run one worker, without a supervisor", add_worker_arguments),
    "migrate": ("rolloutdeck.cli.server_commands", "create or upgrade the tables", add_migrate_arguments),
    "backup": ("rolloutdeck.cli.server_commands", "back up a running server", add_backup_arguments),
    "restore": ("rolloutdeck.cli.server_commands", "restore a backup into a new data folder", add_restore_arguments),
    "copy-sqlite": (
        "rolloutdeck.cli.server_commands",
        "copy all rows of a stopped server from SQLite into the empty PostgreSQL database of DATABASE_URL",
        add_copy_sqlite_arguments,
    ),
    "fsck": ("rolloutdeck.cli.server_commands", "find and repair lost or damaged files", add_fsck_arguments),
    "forget": ("rolloutdeck.cli.server_commands", "remove a prompt and its samples everywhere", add_forget_arguments),
    "storage": ("rolloutdeck.cli.server_commands", "move the stored files to a bucket or back", add_storage_arguments),
    "account": (
        "rolloutdeck.cli.server_commands",
        "show an account, make it a server admin, or disable it",
        add_account_arguments,
    ),
    "link-account": (
        "rolloutdeck.cli.server_commands",
        "let a person of the sign-in service sign in as an account that exists",
        add_link_account_arguments,
    ),
    "reset-second-factor": (
        "rolloutdeck.cli.server_commands",
        "remove the second factor of a user who lost it",
        add_reset_second_factor_arguments,
    ),
    "check": ("rolloutdeck.cli.check", "find trainer settings that would lose samples", _add_check),
}


class PrintVersion(argparse.Action):
    """Reads the version only if it is wanted, since this takes longer than parsing the arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from rolloutdeck.lib import read_version

        print(f"rolloutdeck {read_version()}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    description = "See what your model generates during reinforcement learning."
    top = argparse.ArgumentParser(prog="rolloutdeck", description=description)
    top.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, summary, add) in COMMANDS.items():
        add(commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + "."))
    return top


def reorder_check_arguments(words: Sequence[str]) -> list[str]:
    """Moves the options of `check` to the front, before `--`: all other words, flags included, are trainer settings.

    Returns the words of any other command unchanged.
    """
    if list(words[:1]) != ["check"]:
        return list(words)
    check_words, trainer_words, rest = list[str](), list[str](), list(words[1:])
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if word.partition("=")[0] not in ("--trainer", "--config", "-h", "--help"):
            trainer_words.append(word)
            continue
        check_words.append(word)
        if rest and word in ("--trainer", "--config"):
            check_words.append(rest.pop(0))
    return ["check", *check_words, "--", *trainer_words, *(word for word in rest if word != "--")]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status; every expected error is printed as one message."""
    words = reorder_check_arguments(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser().parse_args(words, argparse.Namespace(words=words[1:]))
    except SystemExit as end:  # argparse has printed the reason
        return end.code if isinstance(end.code, int) else 2
    try:
        status: int = importlib.import_module(COMMANDS[args.command][0]).main(args)
        sys.stdout.flush()
        return status
    except UsageError as error:
        print(error, file=sys.stderr)
    except BrokenPipeError:  # the reader, for example `| head`, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"{error.filename or args.command}: {error.strerror or error}.", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2
