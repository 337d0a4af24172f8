"""Prompts whose texts were removed everywhere and must not come back."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from rollouts.models.projects import Project


class ForgottenPromptQuerySet(models.QuerySet["ForgottenPrompt"]):
    def load_keys(self, project_id: int) -> frozenset[str]:
        """Returns the prompt keys whose samples are not indexed in this project."""
        rows = self.filter(project=project_id).values_list("key", "aliases")
        return frozenset(key for own, aliases in rows for key in (own, *aliases))


class ForgottenPrompt(models.Model):
    """A prompt key of a project whose samples are removed. The row remains, so that samples that arrive again are left
    out. It has no text.

    `aliases` are the keys of other prompts that have the text in them, or that dumps of tokens have for it. `pending`
    are paths in the data folder of files that no row needs any more and that are not removed yet. `finished_at` is None
    until everything is removed: a command that was killed continues from the row.
    """

    project = models.ForeignKey(Project, models.CASCADE, related_name="forgotten_prompts")
    key = models.CharField(max_length=26)
    aliases = models.JSONField(default=list, blank=True)
    pending = models.JSONField(default=list, blank=True)
    counts = models.JSONField(default=dict, blank=True, help_text="{what: how many were removed}")
    user = models.CharField(max_length=150, blank=True, default="", help_text="operating system account")
    at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = ForgottenPromptQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "key"], name="one_row_per_forgotten_prompt")]

    def __str__(self) -> str:
        return f"{self.key} of {self.project_id}"

    def all_keys(self) -> frozenset[str]:
        return frozenset((self.key, *self.aliases))
