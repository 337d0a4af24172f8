"""Labels: what people, functions and models say about samples, the rubrics they answer, and their history.

A flag and an OK are labels with the names `flag`, `flag.<reason>` and `review`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.apps import apps
from django.conf import settings
from django.db import models
from django.db.models import Count, Exists, OuterRef, Q, Subquery
from django.utils import timezone
from django.utils.translation import gettext as _

from rollouts.models.projects import Project
from rollouts.models.runs import Run
from rollouts.models.samples import Sample
from rollouts.models.steps import Step

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.contrib.auth.models import AnonymousUser, User

FLAG_NAME: Final = "flag"
FLAG_PREFIX: Final = "flag."
REVIEW_NAME: Final = "review"
OK_ANSWER: Final = " ok "
RUBRIC_NUMBER_HELP: Final = "of a version that only the server has that the label was imported from"


def get_flag_name(reason: str) -> str:
    """Returns the name of the label that is a flag with this reason, or without one."""
    return FLAG_PREFIX + reason if reason else FLAG_NAME


def format_value(value: Any) -> str:
    """Returns the value of a label for people, in their language; options by their keys."""
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    names = {
        "ok": _("OK"),
        "cannot-judge": _("cannot judge"),
        "bad": _("bad"),
        "good": _("good"),
        "unsure": _("unsure"),
    }
    return names.get(value, value) if isinstance(value, str) else str(value)


class Rubric(models.Model):
    """A version of a project's questions. A row never changes: an edit adds the next `number`."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="rubrics")
    number = models.PositiveIntegerField()
    questions = models.JSONField()
    guidelines = models.TextField(blank=True, default="", help_text="Markdown")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "number"], name="one_rubric_per_number")]

    def __str__(self) -> str:
        return f"rubric {self.number} of {self.project_id}"


@dataclass(frozen=True, slots=True)
class BlindQueues:
    """Ids of the open blind queues that the reader reviews, see `Queue.objects.blind_for`."""

    reader: int | None = None
    queues: tuple[int, ...] = ()


NOT_BLIND: Final = BlindQueues()


class LabelQuerySet(models.QuerySet["Label"]):
    def active(self) -> LabelQuerySet:
        """Labels that are not withdrawn."""
        return self.filter(withdrawn_at=None)

    def readable_by(self, user: User | AnonymousUser) -> LabelQuerySet:
        """Without what others say about items of open blind queues that the user reviews."""
        if user.pk is None:
            return self
        return self.outside_of(apps.get_model("rollouts", "Queue").objects.blind_for(user.pk))

    def outside_of(self, blind: BlindQueues) -> LabelQuerySet:
        """Without what others than the reader say about items of these queues."""
        if not blind.queues:
            return self
        items = apps.get_model("rollouts", "QueueItem").objects.filter(queue__in=blind.queues)
        group = Sample.objects.filter(pk=OuterRef(OuterRef("sample"))).exclude(group="").values("group")
        members = items.filter(queue__unit="group", step=OuterRef("step"), group=Subquery(group))
        hidden = Exists(items.filter(sample=OuterRef("sample"))) | Exists(members)
        return self.filter(Q(user=blind.reader) | ~hidden)

    def flags(self) -> LabelQuerySet:
        """Labels that are flags. No question has a key that starts with `flag`."""
        return self.filter(name__startswith=FLAG_NAME)

    def approvals(self) -> LabelQuerySet:
        """Labels that say that a sample is OK."""
        return self.filter(name=REVIEW_NAME, answer=OK_ANSWER)

    def count_flagged_samples(self, step: Step) -> int:
        """Returns the number of visible samples of the step that are flagged."""
        visible = Sample.objects.visible().filter(step=step).values("pk")
        return self.flags().active().filter(step=step, sample__in=visible).values("sample").distinct().count()

    def recount(self, step: Step) -> None:
        """Updates `Step.flags`. The caller holds the step's row lock."""
        Step.objects.filter(pk=step.pk).update(flags=self.count_flagged_samples(step))

    def recount_steps(self, steps: Collection[int]) -> None:
        """Updates `Step.flags` of many steps in two queries. The caller holds their row locks."""
        visible = Sample.objects.visible().filter(step__in=steps).values("pk")
        rows = self.flags().active().filter(step__in=steps, sample__in=visible).order_by().values_list("step")
        counts = dict(rows.annotate(flagged=Count("sample", distinct=True)))
        changed = [Step(pk=pk, flags=counts.get(pk, 0)) for pk in sorted(steps)]
        Step.objects.bulk_update(changed, ["flags"])


