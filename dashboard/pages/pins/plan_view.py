"""The plan beside the pins: what the address asks for, the table of the plan, its preview and its history."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.db.models import Max
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.pins import pin_list, plan_draft, plan_preview, run_commands
from dashboard.pages.pins.pin_list import PinRow
from dashboard.pages.pins.plan_draft import PlanDraft
from rolloutdeck.trainer_api import load_trainer
from rollouts.models import Entry, Pin, Project, Revision, Run
from rollouts.replay import (
    DEFAULT_PLAN_NAME,
    PLAN_NAME_PATTERN,
    EntryCompatibility,
    can_mask_rows,
    check_entry_compatibility,
    explain_refusal,
    find_current_revision,
    find_exclusions,
    find_first_steps,
    find_loading_trainer,
    list_revisions,
    load_run_facts,
)

MAX_OFFERED_RUNS = 40
MAX_REVISIONS = 30
ENDS = N_(
    "replay at the target steps; this trainer loads a file for every step, so the run ends at the first step "
    "without one"
)
ACTIONS = (
    ("cache", N_("replay at the target steps; generate all other steps")),
    ("repeat", N_("after the last target, start again from the first")),
    ("repeat_last", N_("after the last target, keep replaying it")),
)


class PlanPageState:
    """What the address asks for: the plan, the draft of it, and the run that it is held against."""

    def __init__(self, told: QueryDict, project: Project) -> None:
        self.project = project
        wanted = told.get("plan", "").strip() or DEFAULT_PLAN_NAME
        self.plan = wanted if PLAN_NAME_PATTERN.match(wanted) else DEFAULT_PLAN_NAME
        named = _("A plan name must have 1 to 80 characters (A-Z a-z 0-9 . _ -) and start with a letter or digit.")
        self.said = "" if self.plan == wanted else named
        self.newest = find_current_revision(project, self.plan)
        self.saved = PlanDraft.saved(self.newest)
        self.draft = PlanDraft.of(told, self.saved)
        self.run = told.get("run", "")
        self.steps = told.get("steps", "")

    @property
    def changed(self) -> bool:
        return not self.draft.says_the_same(self.saved)

    def address(self, draft: PlanDraft | None = None) -> str:
        """This page with another draft; without one where it says what is saved."""
        draft = draft or self.draft
        kept = [("project", self.project.slug), ("plan", self.plan if self.plan != DEFAULT_PLAN_NAME else "")]
        kept += [("run", self.run), ("steps", self.steps)]
        query = urlencode([(name, value) for name, value in kept if value])
        same = draft.base == self.saved.base and draft.says_the_same(self.saved)
        return f"{reverse('pins')}?{query}" + ("" if same else f"&{draft.query()}")


def build_plan_context(page: PlanPageState, rows: list[PinRow], panel: str) -> dict[str, Any]:
    """The context of `pins/plan.html`."""
    draft = page.draft
    known = {row.pin.pk: row for row in rows} | load_unlisted_pins(page, rows)
    names = {pin: pin_list.format_pin_name(row.pin) for pin, row in known.items()}
    asking = find_compared_run(page)
    found = check_draft_compatibility(page, asking)
    refused = {pin: why for pin, row in known.items() if (why := explain_incompatible_pin(row, found.get(pin)))}
    seen = build_preview_context(page, list(known), names, refused, last_step(asking))
    problems = draft.problems[: plan_draft.MAX_DRAFT_ENTRIES]
    lines = [build_entry_row(page, place, problem, known, found) for place, problem in enumerate(problems)]
    return {
        **build_draft_context(page, len(lines)),
        "actions": list_actions(seen["alone"]),
        "lines": [one for one in lines if one],
        **build_differences_context(page, asking, found),
        "commands": run_commands.build_run_commands(
            page.project, page.plan, page.newest, seen["steps"] + 1 - seen["first"]
        ),
        "history": load_revision_rows(page),
        "headers": {"HX-Replace-Url": page.address()} if panel else {},
        **seen,
        **build_conflict_context(page, names),
    }


def build_draft_context(page: PlanPageState, count: int) -> dict[str, Any]:
    """The draft beside the newest revision; `count` of its entries are shown."""
    left = len(page.draft.lines) - count
    more = _("Showing the first {count} entries. This plan has {left} more; use the API to edit it.") if left else ""
    return {
        "draft": page.draft,
        "said": page.said or more.format(count=count, left=left),
        "changed": page.changed,
        "problems": not page.draft.whole,
        "next_number": page.saved.base + 1,
        "newest_number": page.saved.base,
        "plan_link": page.address(page.saved),
    }


def build_differences_context(
    page: PlanPageState, asking: Run | None, found: dict[int, EntryCompatibility]
) -> dict[str, Any]:
    """The run that the plan is compared with, and how the files of the plan differ from it."""
    differences = plan_preview.group_differences(page.draft, found)
    return {
        "asking": asking,
        "runs": load_offered_runs(page, asking),
        "differences": differences,
        "untold": plan_preview.find_unknown_facts(found),
        "refusals": sorted({one.fact for one in differences if one.verdict == "refuse"}),
        "loosened": sorted(page.project.loosened.items()),
    }


def build_preview_context(
    page: PlanPageState, known: list[int], names: dict[int, str], refused: dict[int, str], last: int | None
) -> dict[str, Any]:
    """What a run of the draft would do, step by step up to about its `last`."""
    drafted = [line.pin for line in page.draft.lines if line.pin in known] or known
    first = min(find_first_steps(drafted).values(), default=1)
    steps = plan_preview.count_preview_steps(page.steps, page.draft, last)
    loader = load_trainer(name) if (name := find_loading_trainer(drafted)) else None
    alone = bool(loader and loader.replays_only and not loader.replay_lines)
    result = plan_preview.build_plan_preview(page.draft, first, steps, names, refused, alone=alone)
    return {
        "first": first,
        "masks": can_mask_rows(drafted),
        "steps": steps,
        "outcome": result.track,
        "strip_said": result.said,
        "replays": result.replays,
        "generates": result.generates,
        "alone": alone,
        "end": result.end,
        "refuses": result.refuses,
    }


def list_actions(alone: bool) -> list[tuple[str, str]]:
    """[(word, what it means)] of a plan; `alone`: for a trainer that generates nothing."""
    (cache, meaning), *others = ACTIONS
    return [(word, _(said)) for word, said in ((cache, ENDS if alone else meaning), *others)]


def load_unlisted_pins(page: PlanPageState, rows: list[PinRow]) -> dict[int, PinRow]:
    """Pins that the draft or the plan names and that are no longer in the list."""
    there = {row.pin.pk for row in rows}
    wanted = {pin for draft in (page.draft, page.saved) for pin, _ in draft.entries} - there
    found = Pin.objects.filter(pk__in=wanted, project=page.project).select_related("run__project", "attempt", "user")
    return {row.pin.pk: row for row in pin_list.build_pin_rows(list(found), {})} if wanted else {}


def load_offered_runs(page: PlanPageState, asking: Run | None) -> list[Run]:
    """The newest runs, and the one that is held against the plan."""
    found = list(page.project.runs.filter(deleted_at=None).order_by("-created_at")[:MAX_OFFERED_RUNS])
    return found if asking is None or asking in found else [*found, asking]


def check_draft_compatibility(page: PlanPageState, asking: Run | None) -> dict[int, EntryCompatibility]:
    """Each pin of the draft beside the run that asks."""
    wanted = {pin for pin, _ in page.draft.entries}
    found = list(Pin.objects.filter(pk__in=wanted, project=page.project).prefetch_related("artifacts__run"))
    facts = load_run_facts(asking) if asking else {}
    leave, loosened = page.draft.exclude_flagged, page.project.loosened
    flagged = find_exclusions(found) if leave else {}
    return {
        pin.pk: check_entry_compatibility(Entry(pin=pin), facts, loosened, flagged.get(pin.pk), exclude_flagged=leave)
        for pin in found
    }


def explain_incompatible_pin(row: PinRow, judge: EntryCompatibility | None) -> str:
    """Why the run would not replay a pin; empty when it would."""
    if row.state.word in ("unsafe", "gone"):
        return _("its files are {state}").format(state=row.state.called)
    if (
        judge
        and row.state.word == "ready"
        and (why := explain_refusal(judge.excluded, [one.pk for one in judge.artifacts]))
    ):
        return why
    facts = [one.fact for one in judge.differences if one.verdict == "refuse"] if judge else []
    return _("different {facts}").format(facts=", ".join(facts)) if facts else ""


def last_step(run: Run | None) -> int | None:
    steps = run.steps.filter(split="train", superseded=False) if run else None
    return steps.aggregate(last=Max("step"))["last"] if steps is not None else None


def find_compared_run(page: PlanPageState) -> Run | None:
    """The run that the plan is held against: the one that the address names, else the project's last."""
    runs = page.project.runs.filter(deleted_at=None).order_by("-created_at")
    named = runs.filter(uid=page.run).first() if page.run and "\0" not in page.run else None
    return named or runs.first()


