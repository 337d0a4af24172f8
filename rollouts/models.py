"""The rows. One-row rules are methods, questions over many rows are QuerySet methods, actions are the verbs' files."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from rolloutdeck import wire
from rollouts.processes import me

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

DEFAULT_REASONS = [
    {"key": "reward-hack", "name": "reward hack"},
    {"key": "wrong-grader", "name": "wrong grader"},
    {"key": "truncated", "name": "truncated"},
    {"key": "repetition", "name": "repetition"},
    {"key": "language-mix", "name": "language mix"},
    {"key": "other", "name": "other"},
]


def default_reasons() -> list[dict[str, str]]:
    return [dict(reason) for reason in DEFAULT_REASONS]


class ProjectQuerySet(models.QuerySet["Project"]):
    def visible_to(self, user: User | AnonymousUser) -> ProjectQuerySet:
        """Projects in which the user has any role."""
        if user.is_superuser:
            return self
        return self.filter(pk__in=Membership.objects.filter(user=user.pk).values("project"))


class Project(models.Model):
    """Owns runs, members, tokens, plans and rules. A person or `token create` makes one; ingest never does."""

    slug = models.SlugField(max_length=80, unique=True, allow_unicode=True)
    reasons = models.JSONField(default=default_reasons)
    correct = models.CharField(
        max_length=200, blank=True, default="", help_text="rule for Correct, in the query language"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar = ProjectQuerySet.as_manager()

    def __str__(self) -> str:
        return self.slug

    def role_of(self, user: User | AnonymousUser) -> str:
        """`viewer`, `annotator`, `maintainer`, `owner`, or an empty string for a stranger."""
        if user.is_superuser:
            return Membership.Role.OWNER
        found = self.memberships.filter(user=user.pk).values_list("role", flat=True).first()
        return found or ""


class Membership(models.Model):
    class Role(models.TextChoices):
        VIEWER = "viewer"
        ANNOTATOR = "annotator"
        MAINTAINER = "maintainer"
        OWNER = "owner"

    project = models.ForeignKey(Project, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=Role.choices, default=Role.VIEWER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "user"], name="one_role_per_member")]

    def __str__(self) -> str:
        return f"{self.user} {self.role} of {self.project}"


def digest(secret: str) -> str:
    """How a token is stored: sha256, hex. The secret has 256 bits of its own, so no salt or stretching is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Token(models.Model):
    """A machine's key. `project` empty means every project its user may see (the token beside `up`)."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="tokens")
    project = models.ForeignKey(Project, models.CASCADE, related_name="tokens", null=True, blank=True)
    name = models.CharField(max_length=80)
    scopes = models.CharField(max_length=60, help_text="comma-separated, of: " + ", ".join(wire.SCOPES))
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    used_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def issue(cls, *, user: User, name: str, scopes: list[str], project: Project | None = None) -> tuple[Token, str]:
        """A new token and its secret, which is not stored and so is shown once."""
        secret = "rd_" + secrets.token_urlsafe(32)
        token = cls.objects.create(
            user=user, name=name, scopes=",".join(scopes), project=project, digest=digest(secret)
        )
        return token, secret

    @classmethod
    def find(cls, secret: str) -> Token | None:
        """The live token with this secret, `used_at` brought up to date at most once a minute."""
        now = timezone.now()
        live = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now)) & Q(user__is_active=True)
        token = cls.objects.select_related("user", "project").filter(live, digest=digest(secret)).first()
        if token and (token.used_at is None or now - token.used_at > timedelta(minutes=1)):
            cls.objects.filter(pk=token.pk).update(used_at=now)
        return token

    def allows(self, scope: str) -> bool:
        return scope in self.scopes.split(",")


class RunQuerySet(models.QuerySet["Run"]):
    def visible_to(self, user: User | AnonymousUser) -> RunQuerySet:
        """The one permission sentence: runs of the user's projects that are not in the bin."""
        return self.filter(project__in=Project.objects.visible_to(user), deleted_at=None)

    def by_uid(self, uid: str) -> Run | None:
        """The run with this uid, or the one that an offline client's uid was joined to."""
        return self.filter(Q(uid=uid) | Q(aliases__uid=uid)).first()


