"""Steps whose samples were not generated: the pin that was replayed there, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from django.db.models import Q
from django.utils.translation import gettext as _

from dashboard.pages.pins import pin_list
from rollouts.models import Replay, Step


@dataclass(frozen=True, slots=True)
class ReplayLabel:
    """`word` is `hit refused`; `link` leads to the pinned step, where it is still there."""

    word: str
    source: str
    link: str
    why: str

    @property
    def hit(self) -> bool:
        return self.word == "hit"

    @property
    def said(self) -> str:
        told = _("↺ replayed: {source}") if self.hit else _("replay refused: {source}")
        return told.format(source=self.source)


def load_replay_labels(steps: Iterable[Step]) -> dict[int, ReplayLabel]:
    """By step id; a step that was simply generated is left out. Few were not, so their pins are looked up apart."""
    found = {(one.run_id, one.attempt_id, one.step_kind, one.step): one.pk for one in steps if one.split == "train"}
    if not found:
        return {}
    there = reduce(or_, (Q(run=run, attempt=attempt, step_kind=kind, step=step) for run, attempt, kind, step in found))
    rows = Replay.objects.filter(there).exclude(outcome="miss").prefetch_related("pin__run", "pin__attempt")
    return {found[one.run_id, one.attempt_id, one.step_kind, one.step]: build_replay_label(one) for one in rows}


def build_replay_label(row: Replay) -> ReplayLabel:
    source = pin_list.format_pin_name(row.pin) if row.pin else _("a removed pin")
    return ReplayLabel(row.outcome, source, pin_list.build_pin_link(row.pin, None) if row.pin else "", row.reason)
