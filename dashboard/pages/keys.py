"""The keyboard, in one table: the footer, the help and the script all come from it.

A key presses the page's element with the same `data-key`, so every key has a visible button or link. After `o` a key
presses the link with the same `data-go`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """`foot` is the short name in the footer; without one the key is only in the help. `then`: its keys are pressed one
    after the other; otherwise each of them does what is said."""

    keys: str
    does: str
    pages: tuple[str, ...] = ()
    foot: str = ""
    then: bool = False


STEP = ("step",)
READ = ("step", "sample")
BOARD = ("group",)
HISTORY = ("prompt",)
FEED = ("live",)
COMPARE = ("compare",)
FINDING = ("finding",)
RUNS = ("runs",)
OVERVIEW = ("run",)
RUN = ("run", "step", "sample", "prompt", "group")
# Where a link can be copied that is not a sample's.
LINKED = ("run", "step", "sample", "prompt", "group", "compare", "runs", "live", "pins", "findings", "finding")
# Pages of a step, which can be the latest one, whichever that is.
FOLLOWS = ("step", "group", "compare")

KEYS = (
    Key("j k", "next, previous sample in this list", STEP, foot="sample"),
    Key("w", "worst sample of the latest step", RUN, foot="worst"),
    Key("f", "flag, then 1–6 for the reason or Enter for a text", READ, foot="flag"),
    Key("u", "undo your last flags in this run", READ),
    Key(
        "x",
        "select this row; then f flags all that are selected (shift-click selects a run of rows)",
        STEP,
        foot="select",
    ),
    Key("X", "select all rows from the last selected one to this one", STEP),
    Key("q", "add this to a finding, with the selected text as its quote", READ, foot="finding"),
    Key("Q", "copy run, step, score, the selected text and the link for a chat", READ),
    Key("q", "add charts to a finding", ("run",), foot="finding"),
    Key("Q", "copy the finding for a chat", FINDING),
    Key("e", "the finding as one HTML file", FINDING),
    Key("p", "pin this step, or see its pin", READ, foot="pin"),
    Key("h l", "other response of the group", READ, foot="response"),
    Key("g", "group board: all responses side by side", READ, foot="group"),
    Key("J K", "next, previous group of this result", BOARD, foot="group"),
    Key("1–8", "to the response of this number", BOARD, foot="response"),
    Key("d", "word diff against the best response", BOARD, foot="diff"),
    Key("e", "every response whole, or only its end", BOARD, foot="whole"),
    Key("j k", "next, previous prompt, side by side", COMPARE, foot="prompt"),
    Key("h l", "other response of the prompt", COMPARE),
    Key("d", "word diff against the first", COMPARE, foot="diff"),
    Key("[ ]", "same prompt, step before and after", READ, foot="same prompt"),
    Key("[ ]", "step before and after that has this prompt", HISTORY, foot="step"),
    Key("d", "word diff of the two answers, or side by side", HISTORY, foot="diff"),
    Key("{ }", "first, latest step", STEP),
    Key("r", "read raw", READ),
    Key("m", "read with math and Markdown", READ),
    Key("d", "word diff: against the best of the group first", READ, foot="diff"),
    Key("v", "compare with the next: worst, a step earlier, another run", READ),
    Key("T", "read turns: tool calls beside their results", READ),
    Key("t", "read tokens, where they were recorded", READ),
    Key(".", "next change of the diff, next unlikely token", READ),
    Key("F", "find in this sample", READ, foot="find"),
    Key("i", "everything as JSON", READ),
    Key("Enter", "sample over the full width", STEP),
    Key("n", "show what has arrived", (*STEP, *FEED), foot="what is new"),
    Key("Space", "let the feed rest, or run on", FEED, foot="pause"),
    Key("/", "query", STEP, foot="query"),
    Key("s", "sort menu", STEP),
    Key("/", "filter", ("runs", "run", "live", "findings"), foot="filter"),
    Key("v", "lay another run over the charts", OVERVIEW, foot="overlay"),
    Key("l", "logarithmic axes, or linear ones", OVERVIEW, foot="log"),
    Key("x", "charts over steps, or over time", OVERVIEW, foot="steps or time"),
    Key("← →", "on a chart: its points; Enter opens the step of one", OVERVIEW),
    Key("j k", "next, previous run", RUNS, foot="run"),
    Key("x", "select the run; shift and a click select a span", RUNS, foot="select"),
    Key("c", "compare the selected runs", RUNS),
    Key("c", "compare this step with another", (*RUN, "compare")),
    Key("y", "copy the link to exactly this, the step resolved", LINKED),
    Key("Y", "copy the link that keeps following the latest step", FOLLOWS),
    Key("o o", "overview of the run", RUN, then=True),
    Key("o s", "samples of its latest step", RUN, then=True),
    Key("o r", "runs", then=True),
    Key("o l", "live", then=True),
    Key("o c", "compare", then=True),
    Key("o p", "pins", then=True),
    Key("o f", "findings", then=True),
    Key("o e", "settings", then=True),
    Key("Ctrl+K", "go to a run, a step, a page; or do what this page can"),
    Key("Esc", "back; leave a field"),
    Key("?", "this table", foot="all keys"),
)

EVERYWHERE = "Everywhere"
GO = "Go to"
# The title of the keys that belong to these pages, where another page shows them.
TITLES = {
    STEP: "Samples of a step",
    READ: "A sample",
    BOARD: "Group board",
    HISTORY: "One prompt over steps",
    FEED: "Live",
    RUN: "Pages of a run",
    COMPARE: "Compare",
}


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    keys: list[Key]


def keys_for(page: str | None) -> list[Key]:
    return [key for key in KEYS if not key.pages or page in key.pages]


def here(page: str | None) -> list[Section]:
    """What can be pressed on this page: its own keys, where it goes, what is the same everywhere."""
    valid = keys_for(page)
    own = [key for key in valid if key.pages and not key.then]
    named = [
        ("This page", own),
        (GO, [key for key in valid if key.then]),
        (EVERYWHERE, [key for key in valid if not key.pages and not key.then]),
    ]
    return [Section(title, keys) for title, keys in named if keys]


def elsewhere(page: str | None) -> list[Section]:
    """The keys of all other pages, by what they belong to."""
    found: dict[str, list[Key]] = {}
    for key in KEYS:
        if key.pages and page not in key.pages:
            title = GO if key.then else TITLES.get(key.pages, key.pages[0].capitalize())
            found.setdefault(title, []).append(key)
    return [Section(title, keys) for title, keys in found.items()]
