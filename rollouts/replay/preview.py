"""What a plan will do at each of its target steps, and what it did in a run. The page, the API and the command line
show the same words.

There are four states. `will_replay`: the prompts of the target step are known and are those of the pin. `unknown`: it
depends on prompts or settings that are not known yet. `conflict`: the entry does not fit the others of the plan.
`will_generate`: the pin cannot be replayed, so the run generates, or stops if the plan says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rolloutdeck.protocol import REFUSE_FACTS, resolve_target
from rolloutdeck.trainer_api import find_loader, format_replays_own_prompts
from rollouts.models import Artifact, Binding, Project, Replay, Run
from rollouts.replay import exclusion, prompts
from rollouts.replay.compatibility import EntryCompatibility
from rollouts.replay.conflicts import find_plan_conflicts
from rollouts.replay.outcomes import PROMPT_KIND, find_worst, is_prompt_of_step

PREVIEW_LABELS = {
    "will_replay": N_("will replay"),
    "unknown": N_("unknown: depends on the prompts"),
    "conflict": N_("conflict in the plan"),
    "will_generate": N_("will generate"),
}
OUTCOME_LABELS = {
    "replayed": N_("replayed"),
    "refused": N_("refused"),
    "generated": N_("generated"),
    "not_reported": N_("not reported"),
    "not_reached": N_("not reached"),
}
OUTCOME_STATES = {"hit": "replayed", "refused": "refused", "miss": "generated"}
UNUSABLE_STATES = {
    Artifact.State.UNSAFE: N_("its files are unsafe"),
    Artifact.State.GONE: N_("its files are unavailable"),
}
MAX_REASON_FACTS = 3
MAX_COMPARED_ENTRIES = 500  # entries whose prompts are compared


@dataclass(frozen=True, slots=True)
class EntryOutcome:
    """What happened at the steps of a run that an entry covers. `reason` is the one of the last step without replay.

    `replayed` of `reported` steps were replayed; with the actions that repeat, an entry covers many steps. If
    `of_prompts`, the trainer reported the prompts of the step, and both numbers count them. `selection`: what was done
    with selected samples in the last of them.
    """

    state: str
    reason: str = ""
    replayed: int = 0
    reported: int = 0
    selection: str = ""
    of_prompts: bool = False

    @property
    def label(self) -> str:
        label = _(OUTCOME_LABELS[self.state])
        if self.reported > 1:
            text = _("{outcome} ({replayed} of {reported} steps replayed)")
            if self.of_prompts:
                text = _("{outcome} ({replayed} of {reported} prompts replayed)")
            return text.format(outcome=label, replayed=self.replayed, reported=self.reported)
        return label

    @property
    def is_known(self) -> bool:
        """Whether the run has reported what happened."""
        return self.state in ("replayed", "refused", "generated")


@dataclass(frozen=True, slots=True)
class EntryPreview:
    """`state` is a key of `PREVIEW_LABELS`. `needs_prompts` is False for pins that are replayed with their own prompts.

    `outcome`: None without a run that uses the entry.
    """

    state: str
    reason: str
    needs_prompts: bool = True
    outcome: EntryOutcome | None = None

    @property
    def label(self) -> str:
        if self.state == "unknown" and not self.needs_prompts:
            return _("unknown: depends on the settings")
        return _(PREVIEW_LABELS[self.state])

    @property
    def was_label(self) -> str:
        """The label after the run: what the preview showed before."""
        return _("was: {preview}").format(preview=self.label)


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What the entries are checked against: a run with its facts, if one was chosen, and the plan's settings."""

    run: Run | None = None
    overridden: Mapping[str, object] = field(default_factory=dict)
    on_selected: str = "keep"
    selected_by: str = "flags"
    facts: Mapping[str, object] = field(default_factory=dict)


def preview_entries(
    entries: Sequence[EntryCompatibility], context: PlanContext, outcomes: Mapping[int, EntryOutcome] | None = None
) -> dict[int, EntryPreview]:
    """Returns the preview of each entry by its target step. The entries were compared with the facts of the run."""
    overridden = list(context.overridden)
    conflicts = find_plan_conflicts(entries, overridden, context.facts, on_selected=context.on_selected)
    compared = load_comparisons(entries[:MAX_COMPARED_ENTRIES], context.run)
    previews = {}
    for entry in entries:
        target = entry.entry.target_step
        if target in conflicts:
            state, reason = "conflict", conflicts[target]
        elif reason := explain_unusable(entry, context):
            state = "will_generate"
        else:
            state, reason = preview_prompts(entry, context.run, compared.get(target))
        needs_prompts = not format_replays_own_prompts(get_format(entry))
        previews[target] = EntryPreview(state, reason, needs_prompts, (outcomes or {}).get(target))
    return previews


