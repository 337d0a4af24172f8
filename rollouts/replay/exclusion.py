"""What a plan leaves out that replays nothing flagged bad: which rows of a pin's files, and what is left of its facts.

A sample is found in a file by the dumps that were made of it: the sample's own, or one that joined it; a dump of the
very bytes is one, too, where no record of it was left out. Where an artifact is one prompt, the samples of the trained
step name it by their group. Whoever lays a file out leaves out all answers to the prompt of a flagged row, so facts
shrink by whole prompts; where the trainer knows rows without weight they stay, and nothing shrinks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from rolloutdeck.protocol import FactDifference, compare_facts
from rolloutdeck.trainer_api import masks_flagged, only_trained
from rollouts.errors import StorageUnavailableError
from rollouts.models import Artifact, Dump, DuplicateSource, Flag, Pin, Sample
from rollouts.pins import FEED_INDEX_PATTERN, PER_PROMPT_ROLE
from rollouts.samples import load_bodies

PLACE = ("run_id", "attempt_id", "split", "step_kind", "step")  # of a step, and of what stands on one
REPEATS = ("rollout_tq",)  # roles whose trainer repeats prompts where a batch has fewer than it asks for
FEWER = ("rows", "prompts")  # facts that shrink

Place = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """Of one artifact: path -> records that are flagged, counted from 0; so many `prompts` go with them."""

    records: Mapping[str, tuple[int, ...]]
    prompts: int
    whole: bool = False

    def left(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of what is left; how many rows stays unknown where the prompts are."""
        rows, prompts = facts.get("rows"), facts.get("prompts")
        if not self.prompts:
            return dict(facts)
        if not isinstance(prompts, int) or not prompts:
            return {name: fact for name, fact in facts.items() if name not in FEWER}
        left = {"prompts": prompts - self.prompts}
        if isinstance(rows, int):
            left["rows"] = rows * left["prompts"] // prompts
        return {**facts, **left}


@dataclass(frozen=True, slots=True)
class PinExclusion:
    """Of one pin: how many samples are flagged bad, how many of them stand in no row of its files, and the rows."""

    flagged: int = 0
    unplaced: int = 0
    artifacts: Mapping[int, ExcludedRows] = field(default_factory=dict)


NO_EXCLUSION = PinExclusion()


def find_exclusions(pins: Iterable[Pin]) -> dict[int, PinExclusion]:
    """By the pin's id; pins without a flagged sample are left out. `artifacts` are those that are prefetched."""
    wanted = {pin.pk: pin for pin in pins}
    held = {pk: list(pin.artifacts.all()) for pk, pin in wanted.items()}
    places = {pk: {place_of(pin), *map(place_of, held[pk])} for pk, pin in wanted.items()}
    bad = flagged({place[0] for every in places.values() for place in every})
    if not bad:
        return {}
    masked = [one for every in held.values() for one in every if masks(one)]
    found = FlaggedRowIndex({sample for samples in bad.values() for sample in samples}, masked)
    every_bad = {pk: {sample for place in every for sample in bad.get(place, ())} for pk, every in places.items()}
    dropped = filtered(
        found, {sample for pk, one in every_bad.items() if all(map(trained, held[pk])) for sample in one}
    )
    return {pk: excluded(samples, held[pk], found) for pk, one in every_bad.items() if (samples := one - dropped)}


def place_of(row: Pin | Artifact) -> Place:
    return tuple(getattr(row, name) for name in PLACE)


def flagged(runs: Iterable[int]) -> dict[Place, set[str]]:
    """The samples that are flagged bad, by the place of their step."""
    bad = Flag.objects.filter(step__run__in=list(runs), label=Flag.Label.BAD, withdrawn_at=None)
    found: dict[Place, set[str]] = defaultdict(set)
    for sample, *place in bad.values_list("sample", *(f"step__{name}" for name in PLACE)):
        found[tuple(place)].add(sample)
    return found


def masks(artifact: Artifact) -> bool:
    """Whether its trainer takes flagged rows along, without weight."""
    return masks_flagged(str(artifact.facts.get("format")))


def trained(artifact: Artifact) -> bool:
    return only_trained(str(artifact.facts.get("format")))


def filtered(found: FlaggedRowIndex, samples: set[str]) -> set[str]:
    """Those that stand in no file since the trainer itself left them out. No file holds them, so none loads them."""
    lost = samples - {sample for sample, *_ in found.places()} if samples else set()
    if not lost:
        return set()
    try:
        told = load_bodies(list(Sample.objects.filter(pk__in=lost).select_related("dump")))
    except StorageUnavailableError:
        return set()
    return {sample for sample, body in told.items() if body.extras.get("filtered")}


