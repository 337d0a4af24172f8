"""Correctness: applies a project's rule, written in the query language, to the samples of its steps.

A step is evaluated when it is indexed, and again after the rule has changed. Without a rule, the default applies, which
the index rows of a dump contain already, see `is_correct` in `rollouts/samples/index_rows.py`. `Step.rule` is the
number of the rule that the step was evaluated with, so a killed worker or a lost message leaves nothing half done.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db import transaction
from django.db.models import BooleanField, Case, Exists, F, OuterRef, Q, Value, When
from django.utils import timezone

from rollouts import query
from rollouts.errors import RolloutError, SearchCancelledError, SearchInterruptedError, TooManySearchesError
from rollouts.indexing.reconcile import reconcile_step_again
from rollouts.indexing.step_stats import recompute_step_stats
from rollouts.lib import has_passed
from rollouts.live import notify_run_changed, notify_topics
from rollouts.models import Project, Run, Sample, Step
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = logging.getLogger(__name__)

EVALUATION_LEASE = timedelta(minutes=1)
STEPS_PER_QUERY = 50
SEARCH_ENDED_ERRORS = (SearchInterruptedError, SearchCancelledError, TooManySearchesError)


class EvaluationProgress(NamedTuple):
    """How many steps a project has, and how many of them are not evaluated with its present rule."""

    steps: int
    left: int

    @property
    def done(self) -> int:
        return self.steps - self.left


def change_correctness_rule(project: Project, text: object, by: User) -> Project:
    """Sets the project's rule, empty for the default. Its steps are then due, see `evaluate_due_steps`.

    Changes nothing if the rule is the same. Raises InvalidInputError.
    """
    rule = query.parse_correctness_rule(text).text
    with transaction.atomic():
        row = Project.objects.lock(project)
        if row.correct == rule:
            return row
        before, row.correct, row.rule = row.correct, rule, row.rule + 1
        row.save(update_fields=["correct", "rule"])
        record_audit_entry(by, "correct.set", row.slug, project=row, rule=rule, before=before)
        runs = Run.objects.filter(project=row)
        runs.update(version=F("version") + 1)
        notify_topics("runs", *(f"run:{uid}" for uid in runs.filter(deleted_at=None).values_list("uid", flat=True)))
    return row


def load_evaluation_progress(project: Project) -> EvaluationProgress:
    steps = Step.objects.filter(run__project=project)
    return EvaluationProgress(steps.count(), steps.exclude(rule=project.rule).count())


def find_projects_to_evaluate() -> list[int]:
    """Returns the ids of the projects with due steps that no worker evaluates."""
    due_steps = Step.objects.filter(~Q(rule=OuterRef("rule")), run__project=OuterRef("pk"))
    return list(Project.objects.filter(is_unclaimed(), Exists(due_steps), rule__gt=0).values_list("pk", flat=True))


def is_unclaimed() -> Q:
    return Q(judging_until=None) | has_passed("judging_until", EVALUATION_LEASE)


def evaluate_due_steps(project_id: int) -> None:
    """Evaluates a project's due steps, newest first, unless another worker does. Safe to call again at any time.

    A step whose texts cannot be read has an unknown correctness. If only its search was interrupted, it stays due.
    """
    project = Project.objects.filter(pk=project_id)
    if not project.filter(is_unclaimed()).update(judging_until=timezone.now() + EVALUATION_LEASE):
        return
    due_steps = Step.objects.filter(run__project=project_id).exclude(rule=F("run__project__rule"))
    rows, interrupted = due_steps.order_by("-step", "-pk").values_list("pk", flat=True), set[int]()
    try:
        while steps := list(rows.exclude(pk__in=interrupted)[:STEPS_PER_QUERY]):
            for step in steps:
                try:
                    evaluate_step(step)
                except SEARCH_ENDED_ERRORS as error:
                    log.warning("Step %s is evaluated later: %s", step, error)
                    interrupted.add(step)
                except (RolloutError, ValueError) as error:
                    log.warning("Step %s could not be evaluated: %s", step, error)
                    evaluate_step(step, readable=False)
                project.update(judging_until=timezone.now() + EVALUATION_LEASE)
    finally:
        project.update(judging_until=None)


@transaction.atomic
def evaluate_step(step_id: int, *, readable: bool = True) -> None:
    """Evaluates a step with the present rule, unless that was done already. If its texts are not `readable`, the
    correctness of its samples is unknown afterwards. Raises StorageUnavailableError."""
    step = Step.objects.select_for_update(no_key=True).filter(pk=step_id).first()
    if step is None or step.rule == step.run.project.rule:
        return
    if not readable:
        Sample.objects.filter(step=step).update(correct=None)
        Step.objects.filter(pk=step.pk).update(rule=step.run.project.rule)
    else:
        if not step.run.project.correct:
            reconcile_step_again(step)
        apply_correctness_rule(step)
    recompute_step_stats(step)
    notify_run_changed(step.run, split=step.split, step=step.step)


def apply_correctness_rule(step: Step) -> bool:
    """Applies the project's rule to the rows of a step, which contain the result of the default rule.

    The caller holds the step's row lock. Returns False if the default rule applies. Raises StorageUnavailableError.
    """
    run = Run.objects.select_related("project").get(pk=step.run_id)
    if step.rule != run.project.rule:
        Step.objects.filter(pk=step.pk).update(rule=run.project.rule)
    root = query.parse_query(run.project.correct).root if run.project.correct else None
    if root is None:
        return False
    scope = query.QueryScope(run, Step.objects.filter(pk=step.pk), step.pk)
    rows = Sample.objects.filter(step=step)
    correct, incorrect = (
        rows.filter(visible=True).filter(build_merged_condition(build(root), scope)).values("pk")
        for build in (query.build_known_true, query.build_known_false)
    )
    cases = (When(pk__in=correct, then=Value(True)), When(pk__in=incorrect, then=Value(False)))
    rows.update(correct=Case(*cases, default=Value(None), output_field=BooleanField(null=True)))
    return True


def build_merged_condition(node: query.QueryNode, scope: query.QueryScope) -> Q:
    """Evaluates each term by itself: a term is true for a sample if it is true in any dump of the sample."""
    match node:
        case query.And(parts) | query.Or(parts):
            connector = Q.AND if isinstance(node, query.And) else Q.OR
            return Q(*(build_merged_condition(part, scope) for part in parts), _connector=connector)
        case query.Not(part):
            return ~build_merged_condition(part, scope)
        case _ if isinstance(node, query.BodyTerm):
            try:
                return Q(pk__among=query.scan_bodies(scope, node))
            except query.InvalidQueryError:  # the step does not have the key: it is not recorded there
                return Q(pk__among=[])
        case _:
            return query.build_condition(node, scope)
