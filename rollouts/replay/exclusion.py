"""Finds the rows that a plan with `exclude_flagged` excludes from a pin's files, and the facts of the remaining rows.

A sample is found in a file through the dumps that were created from the file: the dump of the sample, or one that was
merged with it. A dump with the same bytes as the file counts too if no record of it was skipped. If an artifact is one
prompt, the samples of the trained step name it by their group. A trainer's layout excludes all answers to the prompt of
a flagged row, so the facts lose complete prompts. If the trainer can mask rows, the rows remain and no fact changes.
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
from rollouts.models import STEP_POSITION, Artifact, Dump, DuplicateSource, Label, Pin, Sample, get_step_position
from rollouts.pins import FEED_INDEX_PATTERN, PER_PROMPT_ROLE
from rollouts.samples import load_bodies

PADDED_ROLES = ("rollout_tq",)  # the trainer repeats prompts if a batch has fewer than requested
SIZE_FACTS = ("rows", "prompts")

StepPosition = tuple[Any, ...]
ArtifactKey = tuple[int, str]  # run id, key


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """{path: record numbers from 0} and the prompts they remove. `fully_flagged`: all prompts have a flagged sample."""

    records: Mapping[str, tuple[int, ...]]
    prompts: int
    fully_flagged: bool = False

    def get_remaining_facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the facts of the remaining rows. The sizes are unknown if the number of prompts is."""
        rows, prompts = facts.get("rows"), facts.get("prompts")
        if not self.prompts:
            return dict(facts)
        if not isinstance(prompts, int) or not prompts:
            return {name: fact for name, fact in facts.items() if name not in SIZE_FACTS}
        remaining = {"prompts": prompts - self.prompts}
        if isinstance(rows, int):
            remaining["rows"] = rows * remaining["prompts"] // prompts
        return {**facts, **remaining}


@dataclass(frozen=True, slots=True)
class PinExclusion:
    """The samples of a pin that are flagged bad, those not found in its files, and the rows by artifact id."""

    flagged: int = 0
    not_found: int = 0
    artifacts: Mapping[int, ExcludedRows] = field(default_factory=dict)


NO_EXCLUSION = PinExclusion()


def find_exclusions(pins: Iterable[Pin]) -> dict[int, PinExclusion]:
    """Returns the exclusions of the pins with flagged samples, by pin id. The caller has prefetched `artifacts`."""
    artifacts = {pin: list(pin.artifacts.all()) for pin in pins}
    steps = {pin: {get_position(pin), *map(get_position, own)} for pin, own in artifacts.items()}
    flagged = load_flagged_samples({position[0] for own in steps.values() for position in own})
    if not flagged:
        return {}
    masked = [artifact for own in artifacts.values() for artifact in own if masks_flagged(get_format(artifact))]
    index = FlaggedRowIndex({sample for samples in flagged.values() for sample in samples}, masked)
    samples = {pin: {sample for step in own for sample in flagged.get(step, ())} for pin, own in steps.items()}
    only_trained_pins = [pin for pin, own in artifacts.items() if all(only_trained(get_format(row)) for row in own)]
    filtered = find_filtered_samples(index, {sample for pin in only_trained_pins for sample in samples[pin]})
    samples = {pin: own - filtered for pin, own in samples.items()}
    return {pin.pk: build_exclusion(own, artifacts[pin], index) for pin, own in samples.items() if own}


def get_position(row: Pin | Artifact) -> StepPosition:
    return tuple(get_step_position(row).values())


def get_format(artifact: Artifact) -> str:
    return str(artifact.facts.get("format"))


def load_flagged_samples(runs: Iterable[int]) -> dict[StepPosition, set[str]]:
    """Returns the ids of the samples that are flagged bad, by the position of their step."""
    bad = Label.objects.flags().active().filter(step__run__in=list(runs), answer=" bad ")
    samples: dict[StepPosition, set[str]] = defaultdict(set)
    for sample, *position in bad.values_list("sample", *(f"step__{name}" for name in STEP_POSITION)):
        samples[tuple(position)].add(sample)
    return samples


def find_filtered_samples(index: FlaggedRowIndex, samples: set[str]) -> set[str]:
    """Returns the samples that the trainer filtered out before it wrote the files, so no file contains them."""
    missing = samples - {sample for sample, *_ in index.iter_rows()} if samples else set()
    if not missing:
        return set()
    try:
        bodies = load_bodies(list(Sample.objects.filter(pk__in=missing).select_related("dump")))
    except StorageUnavailableError:
        return set()
    return {sample for sample, body in bodies.items() if body.extras.get("filtered")}


