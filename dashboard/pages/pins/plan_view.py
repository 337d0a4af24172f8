"""The context of the plan next to the pins: the draft, its preview, its compatibility with a run, and the revisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.db.models import Max
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.pins import pin_list, plan_outcome, plan_preview, run_commands
from dashboard.pages.pins.pin_list import PinRow
from dashboard.pages.pins.plan_draft import MAX_DRAFT_ENTRIES, SHOWN_OF_LONG_PLAN, PlanDraft, describe_draft_changes
from dashboard.pages.pins.plan_drawing import build_plan_drawing
from dashboard.pages.pins.plan_lines import PlanLine, group_lines
from dashboard.pages.pins.plan_selection import build_selection_context
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.trainer_api import load_trainer
from rollouts import replay
from rollouts.errors import StorageUnavailableError
from rollouts.models import Entry, Pin, Project, Revision, Run

if TYPE_CHECKING:
    from django.contrib.auth.models import User

NO_RUN = "none"  # in the URL: compare with no run, though one uses the plan
MAX_OFFERED_RUNS = 40
MAX_REVISIONS = 30
MAX_SHOWN_CHANGES = 6  # of a revision
REPLAYS_ONLY_CACHE = N_(
    "replay at the target steps; this trainer loads a file for every step, so the run ends at the first step "
    "without one"
)
ACTIONS = {
    "cache": N_("replay at the target steps; generate all other steps"),
    "repeat": N_("after the last target, start again from the first"),
    "repeat_last": N_("after the last target, keep replaying it"),
}


class PlanPageState:
    """What the URL of the page asks for: a plan, a draft of it, and the run that the plan is compared with."""

    def __init__(self, query: QueryDict, project: Project, reader: User | None = None) -> None:
        self.project, self.reader = project, reader
        name = query.get("plan", "").strip() or choose_plan_name(project)
        self.plan = name if replay.PLAN_NAME_PATTERN.match(name) else replay.DEFAULT_PLAN_NAME
        problem = _("A plan name must have 1 to 80 characters (A-Z a-z 0-9 . _ -) and start with a letter or digit.")
        self.message = "" if self.plan == name else problem
        self.newest = replay.find_current_revision(project, self.plan)
        self.saved = PlanDraft.from_revision(self.newest)
        self.draft = PlanDraft.from_query(query, self.saved, project)
        self.run = query.get("run", "")
        self.steps = query.get("steps", "")

    @property
    def changed(self) -> bool:
        return not self.draft.equals(self.saved)

    def build_link(self, draft: PlanDraft | None = None) -> str:
        """This page with another draft; a draft that equals the newest revision is left out."""
        draft = draft or self.draft
        plan = self.plan if self.plan != replay.DEFAULT_PLAN_NAME else ""
        params = {"project": self.project.slug, "plan": plan, "run": self.run, "steps": self.steps}
        query = urlencode({name: value for name, value in params.items() if value})
        is_saved = draft.base == self.saved.base and draft.equals(self.saved)
        return f"{reverse('pins')}?{query}" + ("" if is_saved else f"&{draft.to_query()}")


def build_plan_context(page: PlanPageState, rows: list[PinRow], panel: str) -> dict[str, Any]:
    """The context of `pins/plan.html`."""
    draft = page.draft
    pins = {row.pin.pk: row for row in rows} | load_unlisted_pins(page, rows)
    names = {pk: pin_list.format_pin_name(row.pin) for pk, row in pins.items()}
    newest_user = replay.find_newest_bound_run(page.project, page.plan)
    run = find_compared_run(page, newest_user)
    users = load_plan_users(page)
    outcome_run = run if run and run.pk in users else newest_user
    entries = compare_draft_entries(page, run)
    previews = preview_draft(page, entries, run, outcome_run)
    differences = plan_preview.group_differences(entries) if run else []
    preview = build_preview_context(page, pins, names, previews, run, outcome_run)
    step_count = preview["last"] + 1 - preview["first"]
    problems = draft.problems
    message = page.message
    is_cut = len(problems) > MAX_DRAFT_ENTRIES
    shown = SHOWN_OF_LONG_PLAN if is_cut else MAX_DRAFT_ENTRIES
    if not message and is_cut:
        text = _(
            "This plan has {total} entries; the first {count} are shown. "
            "A plan of more than {most} is changed with the API."
        )
        message = text.format(total=f"{len(problems):,}", count=shown, most=MAX_DRAFT_ENTRIES)
    end = preview["preview"].end
    lines = [
        PlanLine(
            position,
            pins[entry.pin],
            entry.target,
            entry.step,
            problem,
            find_preview(previews, entry.step),
            is_unreached=end is not None and entry.step is not None and entry.step > end,
        )
        for position, (entry, problem) in enumerate(zip(draft.entries[:shown], problems, strict=False))
        if entry.pin in pins
    ]
    return {
        "draft": draft,
        "message": message,
        "is_cut": is_cut,
        "changed": page.changed,
        "invalid": any(problems),
        "next_number": page.saved.base + 1,
        "newest_number": page.saved.base,
        "plan_link": page.build_link(page.saved),
        "line_groups": group_lines(lines),
        "compared_run": run,
        "runs": load_offered_runs(page, run, users),
        "no_run": NO_RUN if newest_user else "",
        "differences": differences,
        "unknown_facts": plan_preview.find_unknown_facts(entries) if run else [],
        "refused_facts": sorted({row.fact for row in differences if row.verdict == "refuse"}),
        "overrides": sorted(page.project.loosened.items()),
        "commands": run_commands.build_run_commands(page.project, page.plan, page.newest, step_count),
        "prompts_command": run_commands.build_prompts_command(page.project, page.plan, run),
        "history": load_revision_rows(page),
        "headers": {"HX-Replace-Url": page.build_link()} if panel else {},
        **preview,
        **build_selection_context(
            page.project, page.draft, [entry.pin for entry in draft.entries if entry.pin in pins], entries
        ),
        **build_incompatible_context(page, previews),
        **build_conflict_context(page, names),
    }


def find_preview(previews: dict[int, replay.EntryPreview], step: int | None) -> replay.EntryPreview | None:
    return None if step is None else previews.get(step)


def load_unlisted_pins(page: PlanPageState, rows: list[PinRow]) -> dict[int, PinRow]:
    """Pins that the draft or the plan names and that are no longer in the list."""
    listed = {row.pin.pk for row in rows}
    wanted = {pin for draft in (page.draft, page.saved) for pin, _ in draft.pin_targets} - listed
    pins = Pin.objects.filter(pk__in=wanted, project=page.project).select_related("run__project", "attempt", "user")
    return {row.pin.pk: row for row in pin_list.build_pin_rows(list(pins), {})} if wanted else {}


def find_compared_run(page: PlanPageState, newest_user: Run | None) -> Run | None:
    """The run that the URL names, by default the newest one that uses the plan. Another run is never the default: it
    says nothing about the next one."""
    if not page.run:
        return newest_user
    if page.run == NO_RUN or "\0" in page.run:
        return None
    named: Run | None = page.project.runs.filter(deleted_at=None, uid=page.run).select_related("project").first()
    return named


def load_plan_users(page: PlanPageState) -> set[int]:
    """The ids of the runs that use a revision of the plan."""
    users = page.project.runs.filter(deleted_at=None, binding__revision__plan__name=page.plan)
    return set(users.values_list("pk", flat=True))


def load_offered_runs(page: PlanPageState, compared: Run | None, users: set[int]) -> list[tuple[Run, bool]]:
    """[(run, whether it uses the plan)], the newest first, those that use the plan before the others."""
    runs = list(page.project.runs.filter(deleted_at=None).order_by("-created_at")[:MAX_OFFERED_RUNS])
    if compared and compared not in runs:
        runs.append(compared)
    return sorted(((run, run.pk in users) for run in runs), key=lambda choice: not choice[1])


def compare_draft_entries(page: PlanPageState, run: Run | None) -> list[replay.EntryCompatibility]:
    """The entries with a valid target, compared with the facts of the run, in the order of their targets."""
    targets = dict(sorted((step, pin) for pin, step in reversed(page.draft.pin_targets)))
    related = Pin.objects.select_related("run__project", "attempt").prefetch_related("artifacts__run")
    pins = related.filter(project=page.project).in_bulk(set(targets.values()))
    facts = replay.load_run_facts(run) if run else {}
    on_selected, overrides = page.draft.on_selected, page.project.loosened
    selector = replay.PlanSelector(on_selected, page.draft.selected_by, page.reader, is_shown=True)
    selected: dict[int, replay.PinExclusion] = {}
    if selector.selects:
        try:
            selected = replay.find_exclusions(pins.values(), selector)
        except StorageUnavailableError as error:
            page.message = page.message or str(error)
    results = {
        pk: replay.check_entry_compatibility(Entry(pin=pin), facts, overrides, selected.get(pk), on_selected)
        for pk, pin in pins.items()
    }
    return [
        replace(results[pin], entry=Entry(pin=pins[pin], target_step=step))
        for step, pin in targets.items()
        if pin in results
    ]


def preview_draft(
    page: PlanPageState, entries: list[replay.EntryCompatibility], run: Run | None, outcome_run: Run | None
) -> dict[int, replay.EntryPreview]:
    """{target step: preview}, with the outcomes of the run that used the plan."""
    targets = {result.entry.target_step: result.entry.pin_id for result in entries}
    outcomes = replay.load_entry_outcomes(outcome_run, page.draft.action, targets) if outcome_run else {}
    facts = replay.load_run_facts(run) if run else {}
    context = replay.PlanContext(run, page.project.loosened, page.draft.on_selected, page.draft.selected_by, facts)
    return replay.preview_entries(entries, context, outcomes)


def build_preview_context(
    page: PlanPageState,
    pins: dict[int, PinRow],
    names: dict[int, str],
    previews: dict[int, replay.EntryPreview],
    run: Run | None,
    outcome_run: Run | None,
) -> dict[str, Any]:
    """What a run of the draft would do, and what a run did. `pins` and `names` by pin id."""
    listed = [entry.pin for entry in page.draft.entries if entry.pin in names] or list(names)
    first = min(replay.find_first_steps(listed).values(), default=1)
    reached = [find_last_training_step(shown) for shown in (run, outcome_run) if shown]
    last = plan_preview.choose_last_step(page.steps, page.draft, max(reached, default=0))
    trainer = load_trainer(name) if (name := replay.find_loading_trainer(listed)) else None
    replays_only = bool(trainer and trainer.ends_without_file)
    actions = ACTIONS | ({"cache": REPLAYS_ONLY_CACHE} if replays_only else {})
    preview = plan_preview.build_plan_preview(
        page.draft, range(first, last + 1), names, previews, replays_only=replays_only
    )
    outcome = plan_outcome.load_plan_outcome(outcome_run) if outcome_run else None
    flags = {
        step: row.step.flags
        for pin, step in page.draft.pin_targets
        if (row := pins.get(pin)) and row.step and row.step.flags
    }
    restarts = outcome.restarts if outcome else ()
    return {
        "first": first,
        "last": last,
        "preview": preview,
        "drawing": build_plan_drawing(preview.segments, outcome.segments if outcome else {}, flags, restarts),
        "outcome": outcome,
        "savings": plan_outcome.estimate_savings(
            [pins[pin].pin for pin, _ in page.draft.pin_targets if pin in pins], page.draft.action
        ),
        "replays_only": replays_only,
        "actions": [(action, _(meaning)) for action, meaning in actions.items()],
    }


def find_last_training_step(run: Run) -> int:
    """Returns 0 if the run has none."""
    steps = run.steps.current().filter(split="train")
    return steps.filter(step_kind=steps.find_kind()).aggregate(last=Max("step"))["last"] or 0


def build_incompatible_context(page: PlanPageState, previews: dict[int, replay.EntryPreview]) -> dict[str, Any]:
    """The entries that conflict with the others of the plan, and how to remove them or move them to a new plan."""
    conflicts = sorted(step for step, preview in previews.items() if preview.state == "conflict")
    if not conflicts:
        return {"plan_conflicts": 0}
    positions = [position for position, entry in enumerate(page.draft.entries) if entry.step in conflicts]
    rest = tuple(entry for entry in page.draft.entries if entry.step not in conflicts)
    return {
        "plan_conflicts": len(conflicts),
        "conflict_steps": format_step_ranges(conflicts),
        "first_conflict": next(at for at in positions if page.draft.entries[at].step == conflicts[0]),
        "conflict_positions": ",".join(map(str, positions)),
        "without_conflicts_link": page.build_link(replace(page.draft, entries=rest)),
    }


def build_conflict_context(page: PlanPageState, names: dict[int, str]) -> dict[str, Any]:
    """If another user has saved a revision since the draft was started: both sides' changes."""
    if page.newest is None or page.draft.base == page.newest.number or not page.changed:
        return {}
    revisions = replay.list_revisions(page.project, page.plan)
    base = PlanDraft.from_revision(revisions.filter(number=page.draft.base).first())
    return {
        "conflict": page.newest,
        "their_changes": list(describe_draft_changes(base, page.saved, names)),
        "own_changes": list(describe_draft_changes(base, page.draft, names)),
        "rebase_link": page.build_link(replace(page.draft, base=page.newest.number)),
    }


