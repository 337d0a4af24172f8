"""Stores which attempts ran at the same time, and when each was alive and ended, instead of a mark on the earlier."""

import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models
from django.db.models import F, Min


def copy_marks(apps, schema_editor):
    """An attempt that was marked ran at the same time as the newest of its run."""
    Attempt = apps.get_model("rollouts", "Attempt")
    Attempt.objects.update(alive_at=F("created_at"))
    marked = Attempt.objects.filter(concurrent=True)
    marked.update(alive_at=F("seen_at"))
    for run, first in marked.order_by().values_list("run").annotate(Min("pk")):
        own = Attempt.objects.filter(run=run)
        newest = own.exclude(key__regex=r"^files(-[0-9]+)?$").order_by("-number").first()
        ids = [*own.filter(concurrent=True).values_list("pk", flat=True), *([newest.pk] if newest else [])]
        own.filter(pk__in=ids).update(concurrent_with=first)


class Migration(migrations.Migration):

    dependencies = [("rollouts", "0017_sign_in_sessions")]

    operations = [
        migrations.AddField(
            model_name="attempt",
            name="concurrent_with",
            field=models.ForeignKey(blank=True, help_text="first of those that run together", null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="rollouts.attempt"),
        ),
        migrations.AddField(
            model_name="attempt",
            name="alive_at",
            field=models.DateTimeField(default=django.utils.timezone.now, help_text="its start or last heartbeat"),
        ),
        migrations.AddField(
            model_name="attempt",
            name="ended_at",
            field=models.DateTimeField(blank=True, help_text="when a process of it ended last", null=True),
        ),
        migrations.AlterField(
            model_name="attempt",
            name="seen_at",
            field=models.DateTimeField(default=django.utils.timezone.now, help_text="when its data last arrived"),
        ),
        migrations.RunPython(copy_marks, migrations.RunPython.noop),
        migrations.RemoveField(model_name="attempt", name="concurrent"),
    ]
