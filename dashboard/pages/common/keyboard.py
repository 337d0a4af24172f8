"""The keyboard, in one table: the footer, the help and the script all come from it.

A key presses the page's element with the same `data-key`, so every key has a visible button or link. After `o` a key
presses the link with the same `data-go`.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_noop as N_

from rollouts.lib.cache import MAX_KEYBOARD_TEXTS, cached


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
ONE = ("step", "sample")
REVIEW = ("review",)
READ = ("step", "sample", "review")
BOARD = ("group",)
FLAGGED = (*READ, "group", "prompt")
TOLD = (*READ, "group", "prompt", "compare")
HISTORY = ("prompt",)
FEED = ("live",)
COMPARE = ("compare",)
FINDING = ("finding",)
RUNS = ("runs",)
OVERVIEW = ("run",)
RUN = ("run", "step", "sample", "prompt", "group", "review")
# Where a link can be copied that is not a sample's.
LINKED = (
    "run",
    "step",
    "sample",
    "prompt",
    "group",
    "compare",
    "runs",
    "live",
    "review",
    "pins",
    "findings",
    "finding",
)
# Pages of a step, which can be the latest one, whichever that is.
FOLLOWS = ("step", "group", "compare")

KEYS = (
    Key("j k", N_("next, previous sample in this list"), STEP, foot=N_("sample")),
    Key("w", N_("worst sample of the latest step"), RUN, foot=N_("worst")),
    Key("f", N_("flag, then 1–6 for the reason or Enter for a text"), FLAGGED, foot=N_("flag")),
    Key("j k", N_("next, previous sample of the queue"), REVIEW, foot=N_("sample")),
    Key("1–9", N_("flag for this reason, and on to the next"), REVIEW, foot=N_("flag")),
    Key("a", N_("nothing wrong with it; on to the next"), READ, foot=N_("fine")),
    Key("n", N_("next batch of the queue, when this one is done"), REVIEW),
    Key("u", N_("undo your last flags, or your last “fine”, in this run"), FLAGGED),
    Key(
        "x",
        N_("select this row; then f flags all that are selected (shift-click selects a run of rows)"),
        STEP,
        foot=N_("select"),
    ),
    Key("X", N_("select all rows from the last selected one to this one"), STEP),
    Key("q", N_("add this to a finding, with the selected text as its quote"), TOLD, foot=N_("finding")),
    Key("Q", N_("copy run, step, score, the selected text and the link for a chat"), TOLD),
    Key("q", N_("add charts to a finding"), ("run",)),
    Key("Q", N_("copy the finding for a chat"), FINDING),
    Key("e", N_("the finding as one HTML file"), FINDING),
    Key("p", N_("pin this step, or see its pin"), ONE, foot=N_("pin")),
    Key("h l", N_("other response of the group"), READ, foot=N_("response")),
    Key("g", N_("group board: all responses side by side"), READ, foot=N_("group")),
    Key("J K", N_("next, previous group of this result"), BOARD, foot=N_("group")),
    Key("1–8", N_("to the response of this number"), BOARD, foot=N_("response")),
    Key("d", N_("word diff against the best response; folded ones when they open"), BOARD, foot=N_("diff")),
    Key("e", N_("every response whole, or only its end"), BOARD, foot=N_("whole")),
    Key("j k", N_("next, previous prompt, side by side"), COMPARE, foot=N_("prompt")),
    Key("h l", N_("other response of the prompt"), COMPARE),
    Key("d", N_("word diff against the first"), COMPARE, foot=N_("diff")),
    Key("[ ]", N_("same prompt, step before and after"), READ, foot=N_("same prompt")),
    Key("[ ]", N_("step before and after that has this prompt"), HISTORY, foot=N_("step")),
    Key("d", N_("word diff of the two answers, or side by side"), HISTORY, foot=N_("diff")),
    Key("{ }", N_("first, latest step"), STEP),
    Key("r", N_("read raw"), READ),
    Key("m", N_("read with math and Markdown"), READ),
    Key("d", N_("word diff: against the best of the group first"), READ, foot=N_("diff")),
    Key("v", N_("compare with the next: worst, a step earlier, another run"), READ),
    Key("T", N_("read turns: tool calls beside their results"), READ),
    Key("t", N_("read tokens, where they were recorded"), READ),
    Key(".", N_("next change of the diff, next unlikely token"), READ),
    Key("F", N_("find in this sample"), READ, foot=N_("find")),
    Key("i", N_("everything as JSON"), READ),
    Key("Enter", N_("sample over the full width"), STEP),
    Key("n", N_("show what has arrived"), (*STEP, *FEED), foot=N_("what is new")),
    Key("Space", N_("let the feed rest, or run on"), FEED, foot=N_("pause")),
    Key("/", N_("query"), STEP, foot=N_("query")),
    Key("s", N_("sort menu"), STEP),
    Key("/", N_("filter"), ("runs", "run", "live", "findings"), foot=N_("filter")),
    Key("v", N_("lay another run over the charts"), OVERVIEW, foot=N_("overlay")),
    Key("l", N_("logarithmic axes, or linear ones"), OVERVIEW, foot=N_("log")),
    Key("x", N_("charts over steps, or over time"), OVERVIEW, foot=N_("steps or time")),
    Key("← →", N_("on a chart: its points; Enter opens the step of one"), OVERVIEW),
    Key("j k", N_("next, previous run"), RUNS, foot=N_("run")),
    Key("x", N_("select the run; shift and a click select a span"), RUNS, foot=N_("select")),
    Key("c", N_("compare the selected runs"), RUNS),
    Key("c", N_("compare this step with another"), (*RUN, "compare")),
    Key("y", N_("copy the link to exactly this, the step resolved"), LINKED),
    Key("Y", N_("copy the link that keeps following the latest step"), FOLLOWS),
    Key("o o", N_("overview of the run"), RUN, then=True),
    Key("o s", N_("samples of its latest step"), RUN, then=True),
    Key("o r", N_("runs"), then=True),
    Key("o l", N_("live"), then=True),
    Key("o c", N_("compare"), then=True),
    Key("o v", N_("review"), then=True),
    Key("o p", N_("pins"), then=True),
    Key("o f", N_("findings"), then=True),
    Key("o e", N_("settings"), then=True),
    Key("Ctrl+K", N_("go to a run, a step, a page; or do what this page can")),
    Key("Esc", N_("back; leave a field")),
    Key("?", N_("this table"), foot=N_("all keys")),
)

# What a page is called in its heading, and over its keys on other pages.
PAGES = {
    "runs": N_("Runs"),
    "run": N_("Run"),
    "step": N_("Step"),
    "sample": N_("Sample"),
    "group": N_("Group"),
    "prompt": N_("Prompt"),
    "live": N_("Live"),
    "compare": N_("Compare"),
    "review": N_("Review"),
    "pins": N_("Pins"),
    "findings": N_("Findings"),
    "finding": N_("Finding"),
    "settings": N_("Settings"),
    "project": N_("Project"),
    "members": N_("Members"),
    "tokens": N_("Tokens"),
}
EVERYWHERE = N_("Everywhere")
GO = N_("Go to")
# The title of the keys that belong to these pages, where another page shows them.
TITLES = {
    STEP: N_("Samples of a step"),
    READ: N_("A sample"),
    FLAGGED: N_("A sample"),
    TOLD: N_("A sample"),
    ONE: N_("A sample"),
    REVIEW: N_("Review"),
    BOARD: N_("Group board"),
    HISTORY: N_("One prompt over steps"),
    FEED: N_("Live"),
    RUN: N_("Pages of a run"),
    COMPARE: N_("Compare"),
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
        (N_("This page"), own),
        (GO, [key for key in valid if key.then]),
        (EVERYWHERE, [key for key in valid if not key.pages and not key.then]),
    ]
    return [Section(title, keys) for title, keys in named if keys]


def elsewhere(page: str | None) -> list[Section]:
    """The keys of all other pages, by what they belong to."""
    found: dict[str, list[Key]] = {}
    for key in KEYS:
        if key.pages and page not in key.pages:
            title = GO if key.then else TITLES.get(key.pages) or PAGES[key.pages[0]]
            found.setdefault(title, []).append(key)
    return [Section(title, keys) for title, keys in found.items()]


@cached(MAX_KEYBOARD_TEXTS)
def foot(page: str | None, language: str) -> SafeString:
    """The keys that the footer names."""
    return render_to_string("common/footer.html", {"keys": [key for key in keys_for(page) if key.foot]})


@cached(MAX_KEYBOARD_TEXTS)
def help_dialog(page: str | None, language: str, single_keys: bool) -> SafeString:
    """Drawn once for each page and language: every page has it, and nothing in it changes."""
    told = {"here": here(page), "elsewhere": elsewhere(page), "single_keys": single_keys}
    return render_to_string("common/help.html", told)
