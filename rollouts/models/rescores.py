"""Re-scores: named numbers of a run's samples that a function or a model computed after the training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import FloatField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from rolloutdeck.protocol import ACCURACY_PART
from rollouts.models.runs import Run
from rollouts.models.steps import Step

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User


class RescoreQuerySet(models.QuerySet["Rescore"]):
    def named(self, name: str) -> tuple[Rescore, str] | None:
        """Returns the re-score that `name` is a column of, and the key of the column in the rows of samples and steps:
        `score.v2` has the values of the re-score of this name, `score.v2.acc` a part of them."""
        rows = {row.name: row for row in self}
        if name in rows:
            return rows[name], rows[name].key
        for row in sorted(rows.values(), key=lambda row: -len(row.name)):
            part = name.removeprefix(f"{row.name}.")
            if part != name and part in row.parts:
                return row, row.part_key(part)
        return None


class Rescore(models.Model):
    """The results of one version of a function or a judge. They never change the trainer's score.

    A changed function has another `digest`; it replaces the row, so the keys of its results are new too. The results
    are in blocks; the rows of the samples have their numbers, see `rollouts/samples/rescore_blocks.py`.
    """

    class Kind(models.TextChoices):
        FUNCTION = "function"
        JUDGE = "judge"

    run = models.ForeignKey(Run, models.CASCADE, related_name="rescores", db_index=False)
    name = models.CharField(max_length=50)
    kind = models.CharField(max_length=8, choices=Kind.choices)
    source = models.CharField(max_length=200, help_text="the function, or the model of the judge")
    digest = models.CharField(max_length=64, help_text="of the source of the function, or of model and instructions")
    threshold = models.FloatField(
        null=True, blank=True, help_text="a sample is correct above it; null: by its part `acc`, else above 0"
    )
    parts = models.JSONField(default=list, blank=True, help_text="names of the other numbers of a result")
    results = models.PositiveIntegerField(default=0, help_text="samples with a number")
    errors = models.PositiveIntegerField(default=0, help_text="samples without one")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    author = models.CharField(max_length=150, help_text="name of the user")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar = RescoreQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="one_rescore_per_name")]

    def __str__(self) -> str:
        return f"{self.name} of {self.run_id}"

    @property
    def key(self) -> str:
        """The key of its numbers in `Sample.rescores` and `Step.rescores`. No digits only: in a path, that is an
        index."""
        return f"r{self.pk}"

    def part_key(self, part: str) -> str:
        return f"{self.key}.{part}"

    def list_columns(self) -> dict[str, str]:
        """Returns {name in the query language: key} of its numbers."""
        return {self.name: self.key} | {f"{self.name}.{part}": self.part_key(part) for part in self.parts}

    @property
    def verdict(self) -> tuple[str, float]:
        """The key of the number that says whether a sample is correct, and the threshold above which it is. Without a
        threshold of its own it is the rule of new projects: `acc` if the function returns it, else above 0."""
        if self.threshold is not None:
            return self.key, self.threshold
        return (self.part_key(ACCURACY_PART), 0.5) if ACCURACY_PART in self.parts else (self.key, 0.0)

    def may_be_changed_by(self, user: User | AnonymousUser, role: str) -> bool:
        """Its author may store results and delete it, and so may a maintainer."""
        return self.created_by_id == user.pk or role in ("maintainer", "owner")


class RescoreBlock(models.Model):
    """Results of some samples of a step. A sample is in one block of a re-score."""

    rescore = models.ForeignKey(Rescore, models.CASCADE, related_name="blocks", db_index=False)
    step = models.ForeignKey(Step, models.CASCADE, related_name="+", db_index=False)
    count = models.PositiveIntegerField(help_text="samples")
    data = models.BinaryField()

    class Meta:
        indexes = [
            models.Index(fields=["step", "rescore"], name="rescore_by_step"),
            models.Index(fields=["rescore"], name="rescore_blocks"),
        ]

    def __str__(self) -> str:
        return f"{self.count} results of {self.rescore_id} at {self.step_id}"


def build_rescore_column(key: str) -> Any:
    """Returns the expression of a re-score's number on `Sample`. NULL if the sample has none."""
    return Cast(KeyTextTransform(key, "rescores"), FloatField())
