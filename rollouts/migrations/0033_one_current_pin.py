from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rollouts", "0032_step_ranges"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="pin",
            name="one_pin_per_step",
        ),
        migrations.AddConstraint(
            model_name="pin",
            constraint=models.UniqueConstraint(
                condition=models.Q(("removed_at", None)),
                fields=("run", "attempt", "split", "step_kind", "step"),
                name="one_pin_per_step",
            ),
        ),
    ]
