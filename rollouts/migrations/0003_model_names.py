"""Renames four model classes. The tables keep their names, so nothing changes in the database."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0002_indexes"),
    ]

    operations = [
        migrations.AlterModelTable("marking", "rollouts_marking"),
        migrations.RenameModel("Marking", "BulkFlagAction"),
        migrations.AlterModelTable("sighting", "rollouts_sighting"),
        migrations.RenameModel("Sighting", "DuplicateSource"),
        migrations.AlterModelTable("exhibit", "rollouts_exhibit"),
        migrations.RenameModel("Exhibit", "EvidenceItem"),
        migrations.AlterModelTable("seen", "rollouts_seen"),
        migrations.RenameModel("Seen", "ViewedSample"),
        migrations.AlterModelOptions("viewedsample", {}),
    ]