class Run(models.Model):
    """One training run. `uid` is made by the client, so that data can be spooled before any server is seen."""

    class Outcome(models.TextChoices):
        OPEN = "", "open"
        FINISHED = "finished"
        FAILED = "failed"

    uid = models.CharField(max_length=64, unique=True)
    project = models.ForeignKey(Project, models.CASCADE, related_name="runs")
    name = models.CharField(max_length=200)
    framework = models.CharField(max_length=40, blank=True, default="")
    config = models.JSONField(default=dict, blank=True)
    tags = models.JSONField(default=list, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True, default="")
    phase = models.CharField(max_length=40, blank=True, default="")
    dropped = models.JSONField(
        default=dict, blank=True, help_text="{spool: {reason: count}} that clients could not keep"
    )
    version = models.PositiveBigIntegerField(default=0, help_text="rises with every visible change")
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(default=timezone.now, help_text="last news of any kind")
    finished_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = RunQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_run_per_name")]

    def __str__(self) -> str:
        return f"{self.project.slug}/{self.name}"

    @property
    def status(self) -> str:
        """`running`, `silent` (no news for three median steps, at least three minutes), `finished` or `failed`."""
        if self.outcome:
            return self.outcome
        quiet = timezone.now() - self.seen_at
        return "silent" if quiet > timedelta(minutes=3) and quiet > 3 * self.median_step() else "running"

    def median_step(self) -> timedelta:
        """Median time between the arrivals of the last twenty training steps."""
        newest = self.steps.filter(split="train").order_by("-step").values_list("created_at", flat=True)[:21]
        arrived = sorted(newest, reverse=True)
        gaps = sorted(late - early for late, early in zip(arrived, arrived[1:], strict=False))
        return gaps[len(gaps) // 2] if gaps else timedelta(0)


class RunAlias(models.Model):
    """Another uid of a run: a client that was offline made one, and the name turned out to continue an older run."""

    uid = models.CharField(max_length=64, unique=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="aliases")

    def __str__(self) -> str:
        return self.uid


class Attempt(models.Model):
    """One launch of the training. Later attempts supersede earlier ones from their own first step on."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    key = models.CharField(max_length=120)
    number = models.PositiveIntegerField(help_text="1, 2, … in order of arrival")
    host = models.CharField(max_length=120, blank=True, default="")
    job = models.CharField(max_length=120, blank=True, default="")
    config_changes = models.JSONField(
        default=dict, blank=True, help_text="{key: [before, now]} against the attempt before"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "key"], name="one_attempt_per_key"),
            models.UniqueConstraint(fields=["run", "number"], name="one_attempt_per_number"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.run_id}"


SPLITS = [(split, split) for split in wire.SPLITS]
STEP_KINDS = [(kind, kind) for kind in wire.STEP_KINDS]


class StepQuerySet(models.QuerySet["Step"]):
    def current(self) -> StepQuerySet:
        """Steps that no later attempt has superseded."""
        return self.filter(superseded=False)


class Step(models.Model):
    """One step of one attempt and split, with figures recomputed from its visible samples, never incremented.

    Score, group and pass figures count each trajectory once, by its last sample. `samples` counts every row.
    `truncated` is None when the run records nothing to tell it by. `histogram` is {"edges": [...], "counts": [...]}.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="steps")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="steps")
    split = models.CharField(max_length=5, choices=SPLITS)
    step_kind = models.CharField(max_length=14, choices=STEP_KINDS, default="global_step")
    step = models.BigIntegerField()
    superseded = models.BooleanField(default=False)
    samples = models.PositiveIntegerField(default=0)
    trajectories = models.PositiveIntegerField(default=0)
    generated = models.PositiveIntegerField(null=True, blank=True, help_text="how many the trainer says it generated")
    groups = models.PositiveIntegerField(default=0)
    score_mean = models.FloatField(null=True, blank=True)
    score_min = models.FloatField(null=True, blank=True)
    score_max = models.FloatField(null=True, blank=True)
    score_std = models.FloatField(null=True, blank=True)
    length_mean = models.FloatField(null=True, blank=True, help_text="of the response, in characters")
    truncated = models.PositiveIntegerField(null=True, blank=True)
    zero_variance_groups = models.PositiveIntegerField(default=0)
    facets = models.JSONField(default=dict, blank=True, help_text="{facet: count}")
    histogram = models.JSONField(default=dict, blank=True)
    by_source = models.JSONField(default=dict, blank=True, help_text="{data source: {count, score_mean}}")
    flags = models.PositiveIntegerField(default=0)
    version = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar = StepQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt", "split", "step_kind", "step"], name="one_row_per_step")
        ]
        indexes = [models.Index(fields=["run", "split", "step", "superseded"], name="step_by_run")]

    def __str__(self) -> str:
        return f"{self.split} step {self.step} of {self.run_id}"


