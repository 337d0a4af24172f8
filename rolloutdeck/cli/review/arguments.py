"""The arguments of `rolloutdeck labels`, `rolloutdeck queues` and `rolloutdeck guidance`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rolloutdeck.cli.common import add_run_arguments, add_server_arguments
from rolloutdeck.protocol import LABEL_SOURCES, SPLITS

# What each command does and prints, and which scope its access token needs, for `--help` and docs/commands.md.
LABEL_TEXTS = {
    "list": "Print the labels of one run as a table, the newest first. Needs an access token with the scope read.",
    "add": (
        "Store one label of a sample, or all labels of a file in JSON lines. A person, function or model that "
        "labels a sample again replaces its earlier value. Needs the scope annotate. Prints whether something "
        "changed."
    ),
    "import": (
        "Store the labels of a file in a project, also from another server or program: the samples are found by "
        "their id, by run, step and group, or by their texts. Needs the scope annotate. Prints how many labels "
        "are new or changed, and each row that was not imported with the reason."
    ),
    "rubric": (
        "Print the questions of a project and its guidelines as JSON. With --set, save a file of this form as the "
        "next version, which needs the scope admin and the role maintainer."
    ),
    "reward-check": (
        "Compare the answers of people to one question of the rubric with the score of the trainer: how often a "
        "rewarded sample is good and a good one is rewarded, with 95 % intervals. Needs labels of people in the "
        "run, and the scope read. With --against or --than, also print what changes to another run or to other "
        "steps."
    ),
}
GUIDANCE_TEXTS = {
    "show": (
        "Print the rules by which labels act on running trainings, as JSON that `guidance set` reads. Needs the "
        "scope read."
    ),
    "set": (
        "Save the rules of a JSON file as the next version; running trainings follow it from their next step on. "
        "Needs the scope admin and the role maintainer. Prints the number of the version."
    ),
    "history": "List who saved which version of the rules and when, the newest first. Needs the scope read.",
}
QUEUE_TEXTS = {
    "list": "List review queues, each with its id, its progress and its due date. Needs the scope read.",
    "create": (
        "Draw samples or groups of one or more runs with a query, and put them into a review queue, which people "
        "answer in the browser. Needs the scope annotate and the role maintainer. Prints the URL of the queue; "
        "--dry-run prints only how many items it would have."
    ),
    "show": "Print the progress of a queue and, for maintainers, of each person. Needs the scope read.",
    "answers": (
        "Print all items of a queue with the answers of each person, one JSON object per line. Needs the scope "
        "read and the role maintainer."
    ),
    "agreement": (
        "Print for each question how far people agree about the items that two or more of them have answered: "
        "equal answers, Krippendorff's alpha, Cohen's kappa of each pair of people, with 95 % intervals. Needs "
        "the scope read and the role maintainer."
    ),
    "close": (
        "End a queue: nobody can answer its items any more; its answers stay. Needs the scope annotate and the "
        "role maintainer."
    ),
    "reopen": (
        "Open a closed queue again, so that people can answer its items. Needs the scope annotate and the role "
        "maintainer."
    ),
}


def add_labels_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list | add | import | rubric | reward-check")
    shown = verbs.add_parser("list", help="list the labels of a run", description=LABEL_TEXTS["list"])
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
    added = verbs.add_parser("add", help="store a label, or a file of labels", description=LABEL_TEXTS["add"])
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
    import_help = "import labels that `export` or another program wrote"
    _add_import_arguments(verbs.add_parser("import", help=import_help, description=LABEL_TEXTS["import"]))
    rubric_help = "print the questions of a project as JSON, or change them"
    rubric = verbs.add_parser("rubric", help=rubric_help, description=LABEL_TEXTS["rubric"])
    rubric.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT")
    rubric.add_argument("--version", type=int, metavar="N", help="default: the newest")
    rubric.add_argument("--set", type=Path, metavar="FILE", help="save this JSON file as the next version")
    add_server_arguments(rubric)

    check_help = "compare what people say with the score"
    check = verbs.add_parser("reward-check", help=check_help, description=LABEL_TEXTS["reward-check"])
    _add_reward_check_arguments(check)


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
    show = verbs.add_parser("show", help="print the rules of a project as JSON", description=GUIDANCE_TEXTS["show"])
    show.add_argument("--version", type=int, metavar="N", help="default: the newest")
    show.add_argument("--selection", action="store_true", help="print what each rule selects now instead")
    set_help = "save a JSON file, as `show` prints it, as the next version"
    save = verbs.add_parser("set", help=set_help, description=GUIDANCE_TEXTS["set"])
    save.add_argument("file", type=Path, metavar="FILE", help="JSON as `guidance show` prints it")
    history_help = "list the versions, the newest first"
    history = verbs.add_parser("history", help=history_help, description=GUIDANCE_TEXTS["history"])
    history.add_argument("--json", action="store_true", help="print one JSON object per line")
    for verb in (show, save, history):
        verb.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT")
        add_server_arguments(verb)


def add_queues_arguments(parser: argparse.ArgumentParser) -> None:
    metavar = "list | create | show | answers | agreement | close | reopen"
    verbs = parser.add_subparsers(dest="verb", required=True, metavar=metavar)
    listed = verbs.add_parser("list", help="list queues with their progress", description=QUEUE_TEXTS["list"])
    listed.add_argument("--project", default="", help="default: ROLLOUTDECK_PROJECT, else all projects")
    listed.add_argument("--state", choices=("open", "closed", "mine", "all"), default="open", help="default: open")
    listed.add_argument("--json", action="store_true", help="print one JSON object per line")
    create = verbs.add_parser("create", help="create a queue from a query", description=QUEUE_TEXTS["create"])
    _add_queue_arguments(create)
    summaries = {
        "show": "show a queue and the progress of its people",
        "answers": "print all items with their answers, one JSON object per line",
        "agreement": "print how far people agree, with 95 %% intervals",
        "close": "end a queue; its answers stay",
        "reopen": "open a closed queue again",
    }
    for name, summary in summaries.items():
        verb = verbs.add_parser(name, help=summary, description=QUEUE_TEXTS[name])
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
