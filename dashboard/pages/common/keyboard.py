"""The keyboard shortcuts in one table, for the footer, the help dialog and the script.

A key presses the element with the same `data-key`, so every key has a visible button or link. After `o`, a key presses
the link with the same `data-go`.
"""

from dataclasses import dataclass

from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext_noop as N_

from rollouts.lib import CacheSize, cached


@dataclass(frozen=True, slots=True)
class Shortcut:
    """`foot` is the short name in the footer; without it, only the help shows the keys. `keys` are alternatives, unless
    they are a `sequence`. No `pages` means all pages."""

    keys: str
    description: str
    pages: tuple[str, ...] = ()
    foot: str = ""
    sequence: bool = False


STEP = ("step",)
SAMPLE = ("step", "sample")
REVIEW = ("review",)
READER = ("step", "sample", "review")
QUEUE = ("queue-review",)
AGREEMENT = ("queue-agreement",)
GROUP = ("group",)
FLAGGABLE = (*READER, "group", "prompt")
QUOTABLE = (*READER, "group", "prompt", "compare")
PROMPT = ("prompt",)
LIVE = ("live",)
COMPARE = ("compare",)
FINDING = ("finding",)
RUNS = ("runs",)
SEARCH = ("search",)
PINS = ("pins",)
RUN_OVERVIEW = ("run",)
TIMELINE = ("timeline",)
CONTEXT = ("context",)
RUN_PAGES = ("run", "timeline", "context", "step", "sample", "prompt", "group", "review")
# Pages whose link can be copied.
PERMALINK_PAGES = (*RUN_PAGES, "compare", "runs", "search", "live", "pins", "findings", "finding")
# Pages that can show the latest step.
LATEST_STEP_PAGES = ("step", "group", "compare")