def count_states(previews: Iterable[EntryPreview]) -> dict[str, int]:
    counts = Counter(preview.state for preview in previews)
    return {state: counts[state] for state in PREVIEW_LABELS}


def get_format(entry: EntryCompatibility) -> str:
    return str(entry.artifacts[0].facts.get("format") or "") if entry.artifacts else ""


def explain_unusable(entry: EntryCompatibility, context: PlanContext) -> str:
    """Returns why the pin cannot be replayed, whatever the prompts are. Empty if it can."""
    if not entry.artifacts:
        return _("the pin has no files that a trainer can load")
    states = {artifact.state for artifact in entry.artifacts}
    for state, reason in UNUSABLE_STATES.items():
        if state in states and (state == Artifact.State.UNSAFE or states == {state}):
            return _(reason)
    if context.on_selected != "keep" and Artifact.State.READY in states:
        refusal = exclusion.explain_refusal(entry.excluded, entry.artifacts, context.on_selected, context.selected_by)
        if refusal:
            return refusal
    if context.run is None:
        return ""
    refused = [difference for difference in entry.differences if difference.verdict == "refuse"]
    text = _("{fact}: {pinned} pinned, {requested} in {run}")
    return "; ".join(
        text.format(
            fact=difference.fact, pinned=str(difference.pinned)[:40], requested=str(difference.asking)[:40],
            run=context.run.name,
        )
        for difference in refused[:MAX_REASON_FACTS]
    )  # fmt: skip


Comparisons = tuple[prompts.PromptDigest | None, prompts.PromptDigest | None]


def load_comparisons(entries: Sequence[EntryCompatibility], run: Run | None) -> dict[int, Comparisons]:
    """Returns the prompts of the pin and those of the run's step, by target step. Without a run, loads nothing."""
    if run is None:
        return {entry.entry.target_step: (None, None) for entry in entries}
    of_pins = prompts.load_pin_digests({entry.entry.pin for entry in entries})
    positions = {(entry.entry.pin.step_kind, entry.entry.target_step) for entry in entries}
    of_run = prompts.load_run_digests(run, positions)
    return {
        entry.entry.target_step: (
            of_pins.get(entry.entry.pin_id),
            of_run.get((entry.entry.pin.step_kind, entry.entry.target_step)),
        )
        for entry in entries
    }


def preview_prompts(entry: EntryCompatibility, run: Run | None, compared: Comparisons | None) -> tuple[str, str]:
    """Returns state and reason of an entry that the known facts allow. `compared`: None if it is beyond the limit."""
    pin, target = entry.entry.pin, entry.entry.target_step
    if format_replays_own_prompts(get_format(entry)):
        return preview_own_prompts(entry, run)
    if run is None:
        if pin.step == target:
            return "unknown", _("replays only if the next run has the same data, seed and batch size as {run}").format(
                run=pin.run.name
            )
        return "unknown", _("another step than in the source run: replays only if its prompts are the same there")
    if compared is None:
        return "unknown", _("prompts are compared for the first {limit} entries only").format(
            limit=MAX_COMPARED_ENTRIES
        )
    facts, (pinned, requested) = entry.artifacts[0].facts, compared
    if pinned is None or not pinned.is_complete(facts):
        return "unknown", _("not all prompts of the pinned step are recorded")
    if requested is None or not requested.is_complete(facts):
        text = _("{run} has not reached step {step}; checked when it does")
        return "unknown", text.format(run=run.name, step=target)
    names = {"run": run.name, "step": target}
    match prompts.compare_prompts(pinned, requested):
        case "same":
            return "will_replay", _("step {step} of {run} has the same prompts").format(**names)
        case "different":
            return "will_generate", _("the prompts differ from those of step {step} in {run}").format(**names)
    return "unknown", _("step {step} of {run} has the same prompts, recorded in another order").format(**names)