def load_revision_rows(page: PlanPageState) -> list[dict[str, Any]]:
    """The revisions, newest first, each with its changes and the runs that are bound to it."""
    newest_first = replay.list_revisions(page.project, page.plan).order_by("-number")
    revisions = list(newest_first.prefetch_related("entries__pin__run", "bindings__run")[: MAX_REVISIONS + 1])
    names = {entry.pin_id: pin_list.format_pin_name(entry.pin) for row in revisions for entry in row.entries.all()}
    plans = [*map(PlanDraft.from_revision, revisions), PlanDraft()]
    return [
        build_revision_row(page, revision, plan, list(describe_draft_changes(before, plan, names)))
        for revision, plan, before in zip(revisions[:MAX_REVISIONS], plans, plans[1:], strict=False)
    ]


def build_revision_row(page: PlanPageState, revision: Revision, plan: PlanDraft, changes: list[str]) -> dict[str, Any]:
    count = len(plan.entries)
    if (left := len(changes) - MAX_SHOWN_CHANGES) > 0:
        more = ngettext("{count} more change", "{count} more changes", left).format(count=left)
        changes = [*changes[:MAX_SHOWN_CHANGES], more]
    return {
        "number": revision.number,
        "user": revision.user.get_username(),
        "at": revision.created_at,
        "action": revision.action,
        "entries": ngettext("{count} step", "{count} steps", count).format(count=count),
        "changes": " · ".join(changes) or _("no changes"),
        "runs": [binding.run for binding in revision.bindings.all() if binding.run.deleted_at is None],
        "link": page.build_link(replace(plan, base=page.saved.base)),
    }


def choose_plan_name(project: Project) -> str:
    """The plan `default`, unless only others were saved: then the first of them."""
    names = replay.list_plan_names(project)
    return names[0] if names and replay.DEFAULT_PLAN_NAME not in names else replay.DEFAULT_PLAN_NAME
