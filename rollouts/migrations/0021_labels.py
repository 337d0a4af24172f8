"""Flags become labels, with their ids, and OK marks become labels of their own. The tables keep their names.

A flag is a label with the name `flag` or `flag.<reason>`. An OK is a label with the name `review` and the value `ok`.
The marks that a user can still undo get an action. An OK on a sample that was dropped remains a viewed mark.
"""

from datetime import UTC, timedelta
from itertools import islice

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models
from django.db.models import Case, F, OuterRef, Subquery, Value, When
from django.db.models.functions import Concat

UNDO_WINDOW = timedelta(days=1)
ROWS_PER_QUERY = 500


def convert_flags(apps, schema_editor):
    Label = apps.get_model("rollouts", "Label")
    User = apps.get_model(settings.AUTH_USER_MODEL)
    author = Subquery(User.objects.filter(pk=OuterRef("user")).values("username")[:1])
    name = Case(When(reason="", then=Value("flag")), default=Concat(Value("flag."), F("reason")))
    Label.objects.update(author=author, name=name)
    for label in Label.objects.order_by().values_list("label", flat=True).distinct():
        Label.objects.filter(label=label).update(value=label, answer=f" {label} ")
    check_foreign_keys(schema_editor)


def convert_marks(apps, schema_editor):
    ViewedSample = apps.get_model("rollouts", "ViewedSample")
    marks = ViewedSample.objects.filter(fine=True).select_related("user").order_by("pk").iterator()
    while batch := list(islice(marks, ROWS_PER_QUERY)):
        convert_batch(apps, batch)
    check_foreign_keys(schema_editor)


def check_foreign_keys(schema_editor):
    """PostgreSQL cannot alter a table while checks of its rows are pending in the transaction."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        schema_editor.execute("SET CONSTRAINTS ALL DEFERRED")


def convert_batch(apps, marks):
    Sample, Label, LabelAction = (apps.get_model("rollouts", name) for name in ("Sample", "Label", "LabelAction"))
    rows = Sample.objects.filter(pk__in=[mark.sample for mark in marks])
    steps = {(pk, run): step for pk, step, run in rows.values_list("pk", "step", "step__run")}
    found = [mark for mark in marks if (mark.sample, mark.run_id) in steps]
    labels = [
        Label(
            sample=mark.sample, step_id=steps[mark.sample, mark.run_id], run_id=mark.run_id, user_id=mark.user_id,
            author=mark.user.username, name="review", value="ok", answer=" ok ", created_at=mark.at, updated_at=mark.at,
        )
        for mark in found
    ]
    since = django.utils.timezone.now() - UNDO_WINDOW
    for label in Label.objects.bulk_create(labels):
        if label.updated_at > since:
            change = [label.pk, label.updated_at.astimezone(UTC).isoformat(), None, None, 0]
            before = {"was": [change], "states": [["ok", "", False, None, None, None, " ok "]]}
            action = LabelAction.objects.create(
                run_id=label.run_id, user_id=label.user_id, description="“OK” on 1 sample", before=before
            )
            LabelAction.objects.filter(pk=action.pk).update(created_at=label.updated_at)


class Migration(migrations.Migration):

    dependencies = [
        ("rollouts", "0020_forgotten_prompts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Rubric",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("questions", models.JSONField()),
                ("guidelines", models.TextField(blank=True, default="", help_text="Markdown")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("created_by", models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL)),
                ("project", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="rubrics", to="rollouts.project")),
            ],
            options={"constraints": [models.UniqueConstraint(fields=("project", "number"), name="one_rubric_per_number")]},
        ),
        migrations.AlterModelTable("flag", "rollouts_flag"),
        migrations.RenameModel("Flag", "Label"),
        migrations.RenameModel("BulkFlagAction", "LabelAction"),
        migrations.RemoveConstraint("label", "one_flag_per_reason"),
        migrations.RenameField("label", "text", "rationale"),
        migrations.AddField("label", "author", models.CharField(default="", max_length=150), preserve_default=False),
        migrations.AddField("label", "source", models.CharField(choices=[("human", "Human"), ("code", "Code"), ("model", "Model")], default="human", max_length=5)),
        migrations.AddField("label", "name", models.CharField(default="", max_length=50), preserve_default=False),
        migrations.AddField("label", "value", models.JSONField(default=""), preserve_default=False),
        migrations.AddField("label", "number", models.FloatField(blank=True, help_text="a number, a rating, or 1 and 0 for yes and no", null=True)),
        migrations.AddField("label", "answer", models.TextField(blank=True, default="", help_text="the chosen keys as ' a b ', or the text")),
        migrations.AddField("label", "rubric", models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.RESTRICT, related_name="+", to="rollouts.rubric")),
        migrations.AddField("label", "start", models.PositiveIntegerField(blank=True, help_text="first character of the response", null=True)),
        migrations.AddField("label", "end", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AlterField("label", "created_at", models.DateTimeField(default=django.utils.timezone.now)),
        migrations.AlterField("label", "updated_at", models.DateTimeField(default=django.utils.timezone.now)),
        migrations.AlterField("label", "run", models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="labels", to="rollouts.run")),
        migrations.AlterField("label", "step", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="labels", to="rollouts.step")),
        migrations.AlterField("label", "user", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="labels", to=settings.AUTH_USER_MODEL)),
        migrations.AlterField("labelaction", "run", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="label_actions", to="rollouts.run")),
        migrations.AlterField("labelaction", "user", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="label_actions", to=settings.AUTH_USER_MODEL)),
        migrations.RunPython(convert_flags, migrations.RunPython.noop),
        migrations.RemoveField("label", "label"),
        migrations.RemoveField("label", "reason"),
        migrations.AddConstraint("label", models.UniqueConstraint(fields=("sample", "name", "source", "author"), name="one_label_per_author")),
        migrations.AddIndex("label", models.Index(fields=["run", "name"], name="label_by_name")),
        migrations.CreateModel(
            name="LabelChange",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("value", models.JSONField()),
                ("rationale", models.TextField(blank=True, default="")),
                ("start", models.PositiveIntegerField(blank=True, null=True)),
                ("end", models.PositiveIntegerField(blank=True, null=True)),
                ("withdrawn", models.BooleanField(default=False)),
                ("undone", models.BooleanField(default=False)),
                ("at", models.DateTimeField()),
                ("label", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="changes", to="rollouts.label")),
                ("rubric", models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.RESTRICT, related_name="+", to="rollouts.rubric")),
            ],
        ),
        migrations.RunPython(convert_marks, migrations.RunPython.noop),
        migrations.RemoveField("viewedsample", "fine"),
    ]
