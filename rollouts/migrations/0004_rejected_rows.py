"""Adds the number of rejected rows to each dump, and fills it from the counts by reason."""

from django.db import migrations, models


def fill_rejected(apps, schema_editor):
    dumps = apps.get_model("rollouts", "Dump").objects.using(schema_editor.connection.alias)
    for dump in dumps.exclude(left_out={}).only("pk", "left_out").iterator():
        if count := dump.left_out.get("bad line"):
            dumps.filter(pk=dump.pk).update(rejected=count)


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0003_model_names"),
    ]

    operations = [
        migrations.AddField(
            model_name="dump",
            name="rejected",
            field=models.PositiveIntegerField(default=0, help_text="rows that could not be used, the bad lines"),
        ),
        migrations.RunPython(fill_rejected, migrations.RunPython.noop, elidable=True),
        migrations.AddIndex(
            model_name="dump",
            index=models.Index(condition=models.Q(("rejected__gt", 0)), fields=["run"], name="dump_with_rejected_rows"),
        ),
    ]
