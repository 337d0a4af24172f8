"""Marks the steps that a later attempt superseded."""

from django.db.models import Min

from rollouts.models import Dump, Run


def mark_superseded_steps(run: Run) -> None:
    """Marks the steps that a later attempt repeated: from its own first step on, for each step kind.

    Training steps are superseded from the later attempt's first training step on, evaluations from its first step of
    either split. Attempts that run at the same time supersede nothing of each other. Imported artifacts of steps that
    another attempt has supersede nothing. The caller holds the run's row lock, so two attempts that arrive together see
    each other.
    """
    copies, others = find_imported_steps(run)
    rows = run.steps.filter(samples__gt=0).exclude(pk__in=copies).order_by()
    axes = ("attempt__number", "step_kind", "split")
    firsts = rows.values_list(*axes).annotate(first=Min("step"))
    if copies:
        run.steps.filter(pk__in=copies).update(superseded=True)
    if len({number for number, *_ in firsts}) < 2:
        run.steps.filter(superseded=True).exclude(pk__in=copies).update(superseded=False)
        return
    starts: dict[tuple[int, str, str], int] = {}  # where the attempt supersedes earlier ones
    own_firsts = rows.exclude(pk__in=others).values_list(*axes).annotate(first=Min("step")) if others else firsts
    for number, kind, split, step in own_firsts:
        for affected in ("train", "eval") if split == "train" else ("eval",):
            starts[number, kind, affected] = min(step, starts.get((number, kind, affected), step))
    groups = dict(run.attempts.exclude(concurrent_with=None).values_list("number", "concurrent_with"))
    for number, kind, split, _ in firsts:
        later = [
            step
            for (other, *axis), step in starts.items()
            if other > number
            and axis == [kind, split]
            and (number not in groups or groups[number] != groups.get(other))
        ]
        own = run.steps.filter(attempt__number=number, step_kind=kind, split=split)
        repeated = own.filter(step__gte=min(later)) if later else own.none()
        repeated.filter(superseded=False).update(superseded=True)
        restored = own.filter(superseded=True).exclude(pk__in=copies)
        restored.exclude(pk__in=repeated.values("pk")).update(superseded=False)


def find_copied_steps(run: Run) -> list[int]:
    """Returns the ids of steps with only artifact dumps whose text another attempt has, because of an import."""
    return find_imported_steps(run)[0]


def find_imported_steps(run: Run) -> tuple[list[int], list[int]]:
    """Returns the ids of the copied steps, and of the other steps with only artifact dumps of the same attempts."""
    if not run.artifacts.exists():
        return [], []
    fields = ("attempt", "split", "step_kind", "step")
    dumps = run.dumps.filter(segment__isnull=False)
    from_artifacts = set(dumps.filter(source__startswith=Dump.ARTIFACT_PREFIX).values_list(*fields))
    others = dumps.filter(step__in={step for *_, step in from_artifacts})
    with_text = set(others.exclude(source__startswith=Dump.ARTIFACT_PREFIX).values_list(*fields))
    axes = {position[1:] for position in with_text}
    textless = from_artifacts - with_text
    copies = {position for position in textless if position[1:] in axes}
    attempts = {attempt for attempt, *_ in copies}
    imported = {position for position in textless if position[0] in attempts}
    rows = run.steps.filter(step__in={step for *_, step in imported}).values_list("pk", *fields) if imported else ()
    found = [(pk, tuple(position)) for pk, *position in rows if tuple(position) in imported]
    return [pk for pk, at in found if at in copies], [pk for pk, at in found if at not in copies]