def preview_own_prompts(entry: EntryCompatibility, run: Run | None) -> tuple[str, str]:
    trainer = loader.name if (loader := find_loader(get_format(entry))) else ""
    if run is None:
        return "unknown", _(
            "{trainer} replays the pinned prompts too; the settings of the next run are not known"
        ).format(trainer=trainer)
    unknown = [row.fact for row in entry.differences if row.fact in REFUSE_FACTS and row.asking is None]
    if {"rows", "prompts"} <= set(unknown):
        return "unknown", _("{run} has not reported its batch size").format(run=run.name)
    return "will_replay", _("same settings; {trainer} replays the pinned prompts too").format(trainer=trainer)


def load_entry_outcomes(run: Run, action: str, entries: Mapping[int, int]) -> dict[int, EntryOutcome]:
    """Returns what the run reported for each entry, by target step. `entries`: {target step: pin id}.

    A report belongs to an entry if it names its pin and the run's plan replays the entry at the reported step. An entry
    that the run's revision does not have, and that was not reported, has no outcome.
    """
    action, bound = load_bound_entries(run) or (action, None)
    targets = sorted(entries if bound is None else bound)
    reports: dict[int, dict[int, Replay]] = defaultdict(dict)
    by_prompt: set[int] = set()
    pinned = Counter(entries.values())
    by_pin = {entries[step]: step for step in targets if step in entries and pinned[entries[step]] == 1}
    for row in Replay.objects.filter(run=run).select_related("pin").order_by("attempt__number", "pk"):
        if row.pin is None and row.step_kind == PROMPT_KIND:
            continue  # a prompt that the plan does not have
        if row.pin is not None and is_prompt_of_step(row.step_kind, row.pin):
            target = by_pin.get(row.pin_id or 0)
            if target is not None:
                by_prompt.add(target)
        else:
            target = resolve_target(action, targets, row.step)
        if target is not None and target in entries and row.pin_id in (None, entries[target]):
            reports[target][row.step] = row  # the last attempt counts
    trained = run.steps.current().filter(split="train")
    steps = trained.filter(step_kind=trained.find_kind()).order_by("-step")
    last = steps.values_list("step", flat=True).first()
    outcomes = {
        target: summarize_reports(list(own.values()), of_prompts=target in by_prompt) for target, own in reports.items()
    }
    for target, pin in (bound or {}).items():
        if target not in outcomes and entries.get(target) == pin:
            outcomes[target] = EntryOutcome("not_reported" if last is not None and last >= target else "not_reached")
    return outcomes


def load_bound_entries(run: Run) -> tuple[str, dict[int, int]] | None:
    """Returns action and {target step: pin id} of the revision that the run is bound to."""
    binding = Binding.objects.filter(run=run).select_related("revision").first()
    revision = binding.revision if binding else None
    return (revision.action, dict(revision.entries.values_list("target_step", "pin"))) if revision else None


def summarize_reports(rows: Sequence[Replay], *, of_prompts: bool) -> EntryOutcome:
    """The worst outcome counts: a step that was refused, then one that was generated."""
    ordered = sorted(rows, key=lambda row: row.step)
    replayed = sum(row.outcome == "hit" for row in ordered)
    shown = find_worst(ordered)
    reason = "" if shown.outcome == "hit" else shown.reason
    return EntryOutcome(
        OUTCOME_STATES[shown.outcome], reason, replayed, len(ordered), describe_selection(shown), of_prompts
    )


def describe_selection(row: Replay) -> str:
    """Returns `2 samples masked by version 3 of the rules`; "" for a plan that keeps all samples."""
    count = row.selected or 0
    match row.selected_action:
        case "mask":
            text = ngettext("{count} sample masked", "{count} samples masked", count)
        case "drop":
            text = ngettext("{count} prompt dropped", "{count} prompts dropped", count)
        case _:
            return ""
    text = text.format(count=f"{count:,}")
    if row.guidance_version is None:
        return text
    return _("{change} by version {version} of the rules").format(change=text, version=row.guidance_version)


def find_newest_bound_run(project: Project, plan: str) -> Run | None:
    """Returns the newest run that uses a revision of the plan."""
    runs = project.runs.filter(deleted_at=None, binding__revision__plan__name=plan)
    return runs.select_related("project").order_by("-created_at", "-pk").first()
