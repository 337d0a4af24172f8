"""A replay plan as the address of its page says it: the newest revision, or a draft of the next one, which only the
person who makes it sees. Keeping the draft in the address costs no row, survives a reload, and can be sent to a mate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.translation import gettext as _

from rolloutdeck.protocol import MISMATCH_ACTIONS, PLAN_ACTIONS
from rollouts.models import Revision
from rollouts.replay import find_first_steps

MAX_DRAFT_ENTRIES = 500
MAX_STEP = 10**15


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """A pin's id, and its target step as typed; `first`: the first step that there is."""

    pin: int
    target: str
    first: int = 1

    @property
    def step(self) -> int | None:
        """None for what is no step number."""
        typed = self.target.strip()
        return int(typed) if typed.isascii() and typed.isdigit() and self.first <= int(typed) <= MAX_STEP else None


@dataclass(frozen=True, slots=True)
class PlanDraft:
    """`base` is the number of the revision that it changes; 0 is the empty plan before the first."""

    base: int = 0
    action: str = "cache"
    on_mismatch: str = "generate"
    exclude_flagged: bool = False
    lines: tuple[DraftEntry, ...] = ()

    @classmethod
    def saved(cls, revision: Revision | None) -> PlanDraft:
        if revision is None:
            return cls()
        entries = sorted((entry.target_step, entry.pin_id) for entry in revision.entries.all())
        lines = tuple(DraftEntry(pin, str(target), min(1, target)) for target, pin in entries)
        return cls(revision.number, revision.action, revision.on_mismatch, revision.exclude_flagged, lines)

    @classmethod
    def of(cls, query: QueryDict, saved: PlanDraft) -> PlanDraft:
        """What the parameters say, `saved` where they say nothing; `add=PIN` and `remove=PLACE` change it further."""
        told = cls.told(query) if is_number(query.get("base", "")) else saved
        added = query.get("add", "")
        return told.without(query.get("remove", "")).with_pin(added, load_first_steps([added]))

    @classmethod
    def told(cls, query: QueryDict) -> PlanDraft:
        pairs = zip(query.getlist("pin"), query.getlist("target"), strict=False)
        first = load_first_steps(query.getlist("pin"))
        lines = [
            DraftEntry(int(pin), target[:20].replace("\0", ""), first.get(int(pin), 1))
            for pin, target in pairs
            if is_number(pin)
        ]
        action, mismatch = query.get("action", ""), query.get("on_mismatch", "")
        return cls(
            base=int(query.get("base", "0")),
            action=action if action in PLAN_ACTIONS else "cache",
            on_mismatch=mismatch if mismatch in MISMATCH_ACTIONS else "generate",
            exclude_flagged=bool(query.get("exclude_flagged")),
            lines=tuple(lines[:MAX_DRAFT_ENTRIES]),
        )

    def without(self, place: str) -> PlanDraft:
        if not (is_number(place) and int(place) < len(self.lines)):
            return self
        return replace(self, lines=self.lines[: int(place)] + self.lines[int(place) + 1 :])

    def with_pin(self, pin: str, firsts: Mapping[int, int]) -> PlanDraft:
        """The pin behind the last target, else at the first step that there is."""
        if not is_number(pin) or len(self.lines) >= MAX_DRAFT_ENTRIES:
            return self
        first = firsts.get(int(pin), 1)
        after = max((step + 1 for line in self.lines if (step := line.step) is not None), default=first)
        return replace(self, lines=(*self.lines, DraftEntry(int(pin), str(max(after, first)), first)))

    def on_top_of(self, number: int) -> PlanDraft:
        return replace(self, base=number)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """[(pin, target step)] of the lines that have one."""
        return [(line.pin, line.step) for line in self.lines if line.step is not None]

    @property
    def targets(self) -> list[int]:
        return [step for _, step in self.entries]

    @property
    def whole(self) -> bool:
        """Whether it can be saved as it is."""
        return not any(self.problems)

    @property
    def problems(self) -> list[str]:
        """What is wrong with each line; empty where nothing is."""
        found: list[str] = []
        taken: set[int] = set()
        for step in (line.step for line in self.lines):
            found.append(_("enter a step number") if step is None else "")
            if step in taken:
                found[-1] = _("step {step} already has a pin").format(step=step)
            taken.update(() if step is None else (step,))
        return found

    def says_the_same(self, other: PlanDraft) -> bool:
        return (
            replace(self, base=0, lines=()) == replace(other, base=0, lines=())
            and sorted(self.entries) == sorted(other.entries)
            and len(self.lines) == len(other.lines)
        )

    def query(self) -> str:
        """The draft as parameters of an address."""
        pairs = [("base", str(self.base)), ("action", self.action), ("on_mismatch", self.on_mismatch)]
        pairs += [("exclude_flagged", "1")] if self.exclude_flagged else []
        for line in self.lines:
            pairs += [("pin", str(line.pin)), ("target", line.target)]
        return urlencode(pairs)


def load_first_steps(pins: Iterable[str]) -> dict[int, int]:
    """By pin: its trainer's first step."""
    return find_first_steps([int(pin) for pin in pins if is_number(pin)][:MAX_DRAFT_ENTRIES])


def is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 16


def describe_draft_changes(before: PlanDraft, after: PlanDraft, names: dict[int, str]) -> list[str]:
    """What `after` says otherwise, a sentence each. `names` is by pin."""
    said = []
    if before.action != after.action:
        said.append(_("action {before} → {after}").format(before=before.action, after=after.action))
    if before.on_mismatch != after.on_mismatch:
        told = _("if a pin is incompatible: {before} → {after}")
        said.append(told.format(before=before.on_mismatch, after=after.on_mismatch))
    if before.exclude_flagged != after.exclude_flagged:
        said.append(
            _("samples flagged bad are excluded") if after.exclude_flagged else _("samples flagged bad are included")
        )
    old, new = ({step: pin for pin, step in draft.entries} for draft in (before, after))
    for step in sorted({*old, *new}):
        if old.get(step) == new.get(step):
            continue
        if step not in old:
            said.append(_("step {step} now replays {pin}").format(step=step, pin=get_pin_name(names, new[step])))
        elif step not in new:
            said.append(_("step {step} no longer replays {pin}").format(step=step, pin=get_pin_name(names, old[step])))
        else:
            was, now = (get_pin_name(names, side[step]) for side in (old, new))
            said.append(_("step {step} replays {now} instead of {was}").format(step=step, now=now, was=was))
    return said


def get_pin_name(names: dict[int, str], pin: int) -> str:
    return names.get(pin) or _("a pin")
