"""Flagging as people do it at a table: one sample or thousands in one act, and the act undone by one key.

Every act is a `Marking`, which holds what each flag was before and what the act left. Undoing puts back only what
nobody has touched since: also what was changed and changed back stays. A flag that is put back has its old time of
change again, so that the act before it can be undone too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.flags import flags
from rollouts.live import notify_run_changed
from rollouts.models import Flag, Marking, Run, Sample, Step
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from rollouts.query import QueryResult

MOST_AT_ONCE = 2000
UNDO_WINDOW = timedelta(days=1)  # how long an act can be undone

FlagState = list[Any]  # [label, text, withdrawn]
FlagChange = tuple[
    Flag, FlagState | None, str | None
]  # as the act left it; its state before, and when that was written


@dataclass(frozen=True, slots=True)
class UndoResult:
    """What was undone: in words, of how many flags, how many of them had changed since and stay, and the sample where
    the act was about one."""

    said: str
    flags: int
    kept: int
    sample: str


def collect_sample_ids(answer: QueryResult, seen: int | None = None) -> list[str]:
    """The ids of all that a query finds, to be marked. Raises BadInput when that is more than one act may hold, or not
    as many as the person saw."""
    total = answer.total
    if total > MOST_AT_ONCE:
        said = _("The query matches {count} samples. You can flag at most {most} at once; narrow the query.")
        raise InvalidInputError(said.format(count=f"{total:,}", most=f"{MOST_AT_ONCE:,}"))
    if seen is not None and total != seen:
        said = _("The query now matches {count} samples instead of {before}. Check the result, then flag again.")
        raise InvalidInputError(said.format(count=f"{total:,}", before=f"{seen:,}"))
    return list(answer.samples.order_by("pk").values_list("pk", flat=True))


@transaction.atomic
def flag_samples(
    run: Run, sample_ids: Iterable[str], by: User, *, label: str = "bad", reason: str = "", text: str = ""
) -> Marking:
    """Flags these samples of the run for one reason, a key of the project's reasons or empty. Again by the same person
    and reason: label and text are replaced, a withdrawn flag stands again.

    The caller has checked that the person may annotate. Raises BadInput, and NotThere for a sample that the run does
    not have.
    """
    wanted = list(dict.fromkeys(sample_ids))
    flags.check_flag(run.project, label, reason, text)
    if not wanted or len(wanted) > MOST_AT_ONCE:
        problem = _("Select 1 to {most} samples, not {count}.")
        raise InvalidInputError(problem.format(most=f"{MOST_AT_ONCE:,}", count=f"{len(wanted):,}"), "samples")
    steps = locked(run, wanted)
    standing = {flag.sample: flag for flag in Flag.objects.filter(sample__in=wanted, user=by, reason=reason)}
    new = [
        Flag(sample=pk, step_id=steps[pk], run=run, user=by, reason=reason, label=label, text=text)
        for pk in wanted
        if pk not in standing
    ]
    after: FlagState = [label, text, False]
    changed = [flag for flag in standing.values() if state(flag) != after]
    before: list[FlagChange] = [(flag, state(flag), written(flag)) for flag in changed]
    for flag in changed:
        put(flag, after, timezone.now())
    made = Flag.objects.bulk_create(new)
    Flag.objects.bulk_update(changed, ["label", "text", "withdrawn_at", "updated_at"])
    told(run, {steps[flag.sample] for flag in [*made, *changed]})
    one_or_many = ngettext("{flag} on {count} sample", "{flag} on {count} samples", len(wanted))
    said = one_or_many.format(flag=named(run, label, reason), count=f"{len(wanted):,}")
    return kept(run, by, said, [*((flag, None, None) for flag in made), *before], after)


@transaction.atomic
def withdraw_flag(flag: Flag, by: User) -> Marking:
    """`flags.withdraw`, so that it can be undone."""
    hold({flag.step_id})
    flag.refresh_from_db()
    before, since = state(flag), written(flag)
    flag = flags.apply_withdrawal(flag, by)
    said = _("withdrawal of {flag}").format(flag=named(flag.run, flag.label, flag.reason))
    return kept(flag.run, by, said, [(flag, before, since)] if state(flag) != before else [], state(flag))


@transaction.atomic
def undo_flag_action(run: Run, by: User) -> UndoResult:
    """Puts back what the person's newest act in this run changed. Raises NotThere when there is nothing to undo."""
    newest = Marking.objects.select_for_update(no_key=True).filter(
        run=run, user=by, undone_at=None, created_at__gt=timezone.now() - UNDO_WINDOW
    )
    act = newest.order_by("-created_at", "-pk").first()
    if act is None:
        raise NotFoundError(_("Nothing to undo in this run. You can undo your own actions of the last 24 hours."))
    past, left = {pk: rest for pk, *rest in act.before["was"]}, act.before["left"]
    rows = Flag.objects.filter(pk__in=past).order_by("pk")
    hold(set(rows.values_list("step", flat=True)))
    now = timezone.now()
    still = [flag for flag in rows if state(flag) == left and written(flag) == past[flag.pk][0]]
    for flag in still:
        before, since = past[flag.pk][1:]
        put(flag, before or [flag.label, flag.text, True], datetime.fromisoformat(since) if since else now)
    Flag.objects.bulk_update(still, ["label", "text", "withdrawn_at", "updated_at"])
    act.undone_at = now
    act.save(update_fields=["undone_at"])
    touched = sorted({flag.sample for flag in rows})
    record_audit_entry(
        by, "flag.undo", act.said, project=run.project, run=run.uid, samples=touched[:20], flags=len(still)
    )
    told(run, {flag.step_id for flag in still})
    return UndoResult(act.said, len(still), len(past) - len(still), touched[0] if len(touched) == 1 else "")