class FlaggedRowIndex:
    """The rows of flagged samples in the files of artifacts, and the `groups` of the samples.

    `masked` artifacts count all records of their files, also unreadable ones. Their files may be dumps themselves.
    """

    def __init__(self, samples: Iterable[str], masked: Iterable[Artifact] = ()) -> None:
        rows = list(Sample.objects.filter(pk__in=list(samples)).values_list("pk", "dump", "ordinal", "group"))
        self.groups = {sample: group for sample, _, _, group in rows}
        duplicates = DuplicateSource.objects.filter(sample__in=list(self.groups))
        self._rows = [row[:3] for row in rows] + list(duplicates.values_list("sample", "dump", "ordinal"))
        dumps = {dump for _, dump, _ in self._rows}
        from_artifacts = Dump.objects.filter(pk__in=dumps, source__startswith=Dump.ARTIFACT_PREFIX)
        self._files: dict[int, tuple[ArtifactKey, str]] = {}  # dump id -> artifact and path
        for pk, run, source in from_artifacts.values_list("pk", "run", "source"):
            key, _, path = source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")
            self._files[pk] = (run, key), path
        files = {
            (artifact.run_id, file["sha256"]): ((artifact.run_id, artifact.key), path)
            for artifact in masked
            for path, file in artifact.files.items()
        }
        same_bytes = Dump.objects.filter(pk__in=dumps if files else ())
        for pk, run, sha256, skipped in same_bytes.values_list("pk", "run", "sha256", "left_out"):
            if (run, sha256) in files:
                self._files.pop(pk, None)
                if not skipped:  # else the row numbers of the dump are not the record numbers of the file
                    self._files[pk] = files[run, sha256]

    def iter_rows(self) -> Iterator[tuple[str, ArtifactKey, str, int]]:
        """Yields (sample, artifact, path, record)."""
        for sample, dump, ordinal in self._rows:
            if dump in self._files:
                yield sample, *self._files[dump], ordinal


def build_exclusion(samples: set[str], artifacts: Iterable[Artifact], index: FlaggedRowIndex) -> PinExclusion:
    """Returns the exclusion of a pin with these flagged samples."""
    by_key = {(artifact.run_id, artifact.key): artifact for artifact in artifacts}
    records: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    prompts: dict[int, set[str]] = defaultdict(set)
    located: set[str] = set()
    for sample, key, path, record in index.iter_rows():
        if sample in samples and (artifact := by_key.get(key)):
            located.add(sample)
            records[artifact.pk][path].add(record)
            prompts[artifact.pk].add(get_prompt_id(artifact, index.groups[sample], path, record))
    for artifact in by_key.values():
        if artifact.role == PER_PROMPT_ROLE:
            own = {sample for sample in samples if is_of_prompt(index.groups.get(sample), artifact)}
            if own:
                located |= own
                prompts[artifact.pk].add("")
    excluded = {
        artifact.pk: build_excluded_rows(artifact, records[artifact.pk], prompts[artifact.pk])
        for artifact in by_key.values()
        if artifact.pk in prompts
    }
    return PinExclusion(len(samples), len(samples - located), excluded)


def get_prompt_id(artifact: Artifact, group: str, path: str, record: int) -> str:
    """Returns an id of the sample's prompt that is unique in the artifact. The group may be from another dump."""
    answers = artifact.facts.get("samples_per_prompt")
    return group or (f"{path} {record // answers}" if isinstance(answers, int) and answers else f"{path} {record}")


def is_of_prompt(group: str | None, artifact: Artifact) -> bool:
    """Whether a sample of this group was generated for the prompt of the artifact."""
    feed_index = FEED_INDEX_PATTERN.search(group or "")
    return feed_index is not None and int(feed_index[1]) == artifact.step


def build_excluded_rows(artifact: Artifact, records: Mapping[str, set[int]], prompts: set[str]) -> ExcludedRows:
    ordered = {path: tuple(sorted(numbers)) for path, numbers in sorted(records.items())}
    if masks_flagged(get_format(artifact)):
        return ExcludedRows(ordered, 0, sum(map(len, ordered.values())) == artifact.facts.get("rows"))
    known = artifact.facts.get("prompts")
    fully_flagged = artifact.role == PER_PROMPT_ROLE or (isinstance(known, int) and len(prompts) >= known)
    return ExcludedRows(ordered, len(prompts), fully_flagged)


def compare_remaining_facts(
    artifact: Artifact, rows: ExcludedRows, facts: Mapping[str, Any], overridden: Iterable[str]
) -> list[FactDifference]:
    """Compares the facts of the remaining rows. Fewer rows are only a warning if the trainer repeats prompts."""
    remaining, overridden = rows.get_remaining_facts(artifact.facts), list(overridden)
    if artifact.role not in PADDED_ROLES:
        return compare_facts(remaining, facts, overridden)
    pinned = {difference.fact: difference for difference in compare_facts(artifact.facts, facts, overridden)}
    differences = compare_facts(remaining, facts, [*overridden, *SIZE_FACTS])
    return [pinned.get(difference.fact, difference) for difference in differences]


def explain_refusal(excluded: PinExclusion, artifacts: Iterable[int]) -> str:
    """Returns why the artifacts of a pin cannot be replayed without the flagged samples. Empty if they can."""
    if excluded.not_found:
        return _("flagged samples not found in its files: {count}").format(count=excluded.not_found)
    rows = [excluded.artifacts.get(pk) for pk in artifacts]
    fully_flagged = bool(rows) and all(row is not None and row.fully_flagged for row in rows)
    return _("all its prompts have samples flagged bad") if fully_flagged else ""
