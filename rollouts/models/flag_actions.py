"""Acts of flagging that can be undone."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from rollouts.models.runs import Run


class BulkFlagAction(models.Model):
    """One person's act on the flags of one run's samples, few or many: what `undo` puts back.

    `said` names it in words. `before` is {"was": [[flag id, its `updated_at` as the act left it, its state before the
    act, its `updated_at` then; both null for a new one]], "left": the state in which the act left them all}; a state
    is [label, text, withdrawn].
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="markings")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="markings")
    said = models.CharField(max_length=200)
    before = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    undone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "rollouts_marking"
        indexes = [models.Index(fields=["run", "user", "-created_at"], name="marking_by_news")]

    def __str__(self) -> str:
        return f"{self.said} by {self.user}"