SHORTCUTS = (
    Shortcut("j k", N_("next / previous sample in this list"), STEP, foot=N_("sample")),
    Shortcut("w", N_("worst sample of the latest step"), RUN_PAGES, foot=N_("worst")),
    Shortcut("f", N_("flag, then press 1–9 for a reason or Enter to add a comment"), FLAGGABLE, foot=N_("flag")),
    Shortcut("j k", N_("next / previous sample in the list"), REVIEW, foot=N_("sample")),
    Shortcut("1–9", N_("flag with this reason and go to the next sample"), REVIEW, foot=N_("flag")),
    Shortcut("a", N_("mark as OK and go to the next sample"), READER, foot=N_("OK")),
    Shortcut("0", N_("say that you cannot judge it and go to the next sample"), REVIEW),
    Shortcut("b", N_("label the sample with the questions of the rubric"), READER, foot=N_("label")),
    Shortcut("1–9", N_("answer the question in focus, or give the response the next place"), QUEUE, foot=N_("answer")),
    Shortcut("Enter", N_("save the answers and open the next item"), QUEUE, foot=N_("save and next")),
    Shortcut("← →", N_("of a pair: the left or the right response is better"), QUEUE),
    Shortcut("=", N_("of a pair: equal; of an order: the same place"), QUEUE),
    Shortcut("Backspace", N_("the pair before, or take the last place back"), QUEUE),
    Shortcut("0", N_("cannot judge"), QUEUE, foot=N_("cannot judge")),
    Shortcut("s", N_("skip the item: it is offered to others"), QUEUE, foot=N_("skip")),
    Shortcut("u", N_("open your last answer again"), QUEUE, foot=N_("undo")),
    Shortcut("G", N_("guidelines"), QUEUE, foot=N_("guidelines")),
    Shortcut("j k", N_("next / previous item on which people differ"), AGREEMENT, foot=N_("item")),
    Shortcut("1–9", N_("decide for the answer of this person"), AGREEMENT, foot=N_("decide")),
    Shortcut("n", N_("create a queue"), ("queues",), foot=N_("create queue")),
    Shortcut("Enter", N_("continue with the first queue"), ("queues",), foot=N_("continue")),
    Shortcut("n", N_("next batch, after this one is complete"), REVIEW),
    Shortcut("u", N_("undo your last action in this run"), FLAGGABLE),
    Shortcut(
        "x",
        N_("select this row (Shift+click selects a range), then press f to flag all selected rows"),
        STEP,
        foot=N_("select"),
    ),
    Shortcut("X", N_("select all rows from the last selected row to this one"), STEP),
    Shortcut("q", N_("add this to a finding, with the selected text as a quote"), QUOTABLE, foot=N_("finding")),
    Shortcut("Q", N_("copy run, step, score, selected text and link as a message"), QUOTABLE),
    Shortcut("q", N_("add charts to a finding"), ("run",)),
    Shortcut("Q", N_("copy the finding as a message"), FINDING),
    Shortcut("e", N_("export the finding as one HTML file"), FINDING),
    Shortcut("p", N_("pin this step or view its pin"), SAMPLE, foot=N_("pin")),
    Shortcut("h l", N_("previous / next response in the group"), READER, foot=N_("response")),
    Shortcut("g", N_("group view: all responses side by side"), READER, foot=N_("group")),
    Shortcut("J K", N_("next / previous group in this result"), GROUP, foot=N_("group")),
    Shortcut("1–8", N_("go to the response with this number"), GROUP, foot=N_("response")),
    Shortcut(
        "d", N_("word diff against the best response (collapsed responses: when expanded)"), GROUP, foot=N_("diff")
    ),
    Shortcut("e", N_("expand all responses, or show only their ends"), GROUP, foot=N_("expand")),
    Shortcut("j k", N_("next / previous prompt, side by side"), COMPARE, foot=N_("prompt")),
    Shortcut("h l", N_("previous / next response to the prompt"), COMPARE),
    Shortcut("d", N_("word diff against the first"), COMPARE, foot=N_("diff")),
    Shortcut("m", N_("weight all sides to the same mix of sources"), COMPARE, foot=N_("same mix")),
    Shortcut("t", N_("distributions as tables"), COMPARE, foot=N_("as a table")),
    Shortcut("[ ]", N_("same prompt at the previous / next step"), READER, foot=N_("same prompt")),
    Shortcut("[ ]", N_("previous / next step with this prompt"), PROMPT, foot=N_("step")),
    Shortcut("d", N_("switch between word diff and side by side"), PROMPT, foot=N_("diff")),
    Shortcut("{ }", N_("first / latest step"), STEP),
    Shortcut("r", N_("raw view"), READER),
    Shortcut("m", N_("view with math and Markdown"), READER),
    Shortcut("d", N_("word diff, first against the best response in the group"), READER, foot=N_("diff")),
    Shortcut("v", N_("compare with the next: worst response, earlier step, other run"), READER),
    Shortcut("T", N_("turns view: tool calls next to their results"), READER),
    Shortcut("t", N_("token view (if tokens were recorded)"), READER),
    Shortcut("a", N_("pin steps and add them to the plan"), PINS, foot=N_("add steps")),
    Shortcut("j k", N_("next / previous line of the plan"), PINS, foot=N_("line")),
    Shortcut("x", N_("select the line"), PINS),
    Shortcut("Ctrl+Enter", N_("save the plan"), PINS, foot=N_("save")),
    Shortcut(".", N_("show the first conflict of the plan"), PINS),
    Shortcut(", .", N_("previous / next hit of the query in this sample"), READER),
    Shortcut("n N", N_("next / previous hit of the query, also in the following samples of the list"), SAMPLE),
    Shortcut(".", N_("next change in the diff, or next low-probability token"), READER),
    Shortcut("F", N_("find in this sample"), READER, foot=N_("find")),
    Shortcut("i", N_("JSON view: all fields"), READER),
    Shortcut("Enter", N_("show the sample at full width"), STEP),
    Shortcut("R", N_("show new content"), (*STEP, *LIVE), foot=N_("show new")),
    Shortcut("Space", N_("pause or resume the feed"), LIVE, foot=N_("pause")),
    Shortcut("L", N_("follow the latest step: show new data as it arrives"), STEP),
    Shortcut("/", N_("query"), STEP, foot=N_("query")),
    Shortcut("A", N_("switch between figures and responses that are alike"), STEP, foot=N_("alike")),
    Shortcut("/", N_("query"), RUNS, foot=N_("query")),
    Shortcut("/", N_("query"), SEARCH, foot=N_("query")),
    Shortcut("j k", N_("next / previous result"), SEARCH, foot=N_("result")),
    Shortcut("s", N_("sort menu"), STEP),
    Shortcut("/", N_("filter"), ("run", "live", "findings"), foot=N_("filter")),
    Shortcut("v", N_("overlay another run"), RUN_OVERVIEW, foot=N_("overlay")),
    Shortcut("l", N_("switch between logarithmic and linear axes"), RUN_OVERVIEW, foot=N_("log")),
    Shortcut("x", N_("switch the x-axis between steps and time"), RUN_OVERVIEW, foot=N_("steps / time")),
    Shortcut("j k", N_("next / previous chart"), RUN_OVERVIEW, foot=N_("chart")),
    Shortcut("Enter", N_("enlarge the chart"), RUN_OVERVIEW),
    Shortcut("n", N_("add a chart of a query"), RUN_OVERVIEW, foot=N_("add chart")),
    Shortcut("b", N_("draw groups of runs as mean and range, or as lines"), RUN_OVERVIEW, foot=N_("band")),
    Shortcut("p", N_("pin the chart for everybody in the project, or unpin it"), RUN_OVERVIEW, foot=N_("pin chart")),
    Shortcut("z", N_("make the chart wide or normal"), RUN_OVERVIEW),
    Shortcut("< >", N_("move the chart back / on"), RUN_OVERVIEW),
    Shortcut("← →", N_("on a chart: move between steps; with Shift in a large chart: move the zoom"), RUN_OVERVIEW),
    Shortcut("+ -", N_("zoom in / out in a large chart"), RUN_OVERVIEW, foot=N_("zoom")),
    Shortcut("0", N_("reset the zoom of a large chart"), RUN_OVERVIEW),
    Shortcut("s", N_("in a large chart: open the samples of the step"), RUN_OVERVIEW),
    Shortcut("/", N_("search keys and values"), CONTEXT, foot=N_("search")),
    Shortcut(".", N_("next difference"), CONTEXT, foot=N_("next difference")),
    Shortcut(",", N_("previous difference"), CONTEXT),
    Shortcut("[ ]", N_("previous / next step"), TIMELINE, foot=N_("step")),
    Shortcut("W", N_("slowest step"), TIMELINE, foot=N_("slowest step")),
    Shortcut("x", N_("switch between seconds and shares of the step"), TIMELINE, foot=N_("seconds / shares")),
    Shortcut("j k", N_("next / previous run"), RUNS, foot=N_("run")),
    Shortcut("x", N_("select the run (Shift+click selects a range)"), RUNS, foot=N_("select")),
    Shortcut("→ ←", N_("unfold / fold the group of runs"), RUNS, foot=N_("unfold")),
    Shortcut("c", N_("compare the selected runs"), RUNS, foot=N_("compare")),
    Shortcut("v", N_("overlay the charts of the selected runs"), RUNS, foot=N_("overlay")),
    Shortcut("e", N_("export the table as CSV"), RUNS),
    Shortcut("r", N_("dry run again"), ("retention",), foot=N_("dry run again")),
    Shortcut("c", N_("compare this step with another"), (*RUN_PAGES, "compare")),
    Shortcut("y", N_("copy permalink (fixed step)"), PERMALINK_PAGES),
    Shortcut("Y", N_("copy link to the latest step"), LATEST_STEP_PAGES),
    Shortcut("o o", N_("run overview"), RUN_PAGES, sequence=True),
    Shortcut("o s", N_("samples of the latest step"), RUN_PAGES, sequence=True),
    Shortcut("o r", N_("runs"), sequence=True),
    Shortcut("o l", N_("live"), sequence=True),
    Shortcut("o c", N_("compare"), sequence=True),
    Shortcut("o v", N_("review"), sequence=True),
    Shortcut("o p", N_("pins"), sequence=True),
    Shortcut("o f", N_("findings"), sequence=True),
    Shortcut("o e", N_("settings"), sequence=True),
    Shortcut("Ctrl+K", N_("jump to a run, step or page, or run a command")),
    Shortcut("← → ↑ ↓", N_("move inside a strip, list or grid; Home and End go to its ends")),
    Shortcut("Esc", N_("go back, or leave an input field")),
    Shortcut("?", N_("show the keyboard shortcuts"), foot=N_("all shortcuts")),
)

