"""Findings as pages and files show them: every text escaped, every number as it was when it was shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import (
    StepUrlState,
    format_number,
    format_signed_number,
    render_markdown,
    render_text,
    replace_control_characters,
)
from dashboard.pages.findings import svg_chart
from rollouts.models import EvidenceItem, Finding, Run

MAX_MARKED_RANGES = 200
Kind = EvidenceItem.Kind
CALLED = {Kind.SAMPLE: N_("Sample"), Kind.QUERY: N_("Query"), Kind.CHART: N_("Chart")}


@dataclass(slots=True)
class PresentedItem:
    """An exhibit with what its template needs. `path` leads to what it shows, where that is still there."""

    exhibit: EvidenceItem
    held: dict[str, Any]
    path: str
    first: bool
    last: bool

    @property
    def kind(self) -> str:
        return self.exhibit.kind

    @property
    def called(self) -> str:
        return _(CALLED[Kind(self.kind)])

    @property
    def words(self) -> SafeString:
        return render_markdown(self.exhibit.words)

    @property
    def link(self) -> str:
        """For somebody elsewhere."""
        return build_absolute_url(self.path) if self.path else ""

    @property
    def place(self) -> str:
        """Which run and steps: `grpo · train step 12`."""
        return format_item_position(self.held)

    @property
    def facts(self) -> list[str]:
        return describe_sample(self.held)

    @property
    def truncated(self) -> bool:
        return bool(self.held.get("truncated")) or "trunc?" in self.held.get("facets", [])

    @property
    def response(self) -> SafeString:
        return render_quoted_text(self.held["response"], self.ranges("response"))

    @property
    def prompt(self) -> SafeString:
        return render_quoted_text(self.held["prompt"], self.ranges("prompt"))

    def ranges(self, field: str) -> list[tuple[int, int]]:
        return [(one["start"], one["end"]) for one in self.held["quotes"] if one["field"] == field]

    @property
    def cut(self) -> list[tuple[str, int, int]]:
        """(field, characters held, characters there were) of what was too long to hold."""
        lengths = self.held.get("lengths", {})
        return [(name, len(self.held[name]), whole) for name, whole in lengths.items() if whole > len(self.held[name])]

    @property
    def pictures(self) -> list[tuple[str, svg_chart.SvgChart]]:
        """One for each metric, since metrics have no scale in common; the runs are its lines."""
        curves = self.held["curves"]
        drawn = {name: [curve for curve in curves if curve["name"] == name] for name in self.held["names"]}
        return [(name, svg_chart.build_svg_chart(found)) for name, found in drawn.items() if found]

    @property
    def points(self) -> list[tuple[str, str, list[tuple[int, float | None]]]]:
        """The curves as tables: (name, what its steps count, its points)."""
        return [
            (
                f"{one['run']['name']} · {one['name']}",
                one["step_kind"],
                list(zip(one["steps"], one["values"], strict=True)),
            )
            for one in self.held["curves"]
        ]

    @property
    def chat(self) -> str:
        """A block to paste where people talk: which run and step, score, quotes, link."""
        return build_item_message(self)


def build_evidence_items(finding: Finding) -> list[PresentedItem]:
    """The exhibits in their order. A run in the bin, or gone, has no link."""
    rows = list(finding.exhibits.select_related("run", "user"))
    return [
        PresentedItem(row, held := row.shown, path_of(row, held), at == 0, at == len(rows) - 1)
        for at, row in enumerate(rows)
    ]


def path_of(row: EvidenceItem, held: dict[str, Any]) -> str:
    run = row.run
    if run is None or run.deleted_at is not None:
        return ""
    if row.kind == Kind.SAMPLE:
        return reverse("sample", args=[row.sample])
    if row.kind == Kind.QUERY:
        return query_path(run, held)
    return reverse("run", args=[run.uid])


def query_path(run: Run, held: dict[str, Any]) -> str:
    step = "all" if held["step"] is None else str(held["step"])
    ask = StepUrlState(split=held["split"], q=held["q"], sort=held["ordering"], attempt=held["attempt"])
    return reverse("step", args=[run.uid, step]) + ask.link()


def build_absolute_url(path: str) -> str:
    """An address for people who are not on this page: the public one's host with this path."""
    return settings.PUBLIC_URL.removesuffix(settings.PREFIX) + path