class Segment(models.Model):
    """A Parquet file of sample bodies: one dump's, or many small ones of a (run, split) folded together."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="segments")
    split = models.CharField(max_length=5, choices=SPLITS)
    path = models.CharField(max_length=200, unique=True, help_text="below the data directory's bodies/")
    rows = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    schema = models.PositiveSmallIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.path


class DumpQuerySet(models.QuerySet["Dump"]):
    def overdue(self, now: Any = None) -> DumpQuerySet:
        """Dumps whose message was lost, or whose worker died: received long ago, or claimed past the lease."""
        now = now or timezone.now()
        return self.filter(
            Q(state=Dump.State.RECEIVED, due_at__lte=now)
            | Q(state=Dump.State.INDEXING, claimed_at__lte=now - Dump.LEASE)
        )


class Dump(models.Model):
    """Bytes that arrived, and how far they have come. The row is the queue; messages only hurry it along.

    `step` is None for files that carry their own steps (metrics). `source` = producer + relative path, or a uuid per
    call. `producer` is empty unless several processes really generate for the same step.
    """

    class State(models.TextChoices):
        RECEIVED = "received"
        INDEXING = "indexing"
        INDEXED = "indexed"
        FAILED = "failed"
        UNSAFE = "unsafe"
        SUPERSEDED = "superseded"

    LEASE = timedelta(minutes=2)
    MAX_TRIES = 5

    run = models.ForeignKey(Run, models.CASCADE, related_name="dumps")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="dumps")
    split = models.CharField(max_length=5, choices=SPLITS, default="train")
    step_kind = models.CharField(max_length=14, choices=STEP_KINDS, default="global_step")
    step = models.BigIntegerField(null=True, blank=True)
    source = models.CharField(max_length=500)
    producer = models.CharField(max_length=80, blank=True, default="")
    sha256 = models.CharField(max_length=64)
    identity = models.CharField(max_length=64, help_text="sha256 over the natural key, which has NULLs in it")
    bytes = models.PositiveBigIntegerField()
    format = models.CharField(max_length=40, blank=True, default="", help_text="as told, else found by indexing")
    offset = models.PositiveBigIntegerField(null=True, blank=True, help_text="of a chunk of an append file, in bytes")
    generation = models.PositiveIntegerField(default=0, help_text="rises when an append file starts anew")
    state = models.CharField(max_length=10, choices=State.choices, default=State.RECEIVED)
    message = models.TextField(blank=True, default="", help_text="what the page shows of a failure")
    tries = models.PositiveSmallIntegerField(default=0)
    claimed_at = models.DateTimeField(null=True, blank=True)
    claimed_by = models.CharField(max_length=120, blank=True, default="", help_text="process, see processes.py")
    due_at = models.DateTimeField(default=timezone.now, help_text="when the sweep should send it again")
    received_at = models.DateTimeField(auto_now_add=True)
    indexed_at = models.DateTimeField(null=True, blank=True)
    rows = models.PositiveIntegerField(default=0)
    left_out = models.JSONField(default=dict, blank=True, help_text="{reason: count}, padding rows and bad lines")
    problems = models.JSONField(default=list, blank=True, help_text="[[line, reason], …], the first twenty")
    segment = models.ForeignKey(Segment, models.SET_NULL, related_name="dumps", null=True, blank=True)
    segment_offset = models.PositiveIntegerField(default=0, help_text="this dump's first row in its segment")

    objects: ClassVar = DumpQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["identity"], name="one_dump_per_identity")]
        indexes = [
            models.Index(fields=["run", "attempt", "split", "step_kind", "step", "source"], name="dump_by_source"),
            models.Index(fields=["state", "due_at"], name="dump_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.source} ({self.state})"

    def claim(self) -> bool:
        """Compare-and-set: True for exactly one caller, who then has `LEASE` to finish or to `renew`."""
        now = timezone.now()
        free = Q(state=self.State.RECEIVED) | Q(state=self.State.INDEXING, claimed_at__lte=now - self.LEASE)
        won = Dump.objects.filter(free, pk=self.pk).update(
            state=self.State.INDEXING, claimed_at=now, claimed_by=me(), tries=models.F("tries") + 1
        )
        if won:
            self.refresh_from_db()
        return bool(won)

    def renew(self) -> bool:
        """Starts this process's lease anew; False when the claim has been lost to another."""
        mine = Dump.objects.filter(pk=self.pk, state=self.State.INDEXING, claimed_by=me())
        return bool(mine.update(claimed_at=timezone.now()))


class SampleQuerySet(models.QuerySet["Sample"]):
    def visible(self) -> SampleQuerySet:
        """Samples of the current version of their dump, in steps that no later attempt has superseded."""
        return self.filter(visible=True, step__superseded=False)


