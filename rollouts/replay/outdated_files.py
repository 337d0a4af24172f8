"""Finds pins whose files are of an older version of their step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _

from rollouts.errors import StorageUnavailableError
from rollouts.models import STEP_POSITION, Artifact, Dump, Pin, Sample
from rollouts.pins import PER_PROMPT_ROLE
from rollouts.replay.selected_rows import SelectedRowIndex
from rollouts.replay.selection import (
    SelectedSamples,
    StepPosition,
    get_position,
    load_step_ids,
)
from rollouts.samples import scan_dump_rows


def find_outdated_pins(
    artifacts: Mapping[Pin, Sequence[Artifact]], steps: Mapping[Pin, Collection[StepPosition]]
) -> set[Pin]:
    """Returns the pins with files of an older version of their step: a pin keeps the files it has. The step has newer
    files and samples that are hidden."""
    outdated = find_outdated_artifacts(row for own in artifacts.values() for row in own)
    pins = {pin for pin, own in artifacts.items() if any(row.pk in outdated for row in own)}
    ids = load_step_ids({step for pin in pins for step in steps[pin]}) if pins else {}
    hidden = Sample.objects.filter(step__in=list(ids), visible=False).order_by().values_list("step", flat=True)
    replaced = {ids[step] for step in hidden.distinct()} if ids else set()
    return {pin for pin in pins if not replaced.isdisjoint(steps[pin])}


def find_outdated_artifacts(artifacts: Iterable[Artifact]) -> set[int]:
    """Returns the ids of those that have a newer artifact of the same role, attempt and step."""
    keys = {row.pk: (row.role, *get_position(row)) for row in artifacts}
    same_runs = Artifact.objects.filter(
        run__in={row[1] for row in keys.values()}, step__in={row[-1] for row in keys.values()}
    )
    newest: dict[tuple[Any, ...], int] = {}
    for pk, *key in same_runs.order_by("pk").values_list("pk", "role", *STEP_POSITION):
        newest[tuple(key)] = pk
    return {pk for pk, key in keys.items() if newest.get(key, pk) > pk}


def find_other_versions(
    samples: SelectedSamples, artifacts: Iterable[Artifact], index: SelectedRowIndex, steps: Iterable[StepPosition]
) -> set[str]:
    """Returns the samples that only a newer version of the step than an outdated pin has. If each prompt has an
    artifact, they may be of several versions, so no sample is ignored."""
    newer = samples.keys() - index.hidden
    if not newer or any(artifact.role == PER_PROMPT_ROLE for artifact in artifacts):
        return set()
    return newer - load_superseded_samples(steps)


def load_superseded_samples(steps: Iterable[StepPosition]) -> set[str]:
    """Returns the ids in the superseded dumps of these steps, also of samples that a newer dump has too."""
    ids: set[str] = set()
    for step in steps:
        position = dict(zip(STEP_POSITION, step, strict=True))
        dumps = Dump.objects.filter(**position, state=Dump.State.SUPERSEDED, segment__isnull=False)
        for dump in dumps.select_related("segment"):
            try:
                ids.update(name for table in scan_dump_rows(dump, ["id"]) for name in table["id"].to_pylist())
            except FileNotFoundError as error:  # it was just moved into another segment
                message = _("Cannot read the sample texts of this run. Try again, or re-index the run.")
                raise StorageUnavailableError(message) from error
    return ids
