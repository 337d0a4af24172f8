"""Stores labels of one sample or thousands in one action, with their history.

Every action is a `LabelAction` row, which stores the state of each label before and after the action; `undo.py` reads
it. Actions that change flags lock the steps, because steps count their flagged samples. Others lock only labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Final

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.labels.answers import Answer, CheckedAnswer, LabelKey, check_answers, format_answer
from rollouts.labels.load import MODERATORS, find_blind_samples
from rollouts.labels.questions import RubricVersion
from rollouts.labels.rubrics import load_rubric
from rollouts.labels.states import (
    UPDATED_FIELDS,
    LabelState,
    StateChange,
    build_changes_json,
    build_history_row,
    format_updated_at,
    get_number,
    set_state,
)
from rollouts.live import notify_run_changed
from rollouts.models import FLAG_NAME, REVIEW_NAME, Label, LabelAction, LabelChange, Project, Run, Sample, Step
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from datetime import datetime

    from django.contrib.auth.models import User

MAX_SAMPLES: Final = 2000  # per action
MAX_ANSWERS: Final = 20_000  # per action
MAX_TRIES: Final = 3
UPDATED_ROWS: Final = 500  # of one statement, which has a branch for each row and field
UNDO_WINDOW: Final = timedelta(days=1)  # how long an action can be undone


@dataclass(frozen=True, slots=True)
class SamplePlace:
    step_id: int
    chars: int


def store_labels(
    run: Run, by: User, answers: Iterable[Answer], *, rubric: RubricVersion | None = None, description: str = ""
) -> LabelAction:
    """Stores the answers of `by`, or of the functions and models that they name, in one action that can be undone.

    A label of the same author, sample and name is replaced, and active again if it was withdrawn; its earlier state is
    in its history. A value of None withdraws it. `review=ok` withdraws one's own flags that say bad, and such a flag
    withdraws one's own `review=ok`. `rubric`: the version that was answered, by default the project's current one.
    The action has no pk if nothing changed. The caller has checked that the user may annotate. Raises
    InvalidInputError, and NotFoundError if the run does not have a sample.
    """
    rows = list(answers)
    for attempt in range(MAX_TRIES):
        try:
            with transaction.atomic():
                return _store(run, by, rows, rubric or load_rubric(run.project), description)
        except IntegrityError:  # another request of the same author has just stored the same label
            if attempt == MAX_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _store(run: Run, by: User, answers: Sequence[Answer], rubric: RubricVersion, description: str) -> LabelAction:
    ids = list(dict.fromkeys(answer.sample for answer in answers))
    if not ids or len(ids) > MAX_SAMPLES:
        message = _("Select 1 to {limit} samples, not {count}.")
        raise InvalidInputError(message.format(limit=f"{MAX_SAMPLES:,}", count=f"{len(ids):,}"), "samples")
    if len(answers) > MAX_ANSWERS:
        message = _("At most {limit} labels can be stored at once, not {count}.")
        raise InvalidInputError(message.format(limit=f"{MAX_ANSWERS:,}", count=f"{len(answers):,}"), "labels")
    checked = check_answers(run.project, rubric, by, answers)
    lock_steps({place.step_id for place in find_samples(run, ids).values()})
    samples = find_samples(run, ids)  # retention may have dropped some before the lock
    check_blind_items(by, checked)
    check_ranges(checked, samples)
    existing = load_existing(ids, checked, by)
    now = timezone.now()
    changes: list[StateChange] = []
    new: list[Label] = []
    changed: set[LabelKey] = set()
    may_withdraw = cache(lambda: may_withdraw_of_others(run.project, by))  # asked for some labels only
    for key, state in apply_answers(checked, existing, by).items():
        if label := existing.get(key):
            if (before := LabelState.of_label(label)) != state:
                if state.withdrawn:
                    check_withdrawal(label, by, may_withdraw)
                changes.append(StateChange(label, before, format_updated_at(label), state, label.user_id))
                changed.add(key)
        elif not state.withdrawn:
            label = build_label(key, state, run, samples[key.sample].step_id, by, now)
            changes.append(StateChange(label, None, None, state, by.pk))
            new.append(label)
            changed.add(key)
    others = [change.label for change in changes if change.after.withdrawn and change.user_before not in (None, by.pk)]
    save_changes(changes, new, by, now)
    if machine := [label for label in others if label.source != Label.Source.HUMAN]:
        detail = {"run": run.uid, "name": machine[0].name, "author": machine[0].author, "labels": len(machine)}
        record_audit_entry(by, "label.withdraw", machine[0].sample, project=run.project, **detail)
    if not description:
        names = ngettext("{flag} on {count} sample", "{flag} on {count} samples", len(ids))
        shown = [answer for answer in checked if answer.key in changed] or checked  # not what was empty and stays so
        description = names.format(flag=format_answers(run, rubric, shown), count=f"{len(ids):,}")
    action = store_action(run, by, description, changes)
    notify_changes(run, [change.label for change in changes])
    return action


def may_withdraw_of_others(project: Project, by: User) -> bool:
    return project.role_of(by) in MODERATORS


def check_withdrawal(label: Label, by: User, may_withdraw: Callable[[], bool]) -> None:
    """Raises InvalidInputError if another user stored the label of a function or model. `may_withdraw`: see
    `may_withdraw_of_others`. What people say is theirs, which `check_answer` checks."""
    is_machine = label.source != Label.Source.HUMAN
    if is_machine and label.user_id != by.pk and not may_withdraw():
        raise InvalidInputError(_("This is another user's label. Only a maintainer can withdraw it."), "value")


def find_samples(run: Run, ids: Sequence[str]) -> dict[str, SamplePlace]:
    """Returns where the samples are. Raises NotFoundError if the run does not have one."""
    valid = [pk for pk in ids if pk.isascii() and pk.isprintable()]  # PostgreSQL refuses NUL and surrogates
    rows = Sample.objects.filter(pk__in=valid, step__run=run).values_list("pk", "step", "chars")
    places = {pk: SamplePlace(step, chars) for pk, step, chars in rows}
    if missing := [pk for pk in ids if pk not in places]:
        message = _("Sample {sample} not found in {run}.")
        raise NotFoundError(message.format(sample=missing[0][:60], run=run.name), "samples")
    return places


def check_blind_items(by: User, answers: Iterable[CheckedAnswer]) -> None:
    """Raises InvalidInputError for labels of functions and models of items that `by` reviews blindly: whether a label
    changes says what it is, and the new one could be read."""
    machine = {answer.key.sample for answer in answers if answer.key.source != Label.Source.HUMAN}
    if machine and (hidden := find_blind_samples(by, machine)):
        message = _("You review sample {sample} blindly, so you cannot store labels of functions or models for it.")
        raise InvalidInputError(message.format(sample=min(hidden)), "source")


def check_ranges(answers: Iterable[CheckedAnswer], samples: dict[str, SamplePlace]) -> None:
    for answer in answers:
        if answer.state.end is not None and answer.state.end > (chars := samples[answer.key.sample].chars):
            message = _("The range of `{name}` ends after the response, which has {count} characters.")
            raise InvalidInputError(message.format(name=answer.key.name, count=f"{chars:,}"), "end")


def is_counted(name: str) -> bool:
    """Returns whether an answer can change flags, which steps count."""
    return name.startswith(FLAG_NAME) or name == REVIEW_NAME


def lock_steps(step_ids: Collection[int]) -> None:
    """Locks the rows of the steps, always in the same order, so that two actions do not deadlock. Who deletes samples
    locks them too, so that no label of a deleted sample remains."""
    list(Step.objects.select_for_update(no_key=True).filter(pk__in=step_ids).order_by("pk").values_list("pk"))


def load_existing(ids: Sequence[str], answers: Sequence[CheckedAnswer], by: User) -> dict[LabelKey, Label]:
    """Returns the labels that the answers replace, and the user's labels that they may contradict; locked."""
    names = {answer.key.name for answer in answers}
    authors = {(answer.key.source, answer.key.author) for answer in answers}
    asked = Q(name__in=names)
    if any(map(is_counted, names)):
        asked |= Q(name=REVIEW_NAME) | Q(name__startswith=FLAG_NAME)
    own = Q(*(Q(source=source, author=author) for source, author in sorted(authors)), _connector=Q.OR)
    rows = Label.objects.select_for_update(no_key=True).filter(asked, own, sample__in=ids).order_by("pk")
    return {LabelKey(row.sample, row.name, row.source, row.author): row for row in rows}


