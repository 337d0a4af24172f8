"""The context of the plan next to the pins: the draft, its preview, its compatibility with a run, and the revisions."""

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django.db.models import Max
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.pins import pin_list, plan_preview, run_commands
from dashboard.pages.pins.pin_list import PinRow
from dashboard.pages.pins.plan_draft import MAX_DRAFT_ENTRIES, PlanDraft, describe_draft_changes
from rolloutdeck.trainer_api import load_trainer
from rollouts import replay
from rollouts.models import Entry, Pin, Project, Revision, Run

MAX_OFFERED_RUNS = 40
MAX_REVISIONS = 30
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

    def __init__(self, query: QueryDict, project: Project) -> None:
        self.project = project
        name = query.get("plan", "").strip() or replay.DEFAULT_PLAN_NAME
        self.plan = name if replay.PLAN_NAME_PATTERN.match(name) else replay.DEFAULT_PLAN_NAME
        problem = _("A plan name must have 1 to 80 characters (A-Z a-z 0-9 . _ -) and start with a letter or digit.")
        self.message = "" if self.plan == name else problem
        self.newest = replay.find_current_revision(project, self.plan)
        self.saved = PlanDraft.from_revision(self.newest)
        self.draft = PlanDraft.from_query(query, self.saved)
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
    run = find_compared_run(page)
    results = check_draft_compatibility(page, run)
    differences = plan_preview.group_differences(draft, results)
    refused = {pk: reason for pk, row in pins.items() if (reason := explain_incompatible_pin(row, results.get(pk)))}
    preview = build_preview_context(page, names, refused, run)
    problems = draft.problems
    message = page.message
    if not message and (left := len(problems) - MAX_DRAFT_ENTRIES) > 0:
        text = _("Showing the first {count} entries. This plan has {left} more; use the API to edit it.")
        message = text.format(count=MAX_DRAFT_ENTRIES, left=left)
    return {
        "draft": draft,
        "message": message,
        "changed": page.changed,
        "invalid": any(problems),
        "next_number": page.saved.base + 1,
        "newest_number": page.saved.base,
        "plan_link": page.build_link(page.saved),
        "entries": [
            build_entry_row(pins[entry.pin], entry.target, problem, results.get(entry.pin))
            for entry, problem in zip(draft.entries[:MAX_DRAFT_ENTRIES], problems, strict=False)
            if entry.pin in pins
        ],
        "compared_run": run,
        "runs": load_offered_runs(page, run),
        "differences": differences,
        "unknown_facts": plan_preview.find_unknown_facts(results),
        "refused_facts": sorted({row.fact for row in differences if row.verdict == "refuse"}),
        "overrides": sorted(page.project.loosened.items()),
        "commands": run_commands.build_run_commands(
            page.project, page.plan, page.newest, preview["steps"] + 1 - preview["first"]
        ),
        "history": load_revision_rows(page),
        "headers": {"HX-Replace-Url": page.build_link()} if panel else {},
        **preview,
        **build_conflict_context(page, names),
    }


def load_unlisted_pins(page: PlanPageState, rows: list[PinRow]) -> dict[int, PinRow]:
    """Pins that the draft or the plan names and that are no longer in the list."""
    listed = {row.pin.pk for row in rows}
    wanted = {pin for draft in (page.draft, page.saved) for pin, _ in draft.pin_targets} - listed
    pins = Pin.objects.filter(pk__in=wanted, project=page.project).select_related("run__project", "attempt", "user")
    return {row.pin.pk: row for row in pin_list.build_pin_rows(list(pins), {})} if wanted else {}


def find_compared_run(page: PlanPageState) -> Run | None:
    """The run that the URL names, else the project's newest."""
    runs = page.project.runs.filter(deleted_at=None).order_by("-created_at")
    named = runs.filter(uid=page.run).first() if page.run and "\0" not in page.run else None
    return named or runs.first()


def load_offered_runs(page: PlanPageState, compared: Run | None) -> list[Run]:
    runs = list(page.project.runs.filter(deleted_at=None).order_by("-created_at")[:MAX_OFFERED_RUNS])
    return runs if compared is None or compared in runs else [*runs, compared]


