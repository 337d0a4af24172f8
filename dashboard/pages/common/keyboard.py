"""The keyboard, in one table: the footer, the help and the script all come from it.

A key presses the page's element with the same `data-key`, so every key has a visible button or link. After `o` a key
presses the link with the same `data-go`.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_noop as N_

from rollouts.lib import MAX_KEYBOARD_TEXTS, cached


@dataclass(frozen=True, slots=True)
class Shortcut:
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
PERMALINK_PAGES = (
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
LATEST_STEP_PAGES = ("step", "group", "compare")

SHORTCUTS = (
    Shortcut("j k", N_("next, previous sample in this list"), STEP, foot=N_("sample")),
    Shortcut("w", N_("worst sample of the latest step"), RUN, foot=N_("worst")),
    Shortcut("f", N_("flag, then 1–6 for the reason or Enter for a text"), FLAGGED, foot=N_("flag")),
    Shortcut("j k", N_("next, previous sample of the queue"), REVIEW, foot=N_("sample")),
    Shortcut("1–9", N_("flag for this reason, and on to the next"), REVIEW, foot=N_("flag")),
    Shortcut("a", N_("nothing wrong with it; on to the next"), READ, foot=N_("fine")),
    Shortcut("n", N_("next batch of the queue, when this one is done"), REVIEW),
    Shortcut("u", N_("undo your last flags, or your last “fine”, in this run"), FLAGGED),
    Shortcut(
        "x",
        N_("select this row; then f flags all that are selected (shift-click selects a run of rows)"),
        STEP,
        foot=N_("select"),
    ),
    Shortcut("X", N_("select all rows from the last selected one to this one"), STEP),
    Shortcut("q", N_("add this to a finding, with the selected text as its quote"), TOLD, foot=N_("finding")),
    Shortcut("Q", N_("copy run, step, score, the selected text and the link for a chat"), TOLD),
    Shortcut("q", N_("add charts to a finding"), ("run",)),
    Shortcut("Q", N_("copy the finding for a chat"), FINDING),
    Shortcut("e", N_("the finding as one HTML file"), FINDING),
    Shortcut("p", N_("pin this step, or see its pin"), ONE, foot=N_("pin")),
    Shortcut("h l", N_("other response of the group"), READ, foot=N_("response")),
    Shortcut("g", N_("group board: all responses side by side"), READ, foot=N_("group")),
    Shortcut("J K", N_("next, previous group of this result"), BOARD, foot=N_("group")),
    Shortcut("1–8", N_("to the response of this number"), BOARD, foot=N_("response")),
    Shortcut("d", N_("word diff against the best response; folded ones when they open"), BOARD, foot=N_("diff")),
    Shortcut("e", N_("every response whole, or only its end"), BOARD, foot=N_("whole")),
    Shortcut("j k", N_("next, previous prompt, side by side"), COMPARE, foot=N_("prompt")),
    Shortcut("h l", N_("other response of the prompt"), COMPARE),
    Shortcut("d", N_("word diff against the first"), COMPARE, foot=N_("diff")),
    Shortcut("[ ]", N_("same prompt, step before and after"), READ, foot=N_("same prompt")),
    Shortcut("[ ]", N_("step before and after that has this prompt"), HISTORY, foot=N_("step")),
    Shortcut("d", N_("word diff of the two answers, or side by side"), HISTORY, foot=N_("diff")),
    Shortcut("{ }", N_("first, latest step"), STEP),
    Shortcut("r", N_("read raw"), READ),
    Shortcut("m", N_("read with math and Markdown"), READ),
    Shortcut("d", N_("word diff: against the best of the group first"), READ, foot=N_("diff")),
    Shortcut("v", N_("compare with the next: worst, a step earlier, another run"), READ),
    Shortcut("T", N_("read turns: tool calls beside their results"), READ),
    Shortcut("t", N_("read tokens, where they were recorded"), READ),
    Shortcut(".", N_("next change of the diff, next unlikely token"), READ),
    Shortcut("F", N_("find in this sample"), READ, foot=N_("find")),
    Shortcut("i", N_("everything as JSON"), READ),
    Shortcut("Enter", N_("sample over the full width"), STEP),
    Shortcut("n", N_("show what has arrived"), (*STEP, *FEED), foot=N_("what is new")),
    Shortcut("Space", N_("let the feed rest, or run on"), FEED, foot=N_("pause")),
    Shortcut("/", N_("query"), STEP, foot=N_("query")),
    Shortcut("s", N_("sort menu"), STEP),
    Shortcut("/", N_("filter"), ("runs", "run", "live", "findings"), foot=N_("filter")),
    Shortcut("v", N_("lay another run over the charts"), OVERVIEW, foot=N_("overlay")),
    Shortcut("l", N_("logarithmic axes, or linear ones"), OVERVIEW, foot=N_("log")),
    Shortcut("x", N_("charts over steps, or over time"), OVERVIEW, foot=N_("steps or time")),
    Shortcut("← →", N_("on a chart: its points; Enter opens the step of one"), OVERVIEW),
    Shortcut("j k", N_("next, previous run"), RUNS, foot=N_("run")),
    Shortcut("x", N_("select the run; shift and a click select a span"), RUNS, foot=N_("select")),
    Shortcut("c", N_("compare the selected runs"), RUNS),
    Shortcut("c", N_("compare this step with another"), (*RUN, "compare")),
    Shortcut("y", N_("copy the link to exactly this, the step resolved"), PERMALINK_PAGES),
    Shortcut("Y", N_("copy the link that keeps following the latest step"), LATEST_STEP_PAGES),
    Shortcut("o o", N_("overview of the run"), RUN, then=True),
    Shortcut("o s", N_("samples of its latest step"), RUN, then=True),
    Shortcut("o r", N_("runs"), then=True),
    Shortcut("o l", N_("live"), then=True),
    Shortcut("o c", N_("compare"), then=True),
    Shortcut("o v", N_("review"), then=True),
    Shortcut("o p", N_("pins"), then=True),
    Shortcut("o f", N_("findings"), then=True),
    Shortcut("o e", N_("settings"), then=True),
    Shortcut("Ctrl+K", N_("go to a run, a step, a page; or do what this page can")),
    Shortcut("Esc", N_("back; leave a field")),
    Shortcut("?", N_("this table"), foot=N_("all keys")),
)

# What a page is called in its heading, and over its keys on other pages.
PAGE_TITLES = {
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
SECTION_TITLES = {
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
class ShortcutSection:
    title: str
    keys: list[Shortcut]


def find_page_shortcuts(page: str | None) -> list[Shortcut]:
    return [key for key in SHORTCUTS if not key.pages or page in key.pages]


def build_page_sections(page: str | None) -> list[ShortcutSection]:
    """What can be pressed on this page: its own keys, where it goes, what is the same everywhere."""
    valid = find_page_shortcuts(page)
    own = [key for key in valid if key.pages and not key.then]
    named = [
        (N_("This page"), own),
        (GO, [key for key in valid if key.then]),
        (EVERYWHERE, [key for key in valid if not key.pages and not key.then]),
    ]
    return [ShortcutSection(title, keys) for title, keys in named if keys]


def build_other_pages_sections(page: str | None) -> list[ShortcutSection]:
    """The keys of all other pages, by what they belong to."""
    found: dict[str, list[Shortcut]] = {}
    for key in SHORTCUTS:
        if key.pages and page not in key.pages:
            title = GO if key.then else SECTION_TITLES.get(key.pages) or PAGE_TITLES[key.pages[0]]
            found.setdefault(title, []).append(key)
    return [ShortcutSection(title, keys) for title, keys in found.items()]


@cached(MAX_KEYBOARD_TEXTS)
def render_footer(page: str | None, language: str) -> SafeString:
    """The keys that the footer names."""
    return render_to_string("common/footer.html", {"keys": [key for key in find_page_shortcuts(page) if key.foot]})


@cached(MAX_KEYBOARD_TEXTS)
def render_help_dialog(page: str | None, language: str, single_keys: bool) -> SafeString:
    """Drawn once for each page and language: every page has it, and nothing in it changes."""
    told = {
        "here": build_page_sections(page),
        "elsewhere": build_other_pages_sections(page),
        "single_keys": single_keys,
    }
    return render_to_string("common/help.html", told)