class Label(models.Model):
    """The current answer of one author to one question about one sample. Its earlier states are in `LabelChange`.

    A withdrawn label is not deleted. It has the sample's id to survive a re-index. `user` stored it; `author` is the
    user's name, or the name of a function or a model. `number` and `answer` are the value for SQL.
    """

    class Source(models.TextChoices):
        HUMAN = "human"
        CODE = "code"
        MODEL = "model"

    sample = models.CharField(max_length=52, db_index=True)
    step = models.ForeignKey(Step, models.CASCADE, related_name="labels")
    run = models.ForeignKey(Run, models.CASCADE, related_name="labels", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="labels")
    author = models.CharField(max_length=150)
    source = models.CharField(max_length=5, choices=Source.choices, default=Source.HUMAN)
    name = models.CharField(max_length=50)
    value = models.JSONField()
    number = models.FloatField(null=True, blank=True, help_text="a number, a rating, or 1 and 0 for yes and no")
    answer = models.TextField(blank=True, default="", help_text="the chosen keys as ' a b ', or the text")
    rationale = models.TextField(blank=True, default="")
    rubric = models.ForeignKey(Rubric, models.RESTRICT, null=True, blank=True, related_name="+")
    rubric_number = models.PositiveIntegerField(null=True, blank=True, help_text=RUBRIC_NUMBER_HELP)
    start = models.PositiveIntegerField(null=True, blank=True, help_text="first character of the response")
    end = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(default=timezone.now)
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = LabelQuerySet.as_manager()

    class Meta:
        db_table = "rollouts_flag"
        constraints = [
            models.UniqueConstraint(fields=["sample", "name", "source", "author"], name="one_label_per_author"),
        ]
        indexes = [models.Index(fields=["run", "name"], name="label_by_name")]

    def __str__(self) -> str:
        return f"{self.name}={self.value} by {self.author}"

    @property
    def is_flag(self) -> bool:
        return self.name.startswith(FLAG_NAME)

    @property
    def shown(self) -> str:
        return format_value(self.value)

    @property
    def version(self) -> int:
        """The number of the rubric's version that was answered; 0 without one."""
        return self.rubric.number if self.rubric else self.rubric_number or 0

    @property
    def shown_source(self) -> str:
        return {"human": _("human"), "code": _("code"), "model": _("model")}[self.source]

    @property
    def reason(self) -> str:
        """The key of a flag's reason; empty without one."""
        return self.name.removeprefix(FLAG_PREFIX) if self.name.startswith(FLAG_PREFIX) else ""


class LabelChange(models.Model):
    """A state of a label that another one has replaced. `at` is when it was stored; `undone`: an undo replaced it."""

    label = models.ForeignKey(Label, models.CASCADE, related_name="changes")
    value = models.JSONField()
    rationale = models.TextField(blank=True, default="")
    rubric = models.ForeignKey(Rubric, models.RESTRICT, null=True, blank=True, related_name="+")
    rubric_number = models.PositiveIntegerField(null=True, blank=True, help_text=RUBRIC_NUMBER_HELP)
    start = models.PositiveIntegerField(null=True, blank=True)
    end = models.PositiveIntegerField(null=True, blank=True)
    withdrawn = models.BooleanField(default=False)
    undone = models.BooleanField(default=False)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.value} in {self.label_id} at {self.at}"

    @property
    def shown(self) -> str:
        return format_value(self.value)

    @property
    def version(self) -> int:
        return self.rubric.number if self.rubric else self.rubric_number or 0


class LabelAction(models.Model):
    """An action of one user on the labels of one or more samples of a run, which can be undone.

    `before` is {"was": [[label id, its `updated_at` after the action, state before the action, its `updated_at` then,
    state after, the user who had stored it if that was another one]], "states": [...]}. States are positions in
    `states`; both values before are null for a new label.
    `rollouts/labels/states.py` reads it, and the form that earlier versions wrote.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="label_actions")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="label_actions")
    description = models.CharField(max_length=200, db_column="said")
    before = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    undone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "rollouts_marking"
        indexes = [models.Index(fields=["run", "user", "-created_at"], name="marking_by_news")]

    def __str__(self) -> str:
        return f"{self.description} by {self.user}"

    @property
    def changed_count(self) -> int:
        """The number of labels that the action changed."""
        return len(self.before["was"])
