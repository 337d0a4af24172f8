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
    Shortcut("j k", N_("next / previous sample in this list"), STEP, foot=N_("sample")),
    Shortcut("w", N_("worst sample of the latest step"), RUN, foot=N_("worst")),
    Shortcut("f", N_("flag, then press 1–6 for a reason or Enter to add a comment"), FLAGGED, foot=N_("flag")),
    Shortcut("j k", N_("next / previous sample in the queue"), REVIEW, foot=N_("sample")),
    Shortcut("1–9", N_("flag with this reason and go to the next sample"), REVIEW, foot=N_("flag")),
    Shortcut("a", N_("mark as OK and go to the next sample"), READ, foot=N_("OK")),
    Shortcut("n", N_("next batch, after this one is complete"), REVIEW),
    Shortcut("u", N_("undo your last action in this run"), FLAGGED),
    Shortcut(
        "x",
        N_("select this row (Shift+click selects a range), then press f to flag all selected rows"),
        STEP,
        foot=N_("select"),
    ),
    Shortcut("X", N_("select all rows from the last selected row to this one"), STEP),
    Shortcut("q", N_("add this to a finding, with the selected text as a quote"), TOLD, foot=N_("finding")),
    Shortcut("Q", N_("copy run, step, score, selected text and link as a message"), TOLD),
    Shortcut("q", N_("add charts to a finding"), ("run",)),
    Shortcut("Q", N_("copy the finding as a message"), FINDING),
    Shortcut("e", N_("export the finding as one HTML file"), FINDING),
    Shortcut("p", N_("pin this step or view its pin"), ONE, foot=N_("pin")),
    Shortcut("h l", N_("previous / next response in the group"), READ, foot=N_("response")),
    Shortcut("g", N_("group view: all responses side by side"), READ, foot=N_("group")),
    Shortcut("J K", N_("next / previous group in this result"), BOARD, foot=N_("group")),
    Shortcut("1–8", N_("go to the response with this number"), BOARD, foot=N_("response")),
    Shortcut(
        "d", N_("word diff against the best response (collapsed responses: when expanded)"), BOARD, foot=N_("diff")
    ),
    Shortcut("e", N_("expand all responses, or show only their ends"), BOARD, foot=N_("expand")),
    Shortcut("j k", N_("next / previous prompt, side by side"), COMPARE, foot=N_("prompt")),
    Shortcut("h l", N_("previous / next response to the prompt"), COMPARE),
    Shortcut("d", N_("word diff against the first"), COMPARE, foot=N_("diff")),
    Shortcut("[ ]", N_("same prompt at the previous / next step"), READ, foot=N_("same prompt")),
    Shortcut("[ ]", N_("previous / next step with this prompt"), HISTORY, foot=N_("step")),
    Shortcut("d", N_("switch between word diff and side by side"), HISTORY, foot=N_("diff")),
    Shortcut("{ }", N_("first / latest step"), STEP),
    Shortcut("r", N_("raw view"), READ),
    Shortcut("m", N_("view with math and Markdown"), READ),
    Shortcut("d", N_("word diff, first against the best response in the group"), READ, foot=N_("diff")),
    Shortcut("v", N_("compare with the next: worst response, earlier step, other run"), READ),
    Shortcut("T", N_("turns view: tool calls next to their results"), READ),
    Shortcut("t", N_("token view (if tokens were recorded)"), READ),
    Shortcut(".", N_("next change in the diff, or next low-probability token"), READ),
    Shortcut("F", N_("find in this sample"), READ, foot=N_("find")),
    Shortcut("i", N_("JSON view: all fields"), READ),
    Shortcut("Enter", N_("show the sample at full width"), STEP),
    Shortcut("n", N_("show new content"), (*STEP, *FEED), foot=N_("show new")),
    Shortcut("Space", N_("pause or resume the feed"), FEED, foot=N_("pause")),
    Shortcut("/", N_("query"), STEP, foot=N_("query")),
    Shortcut("s", N_("sort menu"), STEP),
    Shortcut("/", N_("filter"), ("runs", "run", "live", "findings"), foot=N_("filter")),
    Shortcut("v", N_("overlay another run"), OVERVIEW, foot=N_("overlay")),
    Shortcut("l", N_("switch between logarithmic and linear axes"), OVERVIEW, foot=N_("log")),
    Shortcut("x", N_("switch the x-axis between steps and time"), OVERVIEW, foot=N_("steps / time")),
    Shortcut("← →", N_("on a chart: move between points; Enter opens the step"), OVERVIEW),
    Shortcut("j k", N_("next / previous run"), RUNS, foot=N_("run")),
    Shortcut("x", N_("select the run (Shift+click selects a range)"), RUNS, foot=N_("select")),
    Shortcut("c", N_("compare the selected runs"), RUNS),
    Shortcut("c", N_("compare this step with another"), (*RUN, "compare")),
    Shortcut("y", N_("copy permalink (fixed step)"), PERMALINK_PAGES),
    Shortcut("Y", N_("copy link to the latest step"), LATEST_STEP_PAGES),
    Shortcut("o o", N_("run overview"), RUN, then=True),
    Shortcut("o s", N_("samples of the latest step"), RUN, then=True),
    Shortcut("o r", N_("runs"), then=True),
    Shortcut("o l", N_("live"), then=True),
    Shortcut("o c", N_("compare"), then=True),
    Shortcut("o v", N_("review"), then=True),
    Shortcut("o p", N_("pins"), then=True),
    Shortcut("o f", N_("findings"), then=True),
    Shortcut("o e", N_("settings"), then=True),
    Shortcut("Ctrl+K", N_("jump to a run, step or page, or run a command")),
    Shortcut("Esc", N_("go back, or leave an input field")),
    Shortcut("?", N_("show the keyboard shortcuts"), foot=N_("all shortcuts")),
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
EVERYWHERE = N_("All pages")
GO = N_("Go to")
# The title of the keys that belong to these pages, where another page shows them.
SECTION_TITLES = {
    STEP: N_("Samples of a step"),
    READ: N_("A sample"),
    FLAGGED: N_("A sample"),
    TOLD: N_("A sample"),
    ONE: N_("A sample"),
    REVIEW: N_("Review"),
    BOARD: N_("Group view"),
    HISTORY: N_("Prompt history"),
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
