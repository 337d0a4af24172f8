"""Which samples a person has looked at."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from rollouts.models.runs import Run


class ViewedSample(models.Model):
    """This person looked at this sample. Hangs on the sample's id, as a flag does, so it survives a re-index.

    `fine`: they said that nothing is wrong with it. A row never changes: another word on the sample is a new row in
    place of the old one, so that the number of a person's rows in a run and the newest id name their state.
    """

    sample = models.CharField(max_length=52)
    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    fine = models.BooleanField(default=False)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "rollouts_seen"
        constraints = [models.UniqueConstraint(fields=["user", "run", "sample"], name="one_look_per_person")]

    def __str__(self) -> str:
        return f"{self.sample} by {self.user_id}"
