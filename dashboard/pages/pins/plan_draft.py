"""A replay plan as the URL of its page describes it: the newest revision, or a draft of the next one.

A draft is stored only in the URL: it costs no row, survives a reload, and can be sent to a colleague.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rolloutdeck.protocol import MISMATCH_ACTIONS, PLAN_ACTIONS, SELECTED_ACTIONS, SELECTION_SOURCES
from rollouts.models import Project, Revision
from rollouts.replay import find_first_steps

MAX_DRAFT_ENTRIES = 500
SHOWN_OF_LONG_PLAN = 50  # entries of a plan that has too many to be edited on a page
MAX_STEP = 10**15
# What a plan does with selected samples.
ACTION_WORDS = {
    "keep": N_("keep"),
    "exclude": N_("exclude"),
    "mask": N_("mask the samples"),
    "drop": N_("drop the prompt"),
    "regenerate": N_("regenerate"),
}
SELECTION_CHANGES = {
    "flags": N_("samples flagged bad: {action}"),
    "rules": N_("samples that the guidance rules select: {action}"),
}


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """A pin's id, its target step as typed, and the first step of its trainer."""

    pin: int
    target: str
    first: int = 1

    @property
    def step(self) -> int | None:
        """None if the target is not a valid step number."""
        text = self.target.strip()
        return int(text) if text.isascii() and text.isdigit() and self.first <= int(text) <= MAX_STEP else None


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """`base` is the number of the revision that the draft changes; 0 is the empty plan before the first revision."""

    base: int = 0
    action: str = "cache"
    on_mismatch: str = "generate"
    on_selected: str = "keep"
    selected_by: str = "flags"
    entries: tuple[DraftEntry, ...] = ()

    @classmethod
    def from_revision(cls, revision: Revision | None) -> PlanDraft:
        if revision is None:
            return cls()
        rows = sorted((entry.target_step, entry.pin_id) for entry in revision.entries.all())
        entries = tuple(DraftEntry(pin, str(target), min(1, target)) for target, pin in rows)
        selection = revision.on_selected, revision.selected_by
        return cls(revision.number, revision.action, revision.on_mismatch, *selection, entries)

    @classmethod
    def from_query(cls, query: QueryDict, saved: PlanDraft, project: Project) -> PlanDraft:
        """The draft in the parameters, `saved` if there is none; then `add=PIN` and `remove=POSITIONS` are applied. A
        form that shows only a part of the plan (`cut`) is no draft, which would lose the other entries."""
        if query.get("cut") or len(query.getlist("pin")) > MAX_DRAFT_ENTRIES:
            base = query.get("base", "")
            return replace(saved, base=int(base) if is_number(base) else saved.base)
        draft = cls.parse_draft(query, project) if is_number(query.get("base", "")) else saved
        return draft.remove_entries(query.get("remove", "")).with_pin(query.get("add", ""), project)

    @classmethod
    def parse_draft(cls, query: QueryDict, project: Project) -> PlanDraft:
        pins = query.getlist("pin")
        first = load_first_steps(pins, project)
        entries = [
            DraftEntry(int(pin), target[:20].replace("\0", ""), first.get(int(pin), 1))
            for pin, target in zip(pins, query.getlist("target"), strict=False)
            if is_number(pin)
        ]
        action, mismatch = query.get("action", ""), query.get("on_mismatch", "")
        action = action if action in PLAN_ACTIONS else "cache"
        mismatch = mismatch if mismatch in MISMATCH_ACTIONS else "generate"
        selected, source = query.get("on_selected", ""), query.get("selected_by", "")
        if selected not in SELECTED_ACTIONS:
            selected = "exclude" if query.get("exclude_flagged") else "keep"  # in links of earlier versions
        source = source if source in SELECTION_SOURCES else "flags"
        base, rows = int(query.get("base", "0")), tuple(entries[:MAX_DRAFT_ENTRIES])
        return cls(base, action, mismatch, selected, source, rows)

    def remove_entries(self, positions: str) -> PlanDraft:
        """Returns the draft without the entries at these positions: numbers with commas between them."""
        removed = parse_positions(positions)
        return replace(self, entries=tuple(row for number, row in enumerate(self.entries) if number not in removed))

    def select_entries(self, positions: str) -> PlanDraft:
        """Returns the draft with only the entries at these positions."""
        selected = parse_positions(positions)
        return replace(self, entries=tuple(row for number, row in enumerate(self.entries) if number in selected))

    def with_pin(self, pin: str, project: Project) -> PlanDraft:
        """Adds the pin after the last target, or at its trainer's first step."""
        if not is_number(pin) or len(self.entries) >= MAX_DRAFT_ENTRIES:
            return self
        first = load_first_steps([pin], project).get(int(pin), 1)
        target = max([first, *(step + 1 for _pin, step in self.pin_targets)])
        return replace(self, entries=(*self.entries, DraftEntry(int(pin), str(target), first)))

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `save_plan` that the draft has next to its entries."""
        return {name: getattr(self, name) for name in ("action", "on_mismatch", "on_selected", "selected_by")}

    @property
    def pin_targets(self) -> list[tuple[int, int]]:
        """[(pin id, target step)] of the entries with a valid target."""
        return [(entry.pin, entry.step) for entry in self.entries if entry.step is not None]

    @property
    def is_valid(self) -> bool:
        return not any(self.problems)

    @property
    def problems(self) -> list[str]:
        """The problem of each entry; empty if there is none."""
        problems: list[str] = []
        taken: set[int] = set()
        for step in (entry.step for entry in self.entries):
            if step is None:
                problems.append(_("enter a step number"))
                continue
            problems.append(_("step {step} already has a pin").format(step=step) if step in taken else "")
            taken.add(step)
        return problems

    def equals(self, other: PlanDraft) -> bool:
        """Whether both drafts describe the same plan, whatever they are based on."""
        return (
            replace(self, base=0, entries=()) == replace(other, base=0, entries=())
            and sorted(self.pin_targets) == sorted(other.pin_targets)
            and len(self.entries) == len(other.entries)
        )

    def to_query(self) -> str:
        """The draft as parameters of a URL. One with more entries than the page shows is left out."""
        if len(self.entries) > MAX_DRAFT_ENTRIES:
            return urlencode({"base": self.base, "cut": 1})
        pairs = [("base", str(self.base)), ("action", self.action), ("on_mismatch", self.on_mismatch)]
        pairs += [("on_selected", self.on_selected)] if self.on_selected != "keep" else []
        pairs += [("selected_by", self.selected_by)] if self.selected_by != "flags" else []
        for entry in self.entries:
            pairs += [("pin", str(entry.pin)), ("target", entry.target)]
        return urlencode(pairs)


def load_first_steps(pins: Iterable[str], project: Project) -> dict[int, int]:
    """{pin id: the first step of its trainer}, of the pins of the project."""
    ids = [int(pin) for pin in pins if is_number(pin)][:MAX_DRAFT_ENTRIES]
    return find_first_steps(list(project.pins.filter(pk__in=ids).values_list("pk", flat=True))) if ids else {}


def parse_positions(text: str) -> set[int]:
    return {int(position) for position in text.split(",") if is_number(position)}


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def describe_draft_changes(before: PlanDraft, after: PlanDraft, names: dict[int, str]) -> Iterator[str]:
    """A sentence for each difference. `names`: {pin id: name}."""
    if before.action != after.action:
        yield _("action {before} → {after}").format(before=before.action, after=after.action)
    if before.on_mismatch != after.on_mismatch:
        text = _("if a pin is incompatible: {before} → {after}")
        yield text.format(before=before.on_mismatch, after=after.on_mismatch)
    if (before.on_selected, before.selected_by) != (after.on_selected, after.selected_by):
        yield _(SELECTION_CHANGES[after.selected_by]).format(action=_(ACTION_WORDS[after.on_selected]))
    old, new = ({step: pin for pin, step in draft.pin_targets} for draft in (before, after))
    for step in sorted({*old, *new}):
        was, now = (names.get(pins.get(step, 0)) or _("a pin") for pins in (old, new))
        if old.get(step) == new.get(step):
            continue
        if step not in old:
            yield _("step {step} now replays {pin}").format(step=step, pin=now)
        elif step not in new:
            yield _("step {step} no longer replays {pin}").format(step=step, pin=was)
        else:
            yield _("step {step} replays {now} instead of {was}").format(step=step, now=now, was=was)