def build_entry_row(
    page: PlanPageState, place: int, problem: str, known: dict[int, PinRow], found: dict[int, EntryCompatibility]
) -> dict[str, Any] | None:
    """A row of the plan's table; None for a pin that is not the project's."""
    told = page.draft.lines[place]
    row = known.get(told.pin)
    if row is None:
        return None
    differences = plan_preview.find_known_differences(found.get(told.pin))
    refused = sum(one.verdict == "refuse" for one in differences)
    return {
        "pin": row.pin, "name": pin_list.format_pin_name(row.pin), "link": row.link,
        "state": row.state, "target": told.target,
        "problem": problem, "refused": refused, "warned": len(differences) - refused,
    }  # fmt: skip


def build_conflict_context(page: PlanPageState, names: dict[int, str]) -> dict[str, Any]:
    """What somebody saved since the draft was begun, and what the draft changes."""
    if page.newest is None or page.draft.base == page.newest.number or not page.changed:
        return {}
    base = PlanDraft.saved(list_revisions(page.project, page.plan).filter(number=page.draft.base).first())
    return {
        "conflict": page.newest,
        "theirs": plan_draft.describe_draft_changes(base, page.saved, names),
        "mine": plan_draft.describe_draft_changes(base, page.draft, names),
        "keep_link": page.address(page.draft.on_top_of(page.newest.number)),
    }


