"""Writes flags and OK marks as versions without labels did, migrates them, prints both. Run by `test_migration.py`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import django

django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.db import connection  # noqa: E402
from django.db.migrations.executor import MigrationExecutor  # noqa: E402

NOW = datetime.now(UTC)
TIMES = {
    name: NOW - timedelta(hours=hours) for name, hours in (("long ago", 99), ("flagged", 3), ("changed", 2), ("ok", 1))
}


def migrate(name: str) -> Any:
    executor = MigrationExecutor(connection)
    return executor.migrate([("rollouts", name)]).apps


def write_old_rows() -> None:
    apps = migrate("0020_forgotten_prompts")
    models = {
        name: apps.get_model("rollouts", name) for name in ("Project", "Run", "Attempt", "Step", "Dump", "Sample")
    }
    user_id = apps.get_model("auth", "User").objects.create(username="小明").pk
    project = models["Project"].objects.create(slug="old")
    run = models["Run"].objects.create(project=project, name="grpo", uid="old-run")
    attempt = models["Attempt"].objects.create(run=run, key="files", number=1)
    step = models["Step"].objects.create(run=run, attempt=attempt, split="train", step=1, flags=2)
    dump = models["Dump"].objects.create(run=run, attempt=attempt, source="1.jsonl", sha256="0" * 64, bytes=1)
    for ordinal, name in enumerate(("a", "b", "c")):
        models["Sample"].objects.create(id=name, step=step, dump=dump, ordinal=ordinal, prompt_key=name)

    Flag, Action, Viewed = (apps.get_model("rollouts", name) for name in ("Flag", "BulkFlagAction", "ViewedSample"))
    common = {"step": step, "run": run, "user_id": user_id}
    flags = [
        Flag.objects.create(sample="a", label="bad", reason="reward-hack", text="猜的", **common),
        Flag.objects.create(sample="b", label="unsure", withdrawn_at=TIMES["changed"], **common),
    ]
    Flag.objects.update(created_at=TIMES["flagged"], updated_at=TIMES["changed"])
    change = [flags[0].pk, TIMES["changed"].isoformat(), ["good", "before", False], TIMES["flagged"].isoformat()]
    before = {"was": [change], "left": ["bad", "猜的", False]}
    Action.objects.create(run=run, user_id=user_id, description="old", before=before)
    Action.objects.update(created_at=TIMES["changed"])
    for sample, at, fine in (("b", "long ago", True), ("c", "ok", True), ("a", "ok", False), ("gone", "ok", True)):
        row = Viewed.objects.create(run=run, user_id=user_id, sample=sample, fine=fine)
        Viewed.objects.filter(pk=row.pk).update(at=TIMES[at])


def read_labels() -> list[dict[str, Any]]:
    from rollouts.models import Label

    fields = ("sample", "name", "value", "answer", "rationale", "author", "source")
    names = {at: name for name, at in TIMES.items()}
    return [
        {name: getattr(row, name) for name in fields}
        | {name: names.get(getattr(row, f"{name}_at"), "") for name in ("created", "updated", "withdrawn")}
        for row in Label.objects.filter(run__uid="old-run").order_by("pk")
    ]


def undo() -> dict[str, Any]:
    from rollouts.labels import undo_label_action
    from rollouts.models import Run

    result = undo_label_action(Run.objects.get(uid="old-run"), User.objects.get(username="小明"))
    return {"description": result.description, "restored": result.restored_count, "labels": read_labels()}


def main() -> None:
    write_old_rows()
    migrate("0025_label_import")
    from rollouts.models import ViewedSample

    labels = read_labels()
    viewed = sorted(ViewedSample.objects.values_list("sample", flat=True))
    print(json.dumps({"labels": labels, "viewed": viewed, "undone": [undo(), undo()]}))


main()