class FlaggedRowIndex:
    """Where flagged samples lie: `groups` of each, and its places as (run, artifact's key, path, record). `whole` are
    artifacts of which every record counts, also those that could not be read; their files may be dumps themselves."""

    def __init__(self, samples: Iterable[str], whole: Iterable[Artifact] = ()) -> None:
        rows = list(Sample.objects.filter(pk__in=list(samples)).values_list("pk", "dump", "ordinal", "group"))
        self.groups = {sample: group for sample, _, _, group in rows}
        seen = DuplicateSource.objects.filter(sample__in=list(self.groups)).values_list("sample", "dump", "ordinal")
        self._at = [(sample, dump, ordinal) for sample, dump, ordinal, _ in rows] + list(seen)
        dumps = {dump for _, dump, _ in self._at}
        made = Dump.objects.filter(pk__in=dumps, source__startswith=Dump.ARTIFACT_PREFIX)
        self._files = {pk: (run, *split(source)) for pk, run, source in made.values_list("pk", "run", "source")}
        self._whole(dumps, whole)

    def _whole(self, dumps: set[int], whole: Iterable[Artifact]) -> None:
        """A dump of the very bytes tells their records where none was left out; one that lacks some tells none."""
        same = {
            (one.run_id, file["sha256"]): (one.run_id, one.key, path)
            for one in whole
            for path, file in one.files.items()
        }
        told = Dump.objects.filter(pk__in=dumps if same else ()).values_list("pk", "run", "sha256", "left_out")
        for pk, run, sha256, left_out in told:
            if (run, sha256) not in same:
                continue
            self._files.pop(pk, None)
            if not left_out:
                self._files[pk] = same[run, sha256]

    def places(self) -> Iterator[tuple[str, tuple[int, str], str, int]]:
        """(sample, artifact's run and key, path, record)."""
        for sample, dump, ordinal in self._at:
            if dump in self._files:
                run, key, path = self._files[dump]
                yield sample, (run, key), path, ordinal


def split(source: str) -> tuple[str, str]:
    key, _, path = source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")
    return key, path


def excluded(samples: set[str], artifacts: Iterable[Artifact], found: FlaggedRowIndex) -> PinExclusion:
    """Of a pin with these flagged samples."""
    known = {(one.run_id, one.key): one for one in artifacts}
    records: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    prompts: dict[int, set[str]] = defaultdict(set)
    placed: set[str] = set()
    for sample, name, path, record in found.places():
        if sample in samples and (one := known.get(name)):
            placed.add(sample)
            records[one.pk][path].add(record)
            prompts[one.pk].add(group_of(one, found.groups[sample], path, record))
    for one in known.values():
        if one.role == PER_PROMPT_ROLE and (
            own := {sample for sample in samples if fed_as(found.groups.get(sample), one)}
        ):
            placed |= own
            prompts[one.pk].add("")
    return PinExclusion(
        len(samples),
        len(samples - placed),
        {one.pk: rows(one, records[one.pk], prompts[one.pk]) for one in known.values() if one.pk in prompts},
    )


def group_of(artifact: Artifact, group: str, path: str, record: int) -> str:
    """What tells the sample's prompt from the others of the artifact; its group may come from another dump."""
    answers = artifact.facts.get("samples_per_prompt")
    return group or (f"{path} {record // answers}" if isinstance(answers, int) and answers else f"{path} {record}")


def fed_as(group: str | None, artifact: Artifact) -> bool:
    """Whether a sample of this group was generated for the prompt that the artifact holds."""
    fed = FEED_INDEX_PATTERN.search(group or "")
    return fed is not None and int(fed[1]) == artifact.step


def rows(artifact: Artifact, records: Mapping[str, set[int]], prompts: set[str]) -> ExcludedRows:
    if masks(artifact):
        flagged = sum(map(len, records.values()))
        return ExcludedRows(
            {path: tuple(sorted(one)) for path, one in records.items()}, 0, flagged == artifact.facts.get("rows")
        )
    known = artifact.facts.get("prompts")
    whole = artifact.role == PER_PROMPT_ROLE or (isinstance(known, int) and len(prompts) >= known)
    return ExcludedRows({path: tuple(sorted(one)) for path, one in sorted(records.items())}, len(prompts), whole)


def compare_remaining_facts(
    artifact: Artifact, rows: ExcludedRows, facts: Mapping[str, Any], loosened: Iterable[str]
) -> list[FactDifference]:
    """Those of what is left of an artifact. Fewer rows are a warning where the trainer repeats prompts to fill up."""
    loose = list(loosened)
    if artifact.role not in REPEATS:
        return compare_facts(rows.left(artifact.facts), facts, loose)
    pinned = {one.fact: one for one in compare_facts(artifact.facts, facts, loose)}
    left = compare_facts(rows.left(artifact.facts), facts, [*loose, *FEWER])
    return [pinned.get(one.fact, one) for one in left]


def explain_refusal(found: PinExclusion, artifacts: Iterable[int]) -> str:
    """Why a pin can't be replayed without what is flagged; empty where it can. `artifacts` are those of the pin."""
    if found.unplaced:
        return _("flagged samples not found in its files: {count}").format(count=found.unplaced)
    ids = list(artifacts)
    return _("all its prompts have samples flagged bad") if ids and all(is_whole(found, pk) for pk in ids) else ""


def is_whole(found: PinExclusion, artifact: int) -> bool:
    return artifact in found.artifacts and found.artifacts[artifact].whole
