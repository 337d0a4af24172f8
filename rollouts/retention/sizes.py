"""The bytes of the samples of each step: its rows in body files, its raw dumps, its index rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import F, FloatField, Sum
from django.db.models.functions import Cast

from rollouts.models import STEP_POSITION, Dump, Project, Step, get_step_position
from rollouts.storage import measure_raw_dumps

BYTES_PER_SAMPLE = 700  # of an index row with its indexes


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Bytes of bodies and of raw dumps by the position of the step."""

    bodies: dict[tuple[Any, ...], float]
    raw: dict[tuple[Any, ...], int]

    def sum_step(self, step: Step) -> float:
        return self.count_bodies(step) + self.count_raw(step)

    def count_bodies(self, step: Step) -> float:
        return self.bodies.get(tuple(get_step_position(step).values()), 0.0)

    def count_raw(self, step: Step) -> int:
        return self.raw.get(tuple(get_step_position(step).values()), 0)

    @property
    def total(self) -> float:
        return sum(self.bodies.values()) + sum(self.raw.values())


def load_step_sizes(project: Project) -> StepSizes:
    """Reads the size of each raw file. A body file may have the rows of many dumps: each counts its share."""
    dumps = Dump.objects.filter(run__project=project, run__deleted_at=None).order_by()
    share = Cast(F("segment__bytes"), FloatField()) * F("rows") / F("segment__rows")
    bodies = dumps.filter(segment__rows__gt=0).values_list(*STEP_POSITION).annotate(size=Sum(share))
    raw: dict[tuple[Any, ...], int] = {}
    stored = list(find_raw_dumps(dumps).values_list(*STEP_POSITION, "sha256").iterator(chunk_size=5000))
    sizes = measure_raw_dumps(project.pk, {row[-1] for row in stored})
    for *position, sha256 in stored:
        raw[tuple(position)] = raw.get(tuple(position), 0) + sizes.get(sha256, 0)
    return StepSizes({tuple(position): size for *position, size in bodies}, raw)


def find_raw_dumps(dumps: Any) -> Any:
    """The dumps whose raw bytes are stored. Those of artifacts have none of their own."""
    return dumps.filter(raw_dropped_at=None).exclude(source__startswith=Dump.ARTIFACT_PREFIX)


def measure_raw_dump(project_id: int, sha256: str) -> int:
    try:
        return measure_raw_dumps(project_id, [sha256]).get(sha256, 0)
    except OSError:
        return 0
