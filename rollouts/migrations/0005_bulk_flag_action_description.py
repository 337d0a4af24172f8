"""Renames the field `said` of bulk flag actions. The column keeps its name, so nothing changes in the database."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0004_rejected_rows"),
    ]

    operations = [
        migrations.AlterField("bulkflagaction", "said", models.CharField(max_length=200, db_column="said")),
        migrations.RenameField("bulkflagaction", "said", "description"),
    ]
