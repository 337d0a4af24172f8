"""A long run put straight into the data base: `python -m scripts.bench.seed UID STEPS`, with the server's environment.

Pushing ten thousand steps takes a quarter of an hour, and what they are for is only to be there when a page opens.
"""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b32encode
from collections.abc import Callable
from copy import copy
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from tests.support.server import Product

if TYPE_CHECKING:
    from rollouts.models import Dump, Run

AT_ONCE = 500  # steps


def lengthen(server: Product, uid: str, steps: int) -> None:
    """The run, all of whose steps are indexed, has `steps` of them: those it has come again and again."""
    told = {"ROLLOUTDECK_DATA": str(server.data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    command = [sys.executable, "-m", "scripts.bench.seed", uid, str(steps)]
    subprocess.run(command, env={**server.environ, **told}, check=True)


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
    rows = {one.step: list(one.rows.all()) for one in known}
    last = known[-1].step
    for first in range(last + 1, steps + 1, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, steps + 1))
        old = [known[(number - 1) % len(known)] for number in numbers]
        with transaction.atomic():
            new = made(type(known[0]), old, lambda step, at: {"step": numbers[at]})  # noqa: B023
            told = made(Dump, [dumps[one.step] for one in old], lambda dump, at: renamed(dump, numbers[at]))  # noqa: B023
            again = (
                blank(sample, id=named(sample.pk, step.step), step=step, dump=dump)
                for one, step, dump in zip(old, new, told, strict=True)
                for sample in rows[one.step]
            )
            Sample.objects.bulk_create(again, batch_size=2000)
    Run.objects.filter(pk=run.pk).update(version=F("version") + 1)


def made(model: Any, old: list[Any], changes: Callable[[Any, int], dict[str, Any]]) -> list[Any]:
    """New rows like the old ones."""
    return list(model.objects.bulk_create([blank(one, pk=None, **changes(one, at)) for at, one in enumerate(old)]))


def renamed(dump: Dump, step: int) -> dict[str, Any]:
    digest = sha256(f"{dump.identity} {step}".encode()).hexdigest()
    return {"step": step, "identity": digest, "sha256": digest, "source": f"{dump.source[:300]} {step}"}


def blank(row: Any, **changes: Any) -> Any:
    """A row that is not in the data base yet, but for the changes like this one."""
    new = copy(row)
    new._state = type(row._state)()
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def named(sample: str, step: int) -> str:
    return b32encode(sha256(f"{sample} {step}".encode()).digest()).decode().rstrip("=").lower()[: len(sample)]


if __name__ == "__main__":
    main()