def apply_answers(
    answers: Iterable[CheckedAnswer], existing: dict[LabelKey, Label], by: User
) -> dict[LabelKey, LabelState]:
    """Returns the state of each label after the answers, in their order."""
    states = {key: LabelState.of_label(label) for key, label in existing.items()}
    own: dict[str, list[LabelKey]] = {}
    for key in states:
        own.setdefault(key.sample, []).append(key)
    for answer in answers:
        key, state = answer.key, answer.state
        if state.withdrawn and key not in states:
            continue
        if key not in states:
            own.setdefault(key.sample, []).append(key)
        states[key] = states[key]._replace(withdrawn=True) if state.withdrawn else state
        for other in own[key.sample]:
            if not state.withdrawn and contradicts(key, state, other, states[other]):
                states[other] = states[other]._replace(withdrawn=True)
    return states


def contradicts(key: LabelKey, state: LabelState, other: LabelKey, other_state: LabelState) -> bool:
    """Returns whether one author says both OK and bad about one sample."""
    if (key.source, key.author) != (other.source, other.author):
        return False
    if key.name == REVIEW_NAME and state.value == "ok":
        return other.name.startswith(FLAG_NAME) and other_state.value == "bad"
    return (
        key.name.startswith(FLAG_NAME)
        and state.value == "bad"
        and other.name == REVIEW_NAME
        and (other_state.value == "ok")
    )


