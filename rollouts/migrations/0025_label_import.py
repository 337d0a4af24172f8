from django.db import migrations, models

HELP = "of a version that only the server has that the label was imported from"


class Migration(migrations.Migration):
    dependencies = [("rollouts", "0024_pairs_of_a_group")]

    operations = [
        migrations.AddField(
            model_name=name,
            name="rubric_number",
            field=models.PositiveIntegerField(blank=True, help_text=HELP, null=True),
        )
        for name in ("label", "labelchange")
    ]
