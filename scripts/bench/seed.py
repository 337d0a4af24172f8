"""Makes a run long, directly in the database: `python -m scripts.bench.seed UID STEPS`, with the server's environment.

Uploading ten thousand steps would take a quarter of an hour.
"""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b32encode
from copy import copy
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tests.support.server import Product

if TYPE_CHECKING:
    from rollouts.models import Dump, Run

BATCH_STEPS = 500


def lengthen(server: Product, uid: str, steps: int) -> None:
    """Repeats the steps of an indexed run until it has `steps` steps."""
    settings = {"ROLLOUTDECK_DATA": str(server.data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    command = [sys.executable, "-m", "scripts.bench.seed", uid, str(steps)]
    subprocess.run(command, env={**server.environ, **settings}, check=True)


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from rollouts.models import Run

    grow(Run.objects.get(uid=sys.argv[1]), int(sys.argv[2]))


def grow(run: Run, steps: int) -> None:
    from django.db import transaction
    from django.db.models import F

    from rollouts.models import Dump, Run, Sample

    known = list(run.steps.order_by("step"))
    dumps = {dump.step: dump for dump in run.dumps.filter(state=Dump.State.INDEXED, step__isnull=False)}
    rows = {step.step: list(step.rows.all()) for step in known}
    last = known[-1].step
    for first in range(last + 1, steps + 1, BATCH_STEPS):
        numbers = range(first, min(first + BATCH_STEPS, steps + 1))
        old = [known[(number - 1) % len(known)] for number in numbers]
        with transaction.atomic():
            new = copy_rows(old, [{"step": number} for number in numbers])
            old_dumps = [dumps[step.step] for step in old]
            new_dumps = copy_rows(old_dumps, list(map(rename_dump, old_dumps, numbers)))
            samples = (
                copy_row(sample, id=derive_sample_id(sample.pk, step.step), step=step, dump=dump)
                for source, step, dump in zip(old, new, new_dumps, strict=True)
                for sample in rows[source.step]
            )
            Sample.objects.bulk_create(samples, batch_size=2000)
    Run.objects.filter(pk=run.pk).update(version=F("version") + 1)


def copy_rows(rows: list[Any], changes: list[dict[str, Any]]) -> list[Any]:
    copies = [copy_row(row, pk=None, **changed) for row, changed in zip(rows, changes, strict=True)]
    return list(type(rows[0]).objects.bulk_create(copies))


def rename_dump(dump: Dump, step: int) -> dict[str, Any]:
    digest = sha256(f"{dump.identity} {step}".encode()).hexdigest()
    return {"step": step, "identity": digest, "sha256": digest, "source": f"{dump.source[:300]} {step}"}


def copy_row(row: Any, **changes: Any) -> Any:
    """A copy with `changes` that is not in the database yet."""
    new = copy(row)
    new._state = type(row._state)()
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def derive_sample_id(sample: str, step: int) -> str:
    return b32encode(sha256(f"{sample} {step}".encode()).digest()).decode().rstrip("=").lower()[: len(sample)]


if __name__ == "__main__":
    main()