# The heading of a page, and the title of its keys in the help of other pages.
PAGE_TITLES = {
    "runs": N_("Runs"),
    "search": N_("Search all runs"),
    "run": N_("Run"),
    "timeline": N_("Timeline"),
    "context": N_("Context"),
    "reward-check": N_("Reward check"),
    "export": N_("Export"),
    "audit": N_("Audit log"),
    "disk": N_("Disk usage"),
    "retention": N_("Retention"),
    "step": N_("Step"),
    "sample": N_("Sample"),
    "group": N_("Group"),
    "prompt": N_("Prompt"),
    "live": N_("Live"),
    "compare": N_("Compare"),
    "review": N_("Review"),
    "queues": N_("Review queues"),
    "queue-new": N_("New review queue"),
    "queue": N_("Review queue"),
    "queue-review": N_("Items of a review queue"),
    "queue-agreement": N_("Agreement on a review queue"),
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
# The title of keys that several pages share, in the help of other pages.
SECTION_TITLES = {
    STEP: N_("Samples of a step"),
    READER: N_("A sample"),
    FLAGGABLE: N_("A sample"),
    QUOTABLE: N_("A sample"),
    SAMPLE: N_("A sample"),
    GROUP: N_("Group view"),
    PROMPT: N_("Prompt history"),
    RUN_PAGES: N_("Pages of a run"),
}


@dataclass(frozen=True, slots=True)
class ShortcutSection:
    title: str
    keys: list[Shortcut]


def find_page_shortcuts(page: str | None) -> list[Shortcut]:
    return [key for key in SHORTCUTS if not key.pages or page in key.pages]


def build_page_sections(page: str | None) -> list[ShortcutSection]:
    """The keys of this page, those that go to other pages, those of all pages."""
    keys = find_page_shortcuts(page)
    sections = [
        ShortcutSection(N_("This page"), [key for key in keys if key.pages and not key.sequence]),
        ShortcutSection(GO, [key for key in keys if key.sequence]),
        ShortcutSection(EVERYWHERE, [key for key in keys if not key.pages and not key.sequence]),
    ]
    return [section for section in sections if section.keys]


def build_other_pages_sections(page: str | None) -> list[ShortcutSection]:
    """The keys of all other pages."""
    sections: dict[str, list[Shortcut]] = {}
    for key in SHORTCUTS:
        if key.pages and page not in key.pages:
            title = GO if key.sequence else SECTION_TITLES.get(key.pages) or PAGE_TITLES[key.pages[0]]
            sections.setdefault(title, []).append(key)
    return [ShortcutSection(title, keys) for title, keys in sections.items()]


@cached(CacheSize.KEYBOARD_TEXTS)
def render_footer(page: str | None, language: str) -> SafeString:
    return render_to_string("common/footer.html", {"keys": [key for key in find_page_shortcuts(page) if key.foot]})


@cached(CacheSize.KEYBOARD_TEXTS)
def render_help_dialog(page: str | None, language: str, single_keys: bool) -> SafeString:
    """Every page contains it, and it does not change, so it is rendered once for each page and language."""
    context = {"here": build_page_sections(page), "elsewhere": build_other_pages_sections(page)}
    return render_to_string("common/help.html", context | {"single_keys": single_keys})
