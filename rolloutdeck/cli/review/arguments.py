"""The arguments of `rolloutdeck labels`, `rolloutdeck queues` and `rolloutdeck guidance`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rolloutdeck.cli.common import add_run_arguments, add_server_arguments
from rolloutdeck.protocol import LABEL_SOURCES, SPLITS


def add_labels_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list | add | import | rubric | reward-check")
    shown = verbs.add_parser("list", help="list the labels of a run")
    add_run_arguments(shown)
    shown.add_argument("--sample", default="", metavar="ID", help="labels of this sample only")
    shown.add_argument("--name", default="", help="a question of the rubric, review, flag or flag.REASON")
    shown.add_argument("--author", default="", help="a user, a function or a model")
    shown.add_argument("--source", choices=LABEL_SOURCES, default="", help="default: all")
    shown.add_argument("--split", choices=SPLITS, default="", help="default: both")
    shown.add_argument("--step", type=int, metavar="N", help="default: all steps")
    shown.add_argument("--withdrawn", action="store_true", help="also withdrawn labels")
    shown.add_argument("--json", action="store_true", help="print one JSON object per line")
    add_server_arguments(shown)
    added = verbs.add_parser("add", help="store a label, or a file of labels")
    added.add_argument("sample", nargs="?", default="", metavar="SAMPLE", help="id of the sample")
    added.add_argument("name", nargs="?", default="", metavar="NAME", help="key of the question")
    added.add_argument("value", nargs="?", default="", metavar="VALUE", help="JSON, for example true or 4; else a text")
    file_help = "JSON lines {sample, name, value, rationale, source, author, start, end}"
    added.add_argument("--file", type=Path, metavar="FILE", help=file_help)
    added.add_argument("--rationale", default="", help="why")
    added.add_argument("--source", choices=LABEL_SOURCES, default="", help="default: human")
    added.add_argument("--author", default="", help="name of the function or model, if the source is not human")
    added.add_argument("--start", type=int, metavar="N", help="first character of the response that it is about")
    added.add_argument("--end", type=int, metavar="N", help="the character after the last one")
    add_server_arguments(added)
    _add_import_arguments(verbs.add_parser("import", help="import labels that `export` or another program wrote"))
    rubric = verbs.add_parser("rubric", help="print the questions of a project as JSON, or change them")
    rubric.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    rubric.add_argument("--version", type=int, metavar="N", help="default: the newest")
    rubric.add_argument("--set", type=Path, metavar="FILE", help="save this JSON file as the next version")
    add_server_arguments(rubric)

    _add_reward_check_arguments(verbs.add_parser("reward-check", help="compare what people say with the score"))


def _add_import_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    file_help = "JSON lines, also .gz; the folder or ZIP file of an export of labels; or - for standard input"
    add("file", type=Path, metavar="FILE", help=file_help)
    add("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    add("--run", default="", help="run of rows that name none, or one that the project does not have")
    add("--all-matches", action="store_true", help="a row labels all samples that it matches")
    add("--dry-run", action="store_true", help="only print what would change")
    add("--unmatched", type=Path, metavar="FILE", help="write the rows that were not imported, each with its problem")
    add("--json", action="store_true", help="print the counts as JSON")
    add_server_arguments(parser)


def _add_reward_check_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_run_arguments(parser)
    add("--question", default="", metavar="KEY", help="a question of the rubric; default: the first one that fits")
    add("--good", default="", metavar="A,B", help="answers that call a sample good; default: the first one")
    add("--threshold", default="", metavar="SCORE", help="a sample is rewarded from this score on; default: the best")
    add("--steps", default="", metavar="41-80", help="steps that count; default: all")
    add("--against", default="", metavar="RUN", help="print what changes to this run")
    add("--than", default="", metavar="1-40", help="print what changes to these steps")
    add("--json", action="store_true", help="print the server's JSON response")
    add_server_arguments(parser)


def add_guidance_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show | set | history")
    show = verbs.add_parser("show", help="print the rules of a project as JSON")
    show.add_argument("--version", type=int, metavar="N", help="default: the newest")
    show.add_argument("--selection", action="store_true", help="print what each rule selects now instead")
    save = verbs.add_parser("set", help="save a JSON file, as `show` prints it, as the next version")
    save.add_argument("file", type=Path, metavar="FILE", help="JSON as `guidance show` prints it")
    history = verbs.add_parser("history", help="list the versions, the newest first")
    history.add_argument("--json", action="store_true", help="print one JSON object per line")
    for verb in (show, save, history):
        verb.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT")
        add_server_arguments(verb)


def add_queues_arguments(parser: argparse.ArgumentParser) -> None:
    metavar = "list | create | show | answers | agreement | close | reopen"
    verbs = parser.add_subparsers(dest="verb", required=True, metavar=metavar)
    listed = verbs.add_parser("list", help="list queues with their progress")
    listed.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT, else all projects")
    listed.add_argument("--state", choices=("open", "closed", "mine", "all"), default="open", help="default: open")
    listed.add_argument("--json", action="store_true", help="print one JSON object per line")
    create = verbs.add_parser("create", help="create a queue from a query")
    _add_queue_arguments(create)
    summaries = {
        "show": "show a queue and the progress of its people",
        "answers": "print all items with their answers, one JSON object per line",
        "agreement": "print how far people agree, with 95 %% intervals",
        "close": "end a queue; its answers stay",
        "reopen": "open a closed queue again",
    }
    for name, summary in summaries.items():
        verb = verbs.add_parser(name, help=summary)
        verb.add_argument("queue", metavar="QUEUE", help="id or name")
        verb.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT, else all projects")
        if name in ("show", "agreement"):
            verb.add_argument("--json", action="store_true", help="print the server's JSON response")
        add_server_arguments(verb)
    add_server_arguments(listed)
    add_server_arguments(create)


def _add_queue_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", help="shown to the reviewers; keep it neutral in a blind queue")
    add("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    add("--run", action="append", default=[], metavar="RUN", help="a run; repeatable; default: ROLLOUTDECK_RUN")
    add("--q", default="", metavar="QUERY", help="search query as in the web UI; default: all samples")
    add("--unit", choices=("sample", "group"), default="", help="group: responses to a prompt are put in order")
    add("--pairs", type=int, metavar="N", help="with --unit group: compare N pairs of responses instead")
    add("--selection", choices=("all", "random", "worst", "disagreeing"), default="", help="default: all")
    add("--per", choices=("queue", "step", "source"), default="", help="what --count is for; default: queue")
    add("--count", type=int, metavar="N", help="items drawn from each part")
    add("--seed", type=int, metavar="N", help="of the random draw; default: 1")
    add("--grows", action="store_true", help="also draw from later steps while the run trains")
    add("--question", action="append", default=[], metavar="KEY", help="a question of the rubric; default: all")
    add("--reviewers", type=int, metavar="N", help="answers that each item gets; default: 1")
    add("--minutes", type=int, metavar="N", help="how long an opened item belongs to a person; default: 30")
    add("--person", action="append", default=[], metavar="USER", help="who may answer; default: all annotators")
    add("--role", action="append", default=[], metavar="ROLE", help="members with this role may answer")
    add("--due", default="", metavar="TIME", help="in UTC, for example 2026-11-30T18:00")
    add("--blind", action="store_true", help="reviewers see no score, ground truth, run or label of others")
    add("--gold", type=int, metavar="N", help="mix in N items with your own answers, to compare people with")
    add("--dry-run", action="store_true", help="only print what would be drawn")
    add("--json", action="store_true", help="print the server's JSON response")
