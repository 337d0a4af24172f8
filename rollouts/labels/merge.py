"""Merges labels that were made somewhere else, or earlier, into the stored ones. Of one author's two answers to a
question about a sample the newer one holds, so merging again changes nothing, and no later answer is lost.

There is no action to undo: labels may be thousands, of many authors. Replaced states are in the history.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Final

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError
from rollouts.labels.answers import Answer, CheckedAnswer, LabelKey, check_answer
from rollouts.labels.questions import RubricVersion
from rollouts.labels.rubrics import load_rubric, read_rubric
from rollouts.labels.states import UPDATED_FIELDS, LabelState, build_history_row, set_state
from rollouts.labels.store import (
    MAX_TRIES,
    SamplePlace,
    build_label,
    check_ranges,
    check_withdrawal,
    contradicts,
    is_counted,
    lock_steps,
    may_withdraw_of_others,
)
from rollouts.live import notify_run_changed
from rollouts.models import FLAG_NAME, REVIEW_NAME, Label, LabelChange, Project, Run, Sample

if TYPE_CHECKING:
    from django.db.models import QuerySet

MAX_ROWS_PER_WRITE: Final = 500


class MergeOutcome(StrEnum):
    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    OLDER = "older"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class DatedAnswer:
    """An answer with its times. `rubric` is the number of the version that was answered, None if unknown. Without
    `is_exact` the times are those of the file."""

    answer: Answer
    created_at: datetime
    updated_at: datetime
    rubric: int | None = None
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Merged:
    """What became of an answer. `problem` says why it is not stored."""

    outcome: MergeOutcome
    problem: str = ""


@dataclass(slots=True)
class MergeState:
    """The stored labels, and their states after the answers so far."""

    labels: dict[LabelKey, Label]
    states: dict[LabelKey, tuple[LabelState, datetime]]
    own: dict[tuple[str, str, str], set[LabelKey]] = field(default_factory=dict)  # by sample, source and author
    created: dict[LabelKey, datetime] = field(default_factory=dict)

    def put(self, key: LabelKey, state: LabelState, at: datetime) -> None:
        self.states[key] = state, at
        self.own.setdefault((key.sample, key.source, key.author), set()).add(key)


def merge_labels(
    project: Project,
    by: User,
    answers: Sequence[DatedAnswer],
    *,
    any_author: bool = False,
    dry_run: bool = False,
) -> list[Merged]:
    """Returns what became of each answer. An answer that is not valid costs only itself.

    `any_author`: also answers of other people; the caller has checked that `by` may. An author with an account in the
    project gets the label; of others `by` is the person who stored it. The samples are in the project.
    """
    for attempt in range(MAX_TRIES):
        try:
            with transaction.atomic():
                return _merge(project, by, answers, any_author=any_author, dry_run=dry_run)
        except IntegrityError:  # another request has just stored the same label
            if attempt == MAX_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _merge(
    project: Project, by: User, answers: Sequence[DatedAnswer], *, any_author: bool, dry_run: bool
) -> list[Merged]:
    ids = {dated.answer.sample for dated in answers}
    places = load_places(project, ids)
    if not dry_run:
        lock_steps({place.step_id for place in places.values()})
        places = load_places(project, ids)  # retention may have dropped some before the lock
    checked, merged = check_dated_answers(project, by, answers, places, any_author=any_author)
    state = load_state(list(checked.values()), locked=not dry_run)
    may_withdraw = cache(lambda: may_withdraw_of_others(project, by))  # asked for some labels only
    for position in sorted(checked, key=lambda position: (answers[position].updated_at, position)):
        try:
            merged[position] = Merged(apply_answer(checked[position], answers[position], state, by, may_withdraw))
        except InvalidInputError as error:
            merged[position] = Merged(MergeOutcome.INVALID, str(error))
    if not dry_run:
        write_changes(project, by, state, places)
    return [merged[position] for position in range(len(answers))]


def load_places(project: Project, ids: Collection[str]) -> dict[str, SamplePlace]:
    rows = Sample.objects.filter(pk__in=ids, step__run__project=project).values_list("pk", "step", "chars")
    return {pk: SamplePlace(step, chars) for pk, step, chars in rows}


def check_dated_answers(
    project: Project,
    by: User,
    answers: Sequence[DatedAnswer],
    places: dict[str, SamplePlace],
    *,
    any_author: bool,
) -> tuple[dict[int, CheckedAnswer], dict[int, Merged]]:
    """Returns the valid answers and the problems of the others, by position."""
    newest = load_rubric(project)
    numbers = {dated.rubric for dated in answers if dated.rubric} - {newest.number}
    versions = {row.number: read_rubric(row, has_author=False) for row in project.rubrics.filter(number__in=numbers)}
    versions[newest.number] = newest
    checked: dict[int, CheckedAnswer] = {}
    merged: dict[int, Merged] = {}
    for position, dated in enumerate(answers):
        try:
            if dated.answer.sample not in places:
                raise InvalidInputError(_("The sample no longer exists."), "sample")
            answer = check_version(project, by, dated, newest, versions, any_author=any_author)
            check_ranges([answer], places)
            checked[position] = answer
        except InvalidInputError as error:
            merged[position] = Merged(MergeOutcome.INVALID, str(error))
    return checked, merged


def check_version(
    project: Project,
    by: User,
    dated: DatedAnswer,
    newest: RubricVersion,
    versions: Mapping[int, RubricVersion],
    *,
    any_author: bool,
) -> CheckedAnswer:
    """Checks an answer with the version that was answered, else with the newest, and keeps the number of a version that
    this server does not have. Raises InvalidInputError."""
    named = versions.get(dated.rubric) if dated.rubric else None
    if named is not None and named is not newest:
        try:
            return check_answer(project, named, by, dated.answer, any_author=any_author)
        except InvalidInputError:
            pass  # it may be the version of another server that has the same number
    answer = check_answer(project, newest, by, dated.answer, any_author=any_author)
    if dated.rubric and dated.rubric != newest.number and answer.state.rubric is not None:
        return answer._replace(state=answer.state._replace(rubric=None, rubric_number=dated.rubric))
    return answer


def load_state(answers: Sequence[CheckedAnswer], *, locked: bool) -> MergeState:
    """Loads the labels that the answers may replace or contradict, in one query."""
    names = {answer.key.name for answer in answers}
    asked = Q(name__in=names)
    if any(map(is_counted, names)):
        asked |= Q(name=REVIEW_NAME) | Q(name__startswith=FLAG_NAME)
    authors = {answer.key.author for answer in answers}
    rows: QuerySet[Label] = Label.objects.select_for_update(no_key=True) if locked else Label.objects.all()
    rows = rows.filter(asked, sample__in={answer.key.sample for answer in answers}, author__in=authors).order_by("pk")
    state = MergeState({}, {})
    for row in rows:
        key = LabelKey(row.sample, row.name, row.source, row.author)
        state.labels[key] = row
        state.put(key, LabelState.of_label(row), row.updated_at)
    return state


def apply_answer(
    checked: CheckedAnswer, dated: DatedAnswer, state: MergeState, by: User, may_withdraw: Callable[[], bool]
) -> MergeOutcome:
    """Raises InvalidInputError if `by` may not withdraw the label."""
    key, new, at = checked.key, checked.state, dated.updated_at
    stored, stored_at = state.states.get(key, (None, None))
    if new.withdrawn:
        if stored is None:
            return MergeOutcome.UNCHANGED
        if key in state.labels and not stored.withdrawn:
            check_withdrawal(state.labels[key], by, may_withdraw)
        new = stored._replace(withdrawn=True)
    if stored is not None and stored_at is not None:
        if stored == new or (at <= stored_at and is_same_answer(stored, new)):
            if dated.is_exact:  # an answer from before the repeated one is older
                state.put(key, stored, max(at, stored_at))
            return MergeOutcome.UNCHANGED
        if at <= stored_at:
            return MergeOutcome.OLDER
    others = () if new.withdrawn else find_contradicting(key, new, state)
    if any(state.states[other][1] > at for other in others):
        return MergeOutcome.OLDER
    for other in others:
        state.put(other, state.states[other][0]._replace(withdrawn=True), at)
    state.put(key, new, at)
    if stored is None:
        state.created[key] = min(dated.created_at, at)
        return MergeOutcome.NEW
    return MergeOutcome.CHANGED


def is_same_answer(first: LabelState, second: LabelState) -> bool:
    """Whether they differ at most in the version of the rubric."""
    return first._replace(rubric=None, rubric_number=None) == second._replace(rubric=None, rubric_number=None)


def find_contradicting(key: LabelKey, new: LabelState, state: MergeState) -> list[LabelKey]:
    """The active labels of the same author that say the opposite: OK, and a flag that says bad."""
    own = state.own.get((key.sample, key.source, key.author), set()) - {key}
    active = [other for other in own if not state.states[other][0].withdrawn]
    return [other for other in active if contradicts(key, new, other, state.states[other][0])]


def write_changes(project: Project, by: User, state: MergeState, places: Mapping[str, SamplePlace]) -> None:
    """Stores the states that differ from the stored labels, the replaced ones in the history, and notifies."""
    accounts = find_accounts(project, {key.author for key in state.states if key.source == Label.Source.HUMAN})
    runs = load_runs(places[key.sample].step_id for key in state.created)
    new, changed, history = [], [], []
    for key, (after, at) in state.states.items():
        label = state.labels.get(key)
        user = accounts.get(key.author) if key.source == Label.Source.HUMAN else by
        if label is None:
            step = places[key.sample].step_id
            label = build_label(key, after, runs[step], step, user or by, at)
            label.created_at = state.created[key]
            label.withdrawn_at = at if after.withdrawn else None
            new.append(label)
        elif (before := LabelState.of_label(label)) == after:
            if at > label.updated_at:  # whose label it is does not change
                label.updated_at = at
                changed.append(label)
        else:
            history.append(build_history_row(label, before, label.updated_at))
            set_state(label, after, at)
            label.user_id = user.pk if user else label.user_id
            changed.append(label)
    Label.objects.bulk_create(new, batch_size=MAX_ROWS_PER_WRITE)
    LabelChange.objects.bulk_create(history, batch_size=MAX_ROWS_PER_WRITE)
    Label.objects.bulk_update(changed, UPDATED_FIELDS, batch_size=MAX_ROWS_PER_WRITE)
    notify_merged([*new, *changed])


def find_accounts(project: Project, names: Collection[str]) -> dict[str, User]:
    """Members of the project, and administrators, by name."""
    rows = User.objects.filter(Q(memberships__project=project) | Q(is_superuser=True), username__in=names)
    return {user.get_username(): user for user in rows}


def load_runs(steps: Iterable[int]) -> dict[int, Run]:
    """Runs by step."""
    rows = Run.objects.filter(steps__in=set(steps)).values_list("steps", "pk")
    return {step: Run(pk=run) for step, run in rows}


def notify_merged(labels: Sequence[Label]) -> None:
    """Counts the flagged samples of the steps again, and sends one notification for each run."""
    if counted := {label.step_id for label in labels if label.is_flag}:
        Label.objects.recount_steps(counted)
    for run in Run.objects.filter(pk__in={label.run_id for label in labels}).order_by("pk"):
        notify_run_changed(run, sparse=True)
