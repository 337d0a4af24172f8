"""What this version knows about the tables of other versions."""

from collections.abc import Iterable

from django.db.migrations.loader import MigrationLoader


def find_unknown_migrations(applied: Iterable[str]) -> list[str]:
    """Returns those of the applied migrations, as `app.name`, that this version lacks: a newer one has applied them.

    Migrations of packages that are not installed any more do no harm and are left out.
    """
    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    own_apps = {migration.partition(".")[0] for migration in known}
    return sorted(name for name in applied if name not in known and name.partition(".")[0] in own_apps)
