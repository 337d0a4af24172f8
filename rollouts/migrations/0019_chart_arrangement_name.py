"""Renames a model class. The table keeps its name, so nothing changes in the database."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0018_concurrent_attempts"),
    ]

    operations = [
        migrations.AlterModelTable("chartboard", "rollouts_chartboard"),
        migrations.RenameModel("ChartBoard", "ChartArrangement"),
        migrations.AlterField(
            "chartarrangement",
            "project",
            models.OneToOneField(
                on_delete=django.db.models.deletion.CASCADE, related_name="chart_arrangement", to="rollouts.project"
            ),
        ),
    ]
