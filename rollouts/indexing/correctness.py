"""What counts as correct in a project: its rule in the query language, applied when a step is indexed and to all steps
when the rule changes.

Without a rule of its own a project has the default, whose verdict the rows of a dump come with, see `rows.is_correct`.
`Step.rule` says by which rule a step was judged, so a worker that dies, or a message that is lost, leaves nothing half
judged.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db import transaction
from django.db.models import BooleanField, Case, Exists, F, OuterRef, Q, QuerySet, Value, When
from django.utils import timezone

from rollouts.errors import RolloutError
from rollouts.indexing.reconcile import reconcile_step_again
from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.live import notify_run_changed, notify_topics
from rollouts.models import Project, Run, Sample, Step
from rollouts.projects import record_audit_entry
from rollouts.query import (
    And,
    BodyTerm,
    InvalidQueryError,
    Not,
    Or,
    QueryNode,
    QueryScope,
    build_condition,
    build_known_false,
    build_known_true,
    parse_correctness_rule,
    parse_query,
    scan_bodies,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = logging.getLogger(__name__)

EVALUATION_LEASE = timedelta(minutes=1)
PORTION = 50  # steps asked for at a time


class EvaluationProgress(NamedTuple):
    """How far a project's steps are judged by its present rule."""

    steps: int
    left: int

    @property
    def done(self) -> int:
        return self.steps - self.left


def change_correctness_rule(project: Project, told: object, by: User) -> Project:
    """Gives the project another rule, empty for the default; its steps are then due to be judged, see `judge_due`. The
    same rule again changes nothing. Raises BadInput."""
    found = parse_correctness_rule(told).text
    with transaction.atomic():
        row = Project.objects.lock(project)
        if row.correct == found:
            return row
        before, row.correct, row.rule = row.correct, found, row.rule + 1
        row.save(update_fields=["correct", "rule"])
        record_audit_entry(by, "correct.set", row.slug, project=row, rule=found, before=before)
        runs = Run.objects.filter(project=row)
        runs.update(version=F("version") + 1)
        notify_topics("runs", *(f"run:{uid}" for uid in runs.filter(deleted_at=None).values_list("uid", flat=True)))
    return row


def load_evaluation_progress(project: Project) -> EvaluationProgress:
    steps = Step.objects.filter(run__project=project)
    return EvaluationProgress(steps.count(), steps.exclude(rule=project.rule).count())


def find_projects_to_evaluate() -> list[int]:
    """Ids of projects that have steps to judge and that no worker is at."""
    waiting = Step.objects.filter(~Q(rule=OuterRef("rule")), run__project=OuterRef("pk"))
    changed = Project.objects.filter(free(), Exists(waiting), rule__gt=0)
    return list(changed.values_list("pk", flat=True))


def free() -> Q:
    return Q(judging_until=None) | Q(judging_until__lte=timezone.now())


def evaluate_due_steps(project_id: int) -> None:
    """Judges what is due in a project if nobody else does, a step at a time, newest first. Calling it again, at any
    time and from anywhere, does no harm."""
    mine = Project.objects.filter(pk=project_id)
    if not mine.filter(free()).update(judging_until=timezone.now() + EVALUATION_LEASE):
        return
    try:
        while steps := waiting(project_id):
            for step in steps:
                judge_or_leave(step)
                mine.update(judging_until=timezone.now() + EVALUATION_LEASE)
    finally:
        mine.update(judging_until=None)


def waiting(project_id: int) -> list[int]:
    late = Step.objects.filter(run__project=project_id).exclude(rule=F("run__project__rule"))
    return list(late.order_by("-step", "-pk").values_list("pk", flat=True)[:PORTION])


def judge_or_leave(step_id: int) -> None:
    """A step whose texts cannot be read is left unjudged, which is what the pages then say."""
    try:
        evaluate_step(step_id)
    except RolloutError as error:
        log.warning("Step %s could not be judged: %s", step_id, error)
        evaluate_step(step_id, readable=False)


@transaction.atomic
def evaluate_step(step_id: int, *, readable: bool = True) -> None:
    """Judges a step by the present rule, unless that has been done. Raises StorageUnavailable."""
    step = Step.objects.select_for_update(no_key=True).filter(pk=step_id).first()
    if step is None or step.rule == step.run.project.rule:
        return
    if not readable:
        Sample.objects.filter(step=step).update(correct=None)
        mark(step, step.run.project)
    else:
        if not step.run.project.correct:
            reconcile_step_again(step)
        apply_correctness_rule(step)
    recompute_step_stats(step)
    notify_run_changed(step.run, split=step.split, step=step.step)


def apply_correctness_rule(step: Step) -> bool:
    """Judges the rows of a step, which have come with the default's verdict, under its row lock; False where the
    default stands. Raises StorageUnavailable."""
    run = Run.objects.select_related("project").get(pk=step.run_id)
    mark(step, run.project)
    root = parse_query(run.project.correct).root if run.project.correct else None
    if root is None:
        return False
    scope = QueryScope(run, Step.objects.filter(pk=step.pk), step.pk)
    rows = Sample.objects.filter(step=step)
    right, wrong = (
        rows.filter(visible=True).filter(asked(part(root), scope)) for part in (build_known_true, build_known_false)
    )
    rows.update(correct=verdict(right, wrong))
    return True


def mark(step: Step, project: Project) -> None:
    if step.rule != project.rule:
        Step.objects.filter(pk=step.pk).update(rule=project.rule)


def verdict(right: QuerySet[Sample], wrong: QuerySet[Sample]) -> Case:
    return Case(
        When(pk__in=right.values("pk"), then=Value(True)),
        When(pk__in=wrong.values("pk"), then=Value(False)),
        default=Value(None),
        output_field=BooleanField(null=True),
    )


def asked(node: QueryNode, scope: QueryScope) -> Q:
    """Each term by itself: a sample that several dumps tell of has what any of them says."""
    match node:
        case And(parts) | Or(parts):
            kind = Q.AND if isinstance(node, And) else Q.OR
            return Q(*(asked(part, scope) for part in parts), _connector=kind)
        case Not(part):
            return ~asked(part, scope)
        case _ if isinstance(node, BodyTerm):
            return Q(pk__among=matching(scope, node))
        case _:
            return build_condition(node, scope)


def matching(scope: QueryScope, leaf: QueryNode) -> list[str]:
    """A key that no sample of the step has is one that is not recorded there."""
    try:
        return scan_bodies(scope, leaf)
    except InvalidQueryError:
        return []