def build_label(key: LabelKey, state: LabelState, run: Run, step_id: int, by: User, at: datetime) -> Label:
    return Label(
        sample=key.sample, name=key.name, source=key.source, author=key.author, run=run, step_id=step_id, user=by,
        value=state.value, number=get_number(state.value), answer=state.answer, rationale=state.rationale,
        rubric_id=state.rubric, rubric_number=state.rubric_number, start=state.start, end=state.end, created_at=at,
        updated_at=at,
    )  # fmt: skip


def save_changes(changes: Sequence[StateChange], new: Sequence[Label], by: User, at: datetime) -> None:
    """Writes the new states, and the replaced ones to the history. `by` is the author of what people say: labels that
    were imported before the author had an account are theirs from now on."""
    history = []
    for change in changes:
        if change.before is not None:
            history.append(build_history_row(change.label, change.before, change.label.updated_at))
            # An imported label may have a time ahead of this clock: this answer is newer.
            set_state(change.label, change.after, max(at, change.label.updated_at + timedelta(microseconds=1)))
            change.label.user = by
    if new:
        Label.objects.bulk_create(new)
    if history:
        LabelChange.objects.bulk_create(history)
        replaced = [change.label for change in changes if change.before is not None]
        Label.objects.bulk_update(replaced, UPDATED_FIELDS, batch_size=UPDATED_ROWS)


def notify_changes(run: Run, labels: Iterable[Label]) -> None:
    """Counts the flagged samples of the steps again and sends one notification: for the step if it is one, else for
    the run."""
    counted = {label.step_id: False for label in labels}
    for label in labels:
        counted[label.step_id] |= label.is_flag
    steps = list(Step.objects.filter(pk__in=counted).only("split", "step"))
    for step in steps:
        if counted[step.pk]:
            Label.objects.recount(step)
    if len(steps) == 1:
        notify_run_changed(run, split=steps[0].split, step=steps[0].step, sparse=True)
    elif steps:
        notify_run_changed(run, sparse=True)


def store_action(run: Run, by: User, description: str, changes: Sequence[StateChange]) -> LabelAction:
    """Returns the action, stored if it changed a label. Deletes the user's actions that can no longer be undone."""
    LabelAction.objects.filter(user=by, created_at__lt=timezone.now() - UNDO_WINDOW).delete()
    action = LabelAction(run=run, user=by, description=description[:200], before=build_changes_json(changes))
    if changes:
        action.save()
    return action


def format_answers(run: Run, rubric: RubricVersion, answers: Sequence[CheckedAnswer]) -> str:
    """Returns the answers in the user's language, or their number if they differ."""
    texts = dict.fromkeys(format_answer(run.project, rubric, answer.key.name, answer.value) for answer in answers)
    if len(texts) == 1:
        return next(iter(texts))
    return ngettext("{count} label", "{count} labels", len(answers)).format(count=f"{len(answers):,}")


def withdraw_label(label: Label, by: User) -> LabelAction:
    """Withdraws a label in an action that can be undone. The label remains readable. The caller has checked
    `can_withdraw_label`."""
    with transaction.atomic():
        if label.is_flag:
            lock_steps({label.step_id})
        Label.objects.select_for_update(no_key=True).filter(pk=label.pk).first()
        label.refresh_from_db()
        changes: list[StateChange] = []
        if label.withdrawn_at is None:
            before = LabelState.of_label(label)
            after = before._replace(withdrawn=True)
            changes = [StateChange(label, before, format_updated_at(label), after, label.user_id)]
            save_changes(changes, [], label.user, timezone.now())
            if label.user_id != by.pk and not label.is_flag:  # flags have their own entry
                detail = {"run": label.run.uid, "name": label.name, "author": label.author}
                record_audit_entry(by, "label.withdraw", label.sample, project=label.run.project, **detail)
        shown = format_answer(label.run.project, load_rubric(label.run.project), label.name, label.value)
        action = store_action(label.run, by, _("withdrawal of {flag}").format(flag=shown), changes)
        notify_changes(label.run, [change.label for change in changes])
        return action