def locked(run: Run, sample_ids: Sequence[str]) -> dict[str, int]:
    """The step of each sample, its row locked. Raises NotThere."""
    asked = [pk for pk in sample_ids if pk.isascii() and pk.isprintable()]  # PostgreSQL takes no NUL and no half pair
    steps = dict(Sample.objects.filter(pk__in=asked, step__run=run).values_list("pk", "step"))
    if missing := [pk for pk in sample_ids if pk not in steps]:
        said = _("Sample {sample} not found in {run}.")
        raise NotFoundError(said.format(sample=missing[0][:60], run=run.name), "samples")
    hold(set(steps.values()))
    return steps


def hold(step_ids: set[int]) -> None:
    """Locks the steps' rows, always in one order, so that two acts never wait for one another."""
    list(Step.objects.select_for_update(no_key=True).filter(pk__in=step_ids).order_by("pk").values_list("pk"))


def state(flag: Flag) -> FlagState:
    return [flag.label, flag.text, flag.withdrawn_at is not None]


def written(flag: Flag) -> str:
    """When it was last changed, to the microsecond."""
    return flag.updated_at.astimezone(UTC).isoformat()


def put(flag: Flag, wanted: FlagState, at: datetime) -> None:
    flag.label, flag.text = wanted[0], wanted[1]
    flag.withdrawn_at = at if wanted[2] else None
    flag.updated_at = at


def told(run: Run, step_ids: set[int]) -> None:
    """The figures of the steps, and one ring: of the step where it is one, else of the run."""
    steps = list(Step.objects.filter(pk__in=step_ids))
    for step in steps:
        Flag.objects.recount(step)
    if len(steps) == 1:
        notify_run_changed(run, split=steps[0].split, step=steps[0].step)
    elif steps:
        notify_run_changed(run)


def kept(run: Run, by: User, said: str, was: list[FlagChange], left: FlagState) -> Marking:
    """Writes the act down, unless it changed nothing; acts that can no longer be undone are forgotten."""
    Marking.objects.filter(user=by, created_at__lt=timezone.now() - UNDO_WINDOW).delete()
    rows = [[flag.pk, written(flag), before, since] for flag, before, since in was]
    act = Marking(run=run, user=by, said=said[:200], before={"was": rows, "left": left})
    if was:
        act.save()
    return act


def named(run: Run, label: str, reason: str) -> str:
    names = {str(one["key"]): str(one["name"]) for one in run.project.reasons}
    if reason:
        return _("“{reason}” ({label})").format(reason=_(names.get(reason, reason)), label=_(label))
    return _("“{label}”").format(label=_(label))