def check_draft_compatibility(page: PlanPageState, run: Run | None) -> dict[int, replay.EntryCompatibility]:
    """{pin id: result of the comparison with the run}."""
    wanted = {pin for pin, _ in page.draft.pin_targets}
    pins = list(Pin.objects.filter(pk__in=wanted, project=page.project).prefetch_related("artifacts__run"))
    facts = replay.load_run_facts(run) if run else {}
    exclude, overrides = page.draft.exclude_flagged, page.project.loosened
    flagged = replay.find_exclusions(pins) if exclude else {}
    return {
        pin.pk: replay.check_entry_compatibility(
            Entry(pin=pin), facts, overrides, flagged.get(pin.pk), exclude_flagged=exclude
        )
        for pin in pins
    }


def explain_incompatible_pin(row: PinRow, result: replay.EntryCompatibility | None) -> str:
    """Why the run would not replay a pin; empty if it would."""
    if row.state.key in ("unsafe", "gone"):
        return _("its files are {state}").format(state=row.state.name)
    if result is None:
        return ""
    if row.state.key == "ready" and (
        reason := replay.explain_refusal(result.excluded, [artifact.pk for artifact in result.artifacts])
    ):
        return reason
    facts = [difference.fact for difference in result.differences if difference.verdict == "refuse"]
    return _("different {facts}").format(facts=", ".join(facts)) if facts else ""


def build_preview_context(
    page: PlanPageState, names: dict[int, str], refused: dict[int, str], run: Run | None
) -> dict[str, Any]:
    """What a run of the draft would do. `names`: {pin id: name}; `refused`: {pin id: reason}."""
    pins = [entry.pin for entry in page.draft.entries if entry.pin in names] or list(names)
    first = min(replay.find_first_steps(pins).values(), default=1)
    run_steps = run.steps.filter(split="train", superseded=False) if run else None
    run_last = run_steps.aggregate(last=Max("step"))["last"] if run_steps is not None else None
    last = plan_preview.choose_last_step(page.steps, page.draft, run_last)
    trainer = load_trainer(name) if (name := replay.find_loading_trainer(pins)) else None
    replays_only = bool(trainer and trainer.replays_only and not trainer.replay_lines)
    actions = ACTIONS | ({"cache": REPLAYS_ONLY_CACHE} if replays_only else {})
    return {
        "first": first,
        "steps": last,
        "preview": plan_preview.build_plan_preview(
            page.draft, range(first, last + 1), names, refused, replays_only=replays_only
        ),
        "masks_rows": replay.can_mask_rows(pins),
        "replays_only": replays_only,
        "actions": [(action, _(meaning)) for action, meaning in actions.items()],
    }


def build_entry_row(row: PinRow, target: str, problem: str, result: replay.EntryCompatibility | None) -> dict[str, Any]:
    differences = plan_preview.find_known_differences(result)
    refused = sum(difference.verdict == "refuse" for difference in differences)
    return {
        "pin": row.pin, "name": pin_list.format_pin_name(row.pin), "link": row.link, "state": row.state,
        "target": target, "problem": problem, "refused": refused, "warned": len(differences) - refused,
    }  # fmt: skip


def build_conflict_context(page: PlanPageState, names: dict[int, str]) -> dict[str, Any]:
    """If another user has saved a revision since the draft was started: both sides' changes."""
    if page.newest is None or page.draft.base == page.newest.number or not page.changed:
        return {}
    base = PlanDraft.from_revision(
        replay.list_revisions(page.project, page.plan).filter(number=page.draft.base).first()
    )
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
        build_revision_row(page, revision, plan, " · ".join(describe_draft_changes(before, plan, names)))
        for revision, plan, before in zip(revisions[:MAX_REVISIONS], plans, plans[1:], strict=False)
    ]


def build_revision_row(page: PlanPageState, revision: Revision, plan: PlanDraft, changes: str) -> dict[str, Any]:
    count = len(plan.entries)
    return {
        "number": revision.number,
        "user": revision.user.get_username(),
        "at": revision.created_at,
        "action": revision.action,
        "entries": ngettext("{count} step", "{count} steps", count).format(count=count),
        "changes": changes or _("no changes"),
        "runs": [binding.run for binding in revision.bindings.all() if binding.run.deleted_at is None],
        "link": page.build_link(replace(plan, base=page.saved.base)),
    }