def format_item_position(held: dict[str, Any]) -> str:
    names = held.get("runs") or [held["run"]]
    said = ", ".join(str(run["name"]) for run in names)
    if "split" not in held:
        return said
    told = _("{runs} · {split} all steps") if held["step"] is None else _("{runs} · {split} step {step}")
    return told.format(runs=said, split=held["split"], step=held["step"]).replace("  ", " ")


def describe_sample(held: dict[str, Any]) -> list[str]:
    """What stands beside a sample's score, in words."""
    tokens, advantage = held.get("tokens"), held.get("advantage")
    guessed = _("looks truncated") if "trunc?" in held.get("facets", []) else ""
    found = [
        format_length(held.get("chars", 0), tokens),
        _("truncated") if held.get("truncated") else guessed,
        "" if advantage is None else _("adv {advantage}").format(advantage=format_signed_number(advantage)),
        _("n {index}").format(index=held["index"]) if held.get("index") is not None else "",
        held.get("data_source") or "",
        held.get("finish_reason") or "",
    ]
    return [one for one in found if one]


def format_length(chars: int, tokens: int | None) -> str:
    if tokens is None:
        return _("{count} chars").format(count=f"{chars:,}")
    return _("{count} tok").format(count=f"{tokens:,}")


def render_quoted_text(whole: str, ranges: Iterable[tuple[int, int]]) -> SafeString:
    """The text with these ranges marked; ranges that overlap are one."""
    parts: list[str] = []
    at = 0
    for start, end in sorted(ranges)[:MAX_MARKED_RANGES]:
        start = max(start, at)
        if start >= min(end, len(whole)):
            continue
        parts += [
            render_text(whole[at:start]),
            f'<mark class="quote">{render_text(whole[start:end])}</mark>',
        ]
        at = end
    return mark_safe("".join([*parts, render_text(whole[at:])]))


def build_item_message(one: PresentedItem) -> str:
    held = one.held
    if one.kind == Kind.SAMPLE:
        head = [one.place, describe_score(held["score"]), describe_expected_answer(held), *one.facts]
        lines = [" · ".join(part for part in head if part), *quotes_of(held)]
    elif one.kind == Kind.QUERY:
        mean = held["scores"]["mean"]
        counts = _("{total} of {all} samples").format(total=f"{held['total']:,}", all=f"{held['of']:,}")
        scores = "" if mean is None else " · " + _("mean score {score}").format(score=format_number(mean))
        lines = [f"{one.place} · {held['q'] or _('all samples')}", counts + scores]
    else:
        lines = [one.place, *(f"{name}: {format_last_values(picture)}" for name, picture in one.pictures)]
    return replace_control_characters("\n".join([*lines, *([one.link] if one.link else [])]))


def format_last_values(picture: svg_chart.SvgChart) -> str:
    """The last value of each run."""
    return ", ".join(
        f"{line.name} {svg_chart.format_short_number(line.last)}" for line in picture.lines if line.last is not None
    )


def describe_score(score: float | None) -> str:
    return _("no score") if score is None else _("score {score}").format(score=format_number(score))


def describe_expected_answer(held: dict[str, Any]) -> str:
    truth = " ".join((held.get("ground_truth") or "").split())
    return _("expected {answer}").format(answer=truth[:60]) if truth else ""


def quotes_of(held: dict[str, Any]) -> list[str]:
    """Each quote as lines of a quotation; without one the end of the response."""
    told = [one["text"] for one in held["quotes"]] or ["…" + held["response"][-300:]]
    return ["\n".join(f"> {line}" for line in said.strip().splitlines()) for said in told]


def build_finding_message(finding: Finding, exhibits: list[PresentedItem], path: str) -> str:
    """The whole finding as a block for a chat."""
    parts = [finding.title, finding.note, *(one.chat for one in exhibits), build_absolute_url(path)]
    return "\n\n".join(part for part in parts if part)
