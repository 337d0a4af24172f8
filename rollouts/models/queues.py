"""Review queues: the samples that people are asked about, and who answers which of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final

from django.conf import settings
from django.db import models
from django.db.models import Exists, OuterRef, Q

from rollouts.models.labels import OK_ANSWER, REVIEW_NAME, BlindQueues, Label, LabelAction, LabelQuerySet, Rubric
from rollouts.models.projects import Membership, Project
from rollouts.models.runs import Run
from rollouts.models.samples import Sample
from rollouts.models.steps import Step

if TYPE_CHECKING:
    from django.contrib.auth.models import User

CORRECTION_NAME: Final = "correction"  # of the label that any queue of samples may get
COMPARISON_NAMES: Final = ("rank", "better-than", "equal-to")  # of the labels about the responses of a group


class QueueQuerySet(models.QuerySet["Queue"]):
    def open(self) -> QueueQuerySet:
        return self.filter(closed_at=None)

    def blind_for(self, reader: int) -> BlindQueues:
        """The open blind queues whose items the user may answer, of projects that they do not lead. One query, and
        a second one if there are any."""
        role = Membership.Role.ANNOTATOR
        member = Membership.objects.filter(user=reader, role=role, user__is_superuser=False).values("project")
        rows = self.open().filter(is_blind=True, project__in=member).prefetch_related("reviewers")
        return BlindQueues(reader, tuple(queue.pk for queue in rows if queue.accepts_member(reader, role)))


class Queue(models.Model):
    """The questions of a rubric about a set of samples. `questions` are keys of the rubric; all if it is empty.

    The items are drawn from the samples of `runs` that match `q`. If the queue `grows`, later steps are drawn too.
    `reviewers` and `roles` are those who may answer; everybody who may annotate if both are empty. In a blind queue
    they see neither scores nor runs nor what others say. The responses of a group are put in order, or compared in
    `pairs_per_group` pairs.
    """

    class Unit(models.TextChoices):
        SAMPLE = "sample"
        GROUP = "group"

    class Selection(models.TextChoices):
        ALL = "all"
        RANDOM = "random"
        WORST = "worst"
        DISAGREEING = "disagreeing"

    class Stratum(models.TextChoices):
        QUEUE = "queue"
        STEP = "step"
        SOURCE = "source"

    project = models.ForeignKey(Project, models.CASCADE, related_name="queues")
    name = models.CharField(max_length=80)
    runs = models.ManyToManyField(Run, related_name="queues")
    unit = models.CharField(max_length=6, choices=Unit.choices, default=Unit.SAMPLE)
    pairs_per_group = models.PositiveSmallIntegerField(null=True, blank=True, help_text="none: put all in order")
    q = models.TextField(blank=True, default="", help_text="query")
    selection = models.CharField(max_length=12, choices=Selection.choices, default=Selection.ALL)
    per = models.CharField(max_length=6, choices=Stratum.choices, default=Stratum.QUEUE, help_text="stratum")
    count = models.PositiveIntegerField(null=True, blank=True, help_text="items of each stratum")
    seed = models.PositiveIntegerField(default=1)
    grows = models.BooleanField(default=False)
    rubric = models.ForeignKey(Rubric, models.RESTRICT, null=True, blank=True, related_name="queues")
    questions = models.JSONField(default=list, blank=True)
    num_reviewers_per_item = models.PositiveSmallIntegerField(default=1)
    reservation_minutes = models.PositiveSmallIntegerField(default=30)
    reviewers = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    roles = models.JSONField(default=list, blank=True)
    due_at = models.DateTimeField(null=True, blank=True)
    is_blind = models.BooleanField(default=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = QueueQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_queue_per_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def asks_pairs(self) -> bool:
        return self.unit == self.Unit.GROUP and self.pairs_per_group is not None

    def accepts(self, user: User) -> bool:
        """Whether the user may answer its items."""
        return self.accepts_role(user, self.project.role_of(user))

    def accepts_role(self, user: User, role: str) -> bool:
        """The same for a user whose role in the project is known."""
        return role not in ("", Membership.Role.VIEWER) and self.accepts_member(user.pk, role)

    def accepts_member(self, user: int, role: str) -> bool:
        """Whether someone who may annotate, with this id and role, may answer its items."""
        if role in self.roles:
            return True
        reviewers = {reviewer.pk for reviewer in self.reviewers.all()}
        return not (reviewers or self.roles) or user in reviewers


class QueueStep(models.Model):
    """A step from which a queue has drawn its items. It is never drawn again."""

    queue = models.ForeignKey(Queue, models.CASCADE, related_name="drawn_steps")
    step = models.ForeignKey(Step, models.CASCADE, related_name="+")
    matched = models.PositiveIntegerField(help_text="samples or groups that matched")
    drawn = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "step"], name="one_draw_per_step")]

    def __str__(self) -> str:
        return f"{self.drawn} of {self.matched} in {self.step_id}"


class QueueItem(models.Model):
    """A sample in a queue, or a group with its first sample. It has the sample's id to survive a re-index.

    `probability` is the chance with which it was drawn from the samples of its `stratum`; None if it was chosen and not
    drawn at random. `gold` are known answers, {question: value}, with which the answers of people are compared.
    """

    queue = models.ForeignKey(Queue, models.CASCADE, related_name="items", db_index=False)
    sample = models.CharField(max_length=52, db_index=True)
    step = models.ForeignKey(Step, models.CASCADE, related_name="+")
    run = models.ForeignKey(Run, models.CASCADE, related_name="+")
    group = models.CharField(max_length=64, blank=True, default="")
    position = models.PositiveIntegerField()
    stratum = models.CharField(max_length=140, blank=True, default="")
    probability = models.FloatField(null=True, blank=True)
    gold = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["queue", "sample"], name="one_item_per_sample"),
            models.UniqueConstraint(fields=["queue", "position"], name="one_item_per_position"),
        ]

    def __str__(self) -> str:
        return f"{self.sample} in {self.queue_id}"


class QueueSlotQuerySet(models.QuerySet["QueueSlot"]):
    def unanswered(self) -> QueueSlotQuerySet:
        return self.filter(done_at=None)

    def available(self) -> QueueSlotQuerySet:
        """Slots of items whose run is not in the trash. The subquery keeps `select_for_update` from locking runs."""
        return self.filter(~Exists(QueueItem.objects.filter(pk=OuterRef("item"), run__deleted_at__isnull=False)))

    def free_at(self, now: datetime) -> QueueSlotQuerySet:
        """Available unanswered slots that nobody holds."""
        return self.available().unanswered().filter(Q(user=None) | Q(reserved_until__lt=now))

    def free_for(self, user: User, now: datetime) -> QueueSlotQuerySet:
        """Available unanswered slots that nobody else holds now, of items that the user has neither answered nor
        skipped. Of an item that they hold, only their own."""
        own = QueueSlot.objects.filter(item=OuterRef("item"), user=user.pk).exclude(pk=OuterRef("pk"))
        skipped = QueueDraft.objects.filter(item=OuterRef("item"), user=user.pk, skipped_at__isnull=False)
        free = Q(user=None) | Q(user=user.pk) | Q(reserved_until__lt=now)
        return self.available().filter(free, ~Exists(own), ~Exists(skipped), done_at=None)

    def reopen_undone(self, run: Run, user: User) -> int:
        """Gives back the slots whose answer the user has undone outside the queue. Returns their number. After an
        undone edit the answer before it is left, so the slot stays completed. A slot that is locked is left out: its
        person is answering or undoing it, and waits for the labels that the caller holds."""
        rows = self.filter(user=user, action__run=run, action__undone_at__isnull=False, done_at__isnull=False)
        undone = rows.select_related("item__queue__rubric")
        undone = undone.select_for_update(of=("self",), no_key=True, skip_locked=True)
        empty = [slot.pk for slot in undone if not slot.find_labels(user).exists()]
        return self.filter(pk__in=empty).update(
            user=None, reserved_until=None, opened_at=None, done_at=None, seconds=None, action=None
        )


class QueueSlot(models.Model):
    """The right of one person to answer one item. An item has as many as reviewers, so it cannot get more answers.

    An unanswered slot belongs to `user` until `reserved_until`; then anybody can take it. `seconds`: time for the
    answer. `position` is that of the item.
    """

    queue = models.ForeignKey(Queue, models.CASCADE, related_name="slots", db_index=False)
    item = models.ForeignKey(QueueItem, models.CASCADE, related_name="slots", db_index=False)
    number = models.PositiveSmallIntegerField()
    position = models.PositiveIntegerField()
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    reserved_until = models.DateTimeField(null=True, blank=True)
    opened_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)
    action = models.ForeignKey(LabelAction, models.SET_NULL, null=True, blank=True, related_name="+")

    objects: ClassVar = QueueSlotQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["item", "number"], name="one_slot_per_number"),
            models.UniqueConstraint(fields=["item", "user"], name="one_slot_per_person"),
        ]
        indexes = [
            models.Index(fields=["queue", "position"], name="open_slot", condition=Q(done_at=None)),
            models.Index(fields=["queue", "user", "done_at"], name="slot_by_person"),
        ]

    def __str__(self) -> str:
        return f"slot {self.number} of {self.item_id}"

    def find_labels(self, user: User) -> LabelQuerySet:
        """Returns the answers to the questions of the queue that its person has given since they opened the item. What
        they said before belongs to another queue or to no queue."""
        item, queue = self.item, self.item.queue
        labels: LabelQuerySet = Label.objects.active().filter(author=user.get_username(), source="human")
        if self.opened_at:
            labels = labels.filter(updated_at__gte=self.opened_at)
        if item.group:
            group = Sample.objects.filter(step=item.step_id, group=item.group).values("pk")
            return labels.filter(sample__in=group, name__in=COMPARISON_NAMES)
        asked = queue.questions or ([row["key"] for row in queue.rubric.questions] if queue.rubric else [REVIEW_NAME])
        labels = labels.filter(sample=item.sample, name__in=[*asked, CORRECTION_NAME, REVIEW_NAME])
        return labels if REVIEW_NAME in asked else labels.exclude(name=REVIEW_NAME, answer=OK_ANSWER)


class QueueDraft(models.Model):
    """What a person has entered for an item and not yet saved, and whether they skipped it."""

    item = models.ForeignKey(QueueItem, models.CASCADE, related_name="drafts", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    answers = models.JSONField(default=dict, blank=True, help_text="{question: {value, rationale, start, end}}")
    skipped_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["item", "user"], name="one_draft_per_person")]

    def __str__(self) -> str:
        return f"draft of {self.user_id} for {self.item_id}"


class ItemDecision(models.Model):
    """The answer that a lead decided for a question on which people differ. Their labels stay as they are."""

    item = models.ForeignKey(QueueItem, models.CASCADE, related_name="decisions")
    name = models.CharField(max_length=50, help_text="key of the question")
    value = models.JSONField()
    reason = models.TextField(blank=True, default="")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["item", "name"], name="one_decision_per_question")]

    def __str__(self) -> str:
        return f"{self.name}={self.value} for {self.item_id}"