def load_revision_rows(page: PlanPageState) -> list[dict[str, Any]]:
    """The revisions, newest first, with what each changed and the runs that are bound to it."""
    every = list_revisions(page.project, page.plan).order_by("-number")
    found = list(every.prefetch_related("entries__pin__run", "bindings__run")[: MAX_REVISIONS + 1])
    names = {entry.pin_id: pin_list.format_pin_name(entry.pin) for one in found for entry in one.entries.all()}
    states = [*map(PlanDraft.saved, found), PlanDraft()]
    return [
        build_revision_row(page, one, plan_draft.describe_draft_changes(before, after, names), after)
        for one, after, before in zip(found[:MAX_REVISIONS], states, states[1:], strict=False)
    ]


def build_revision_row(page: PlanPageState, one: Revision, changes: list[str], state: PlanDraft) -> dict[str, Any]:
    return {
        "number": one.number,
        "user": one.user.get_username(),
        "at": one.created_at,
        "action": one.action,
        "entries": ngettext("{count} step", "{count} steps", len(state.lines)).format(count=len(state.lines)),
        "changes": " · ".join(changes) or _("no changes"),
        "runs": [binding.run for binding in one.bindings.all() if binding.run.deleted_at is None],
        "link": page.address(state.on_top_of(page.saved.base)),
    }