class Sample(models.Model):
    """One generation, slim: what lists sort, filter and preview. The body is in its dump's segment at `ordinal`.

    `id` is base32 of sha256(run uid, attempt, split, step_kind, step, producer, prompt, response, k); see `index.py`.
    `truncated` is None when unknown; the facet `trunc?` says that it was inferred. Lengths: `chars` of the response in
    characters, `tokens` of the response where recorded.
    """

    id = models.CharField(max_length=52, primary_key=True)
    step = models.ForeignKey(Step, models.CASCADE, related_name="rows", db_index=False)
    dump = models.ForeignKey(Dump, models.CASCADE, related_name="samples")
    ordinal = models.PositiveIntegerField()
    visible = models.BooleanField(default=True)
    final = models.BooleanField(default=True, help_text="the last sample of its trajectory")
    group = models.CharField(max_length=64, blank=True, default="")
    index = models.IntegerField(null=True, blank=True, help_text="n within the group")
    trajectory = models.CharField(max_length=80, blank=True, default="")
    prompt_key = models.CharField(max_length=26)
    score = models.FloatField(null=True, blank=True)
    correct = models.BooleanField(null=True, blank=True)
    advantage = models.FloatField(null=True, blank=True, help_text="mean over the response's tokens")
    chars = models.PositiveIntegerField(default=0)
    tokens = models.PositiveIntegerField(null=True, blank=True)
    truncated = models.BooleanField(null=True, blank=True)
    facets = models.PositiveIntegerField(default=0, help_text="bits, see facets.py")
    data_source = models.CharField(max_length=120, blank=True, default="")
    expected = models.CharField(max_length=80, blank=True, default="", help_text="head of the ground truth")
    tail = models.CharField(max_length=200, blank=True, default="", help_text="end of the response, one line")

    objects: ClassVar = SampleQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["step", "score"], name="sample_by_score"),
            models.Index(fields=["prompt_key"], name="sample_by_prompt"),
        ]

    def __str__(self) -> str:
        return self.id


class Sighting(models.Model):
    """The same sample in a second dump (a file and a plug-in both tell of it): its fields join, it counts once."""

    sample = models.CharField(max_length=52, db_index=True)
    dump = models.ForeignKey(Dump, models.CASCADE, related_name="sightings")
    ordinal = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dump", "sample"], name="one_sighting_per_dump")]

    def __str__(self) -> str:
        return f"{self.sample} in {self.dump_id}"


class Flag(models.Model):
    """A person's mark on a sample. Withdrawn, never deleted; hangs on the sample's id, so it survives a re-index."""

    class Label(models.TextChoices):
        BAD = "bad"
        GOOD = "good"
        UNSURE = "unsure"

    sample = models.CharField(max_length=52, db_index=True)
    step = models.ForeignKey(Step, models.CASCADE, related_name="flagged")
    run = models.ForeignKey(Run, models.CASCADE, related_name="flags")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="flags")
    label = models.CharField(max_length=6, choices=Label.choices, default=Label.BAD)
    reason = models.CharField(max_length=40, blank=True, default="")
    text = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["sample", "user", "reason"], name="one_flag_per_reason")]

    def __str__(self) -> str:
        return f"{self.label} {self.reason} by {self.user}"


class MetricRow(models.Model):
    """The newest points of a run, one row per logged step, until `series.fold` packs them into blocks."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="metric_rows")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="metric_rows")
    step_kind = models.CharField(max_length=14, choices=STEP_KINDS, default="global_step")
    step = models.BigIntegerField()
    time = models.FloatField(
        null=True, blank=True, help_text="seconds since 1970, the client's; shown, never ordered by"
    )
    values = models.TextField(help_text="JSON {name: number or null}")

    def __str__(self) -> str:
        return f"step {self.step} of {self.run_id}"


class Series(models.Model):
    """A metric of one attempt. Its points are in blocks, the newest in `MetricRow`."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="series")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="series")
    step_kind = models.CharField(max_length=14, choices=STEP_KINDS, default="global_step")
    name = models.CharField(max_length=300)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt", "step_kind", "name"], name="one_series_per_name")
        ]
        verbose_name_plural = "series"

    def __str__(self) -> str:
        return self.name


class Block(models.Model):
    """Packed points of a series in step order: `steps` little-endian int64, `values` float64 (NaN where null).

    `steps` is empty where `count` equal strides lead from `first` to `last`, as they mostly do.
    """

    series = models.ForeignKey(Series, models.CASCADE, related_name="blocks")
    first = models.BigIntegerField()
    last = models.BigIntegerField()
    count = models.PositiveIntegerField()
    steps = models.BinaryField()
    values = models.BinaryField()

    class Meta:
        indexes = [models.Index(fields=["series", "first"], name="block_by_step")]

    def __str__(self) -> str:
        return f"{self.count} points of {self.series_id}"


class AuditEntry(models.Model):
    """Who did what that others should be able to see later: flags withdrawn, deletions, roles, tokens, pins."""

    at = models.DateTimeField(auto_now_add=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    project = models.ForeignKey(Project, models.SET_NULL, null=True, related_name="audit")
    verb = models.CharField(max_length=40)
    subject = models.CharField(max_length=200)
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.verb} {self.subject}"
