"""Finds the rows of a pin's files that a plan selects, and the facts of the rows that remain.

A sample is found in a file through the dumps that were created from the file: the dump of the sample, or one that was
merged with it. A dump with the same bytes as the file counts too if no record of it was skipped. A dump of which the
retention policy dropped samples does not count, since its rows have other numbers now. If an artifact is one
prompt, the samples of the trained step name it by their group; in some formats group and index name the row. If
prompts are dropped, a trainer's layout excludes all answers to the prompt of a selected row, so the facts lose complete
prompts. Masked rows remain, and no fact changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext as _

from rolloutdeck.protocol import FactDifference, compare_facts
from rolloutdeck.trainer_api import find_loader, format_has_only_trained, list_selected_actions, resolve_selected_action
from rollouts.errors import StorageUnavailableError
from rollouts.models import STEP_POSITION, Artifact, Dump, DuplicateSource, Pin, Sample
from rollouts.pins import FEED_INDEX_PATTERN, PER_PROMPT_ROLE
from rollouts.replay.selection import (
    PlanSelector,
    SelectedSamples,
    StepPosition,
    get_position,
    load_step_ids,
    select_samples,
)
from rollouts.samples import load_bodies, scan_dump_rows

PADDED_ROLES = ("rollout_tq",)  # the trainer repeats prompts if a batch has fewer than requested
SIZE_FACTS = ("rows", "prompts")
MAX_IDS_PER_QUERY = 900

ArtifactKey = tuple[int, str]  # run id, key


@dataclass(frozen=True, slots=True)
class ExcludedRows:
    """{path: record numbers from 0} and the prompts that the batch loses. `is_fully_selected`: nothing would remain."""

    records: Mapping[str, tuple[int, ...]]
    prompts: int
    is_fully_selected: bool = False

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
    """What a plan selects of a pin: the number of samples, of those not found in its files, and the rows by artifact
    id.

    `samples` are the rules that selected each one; `prompts` is the number of their prompts. `version` is that of the
    rules, None if flags select. `is_complete`: the search of the rules left out no sample.
    """

    selected_count: int = 0
    not_found: int = 0
    artifacts: Mapping[int, ExcludedRows] = field(default_factory=dict)
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    prompts: int = 0
    version: int | None = None
    is_complete: bool = True


NO_EXCLUSION = PinExclusion()


DEFAULT_SELECTOR = PlanSelector("exclude")


def find_exclusions(pins: Iterable[Pin], selector: PlanSelector = DEFAULT_SELECTOR) -> dict[int, PinExclusion]:
    """Returns what the plan selects of each pin, by pin id. The caller has prefetched `artifacts`.

    If flags select, pins without a flagged sample have no entry. Raises StorageUnavailableError.
    """
    artifacts = {pin: list(pin.artifacts.all()) for pin in pins}
    steps = {pin: {get_position(pin), *map(get_position, own)} for pin, own in artifacts.items()}
    selection = select_samples({step for own in steps.values() for step in own}, selector)
    selected = selection.samples
    if not selected and selection.version is None:
        return {}
    masked = [artifact for own in artifacts.values() for artifact in own if has_maskable_rows(artifact)]
    index = SelectedRowIndex({sample for samples in selected.values() for sample in samples}, masked)
    samples: dict[Pin, SelectedSamples] = {
        pin: {sample: rules for step in own for sample, rules in selected.get(step, {}).items()}
        for pin, own in steps.items()
    }
    only_trained_pins = [
        pin for pin, own in artifacts.items() if all(format_has_only_trained(get_format(row)) for row in own)
    ]
    filtered = find_filtered_samples(index, {sample for pin in only_trained_pins for sample in samples[pin]})
    exclusions = {}
    outdated = find_outdated_pins(artifacts, steps) if selected else set()
    for pin, found in samples.items():
        own = {sample: rules for sample, rules in found.items() if sample not in filtered}
        if own or selection.version is not None:
            ignored = index.hidden
            if pin in outdated:
                ignored = find_other_versions(own, artifacts[pin], index, steps[pin])
            result = build_exclusion(own, artifacts[pin], index, selector.on_selected, ignored)
            if result.selected_count or selection.version is not None:
                exclusions[pin.pk] = replace(result, version=selection.version, is_complete=selection.is_complete)
    return exclusions


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


def get_format(artifact: Artifact) -> str:
    return str(artifact.facts.get("format"))


def get_selected_action(artifact: Artifact, on_selected: str) -> str:
    """Returns what the plan's setting means for the trainer that loads the artifact."""
    return resolve_selected_action(on_selected, get_format(artifact), artifact.role)


def has_maskable_rows(artifact: Artifact) -> bool:
    """Whether the trainer's own dumps are the files that it loads, with a record for each row."""
    return list_selected_actions(get_format(artifact))[:1] == ("mask",)


def find_filtered_samples(index: SelectedRowIndex, samples: set[str]) -> set[str]:
    """Returns the samples that the trainer filtered out before it wrote the files, so no file contains them."""
    missing = samples - {sample for sample, *_ in index.iter_rows()} if samples else set()
    if not missing:
        return set()
    try:
        rows = [row for ids in chunk(missing) for row in Sample.objects.filter(pk__in=ids).select_related("dump")]
        bodies = load_bodies(rows)
    except StorageUnavailableError:
        return set()
    return {sample for sample, body in bodies.items() if body.extras.get("filtered")}


class SelectedRowIndex:
    """The rows of selected samples in the files of artifacts, and the `groups` of the samples.

    `hidden` samples are of an older version of their step. `masked` artifacts count all records of their files, also
    unreadable ones. Their files may be dumps themselves.
    """

    def __init__(self, samples: Iterable[str], masked: Iterable[Artifact] = ()) -> None:
        self.groups: dict[str, str] = {}
        self.indices: dict[str, int | None] = {}  # in the group
        self.prompts: dict[str, str] = {}
        self.hidden: set[str] = set()
        self._rows: list[tuple[str, int, int]] = []  # (sample, dump, ordinal)
        columns = ("pk", "dump", "ordinal", "group", "index", "prompt_key", "visible")
        for ids in chunk(samples):
            rows = Sample.objects.filter(pk__in=ids).values_list(*columns)
            for sample, dump, ordinal, group, number, key, visible in rows:
                self._rows.append((sample, dump, ordinal))
                self.groups[sample], self.indices[sample], self.prompts[sample] = group, number, group or key
                if not visible:
                    self.hidden.add(sample)
            duplicates = DuplicateSource.objects.filter(sample__in=ids)
            self._rows += duplicates.values_list("sample", "dump", "ordinal")
        complete = Dump.objects.filter(pk__in={dump for _, dump, _ in self._rows}, samples_dropped_at=None)
        from_artifacts = complete.filter(source__startswith=Dump.ARTIFACT_PREFIX)
        self._files: dict[int, tuple[ArtifactKey, str]] = {}  # dump id -> artifact and path
        for pk, run, source in from_artifacts.values_list("pk", "run", "source"):
            key, _, path = source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")
            self._files[pk] = (run, key), path
        files = {
            (artifact.run_id, file["sha256"]): ((artifact.run_id, artifact.key), path)
            for artifact in masked
            for path, file in artifact.files.items()
        }
        same_bytes = complete if files else complete.none()
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

    def find_numbered_row(self, sample: str, artifact: Artifact) -> tuple[str, int] | None:
        """Returns path and record of a sample whose group and index are the position of its row in the step."""
        group, index = self.groups.get(sample, ""), self.indices.get(sample)
        answers, rows = (artifact.facts.get(name) for name in ("samples_per_prompt", "rows"))
        files = sorted(artifact.files, key=lambda name: (len(name), name))
        is_number = group.isascii() and group.isdigit() and len(group) < 16
        if not is_number or index is None or not isinstance(answers, int) or not isinstance(rows, int):
            return None
        row, rows_per_file = int(group) * answers + index, rows // max(1, len(files))
        return (files[row // rows_per_file], row % rows_per_file) if rows_per_file and row < rows else None


def chunk(ids: Iterable[str]) -> Iterator[list[str]]:
    """Yields lists that fit into one query."""
    ordered = list(ids)
    for start in range(0, len(ordered), MAX_IDS_PER_QUERY):
        yield ordered[start : start + MAX_IDS_PER_QUERY]


def build_exclusion(
    samples: SelectedSamples,
    artifacts: Iterable[Artifact],
    index: SelectedRowIndex,
    on_selected: str,
    ignored: Collection[str],
) -> PinExclusion:
    """Returns what the plan selects of a pin with these selected samples. Those that are `ignored`, of another version
    of the step than the pin, count only if a file of the pin has them."""
    shown = samples.keys() - set(ignored)
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
        if numbers_rows(artifact):
            for sample in shown:
                if place := index.find_numbered_row(sample, artifact):
                    located.add(sample)
                    records[artifact.pk][place[0]].add(place[1])
                    prompts[artifact.pk].add(index.groups[sample])
        if artifact.role == PER_PROMPT_ROLE:
            own = {sample for sample in shown if is_of_prompt(index.groups.get(sample), artifact)}
            if own:
                located |= own
                prompts[artifact.pk].add("")
    excluded = {
        artifact.pk: build_excluded_rows(
            artifact, records[artifact.pk], prompts[artifact.pk], get_selected_action(artifact, on_selected)
        )
        for artifact in by_key.values()
        if artifact.pk in prompts
    }
    counted = {sample: rules for sample, rules in samples.items() if sample in shown or sample in located}
    prompt_count = len({index.prompts[sample] for sample in counted if sample in index.prompts})
    return PinExclusion(len(counted), len(counted.keys() - located), excluded, counted, prompt_count)


def numbers_rows(artifact: Artifact) -> bool:
    return bool((loader := find_loader(get_format(artifact))) and loader.numbers_rows)


def get_prompt_id(artifact: Artifact, group: str, path: str, record: int) -> str:
    """Returns an id of the sample's prompt that is unique in the artifact. The group may be from another dump."""
    answers = artifact.facts.get("samples_per_prompt")
    return group or (f"{path} {record // answers}" if isinstance(answers, int) and answers else f"{path} {record}")


def is_of_prompt(group: str | None, artifact: Artifact) -> bool:
    """Whether a sample of this group was generated for the prompt of the artifact."""
    feed_index = FEED_INDEX_PATTERN.search(group or "")
    return feed_index is not None and int(feed_index[1]) == artifact.step


def build_excluded_rows(
    artifact: Artifact, records: Mapping[str, set[int]], prompts: set[str], action: str
) -> ExcludedRows:
    ordered = {path: tuple(sorted(numbers)) for path, numbers in sorted(records.items())}
    if action == "mask":
        return ExcludedRows(ordered, 0, sum(map(len, ordered.values())) == artifact.facts.get("rows"))
    known, loader = artifact.facts.get("prompts"), find_loader(get_format(artifact))
    is_fully_selected = artifact.role == PER_PROMPT_ROLE or (isinstance(known, int) and len(prompts) >= known)
    stays = action == "regenerate" or bool(loader and loader.drops_in_place)
    return ExcludedRows(ordered, 0 if stays else len(prompts), is_fully_selected)


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


def explain_refusal(
    excluded: PinExclusion, artifacts: Sequence[Artifact], on_selected: str = "exclude", selected_by: str = "flags"
) -> str:
    """Returns why the artifacts of a pin cannot be replayed without what is selected. Empty if they can."""
    by_rules = selected_by == "rules"
    rows = [excluded.artifacts.get(artifact.pk) for artifact in artifacts]
    is_fully_selected = bool(rows) and all(row is not None and row.is_fully_selected for row in rows)
    if excluded.selected_count and regenerates_step(artifacts, on_selected):
        text = _("samples flagged bad: {count}; the plan generates the step again")
        if by_rules:
            text = _("samples that the rules select: {count}; the plan generates the step again")
        return text.format(count=excluded.selected_count)
    if excluded.not_found:
        text = _("flagged samples not found in its files: {count}")
        if by_rules:
            text = _("selected samples not found in its files: {count}")
        return text.format(count=excluded.not_found)
    if not is_fully_selected:
        return ""
    return _("the rules select all its prompts") if by_rules else _("all its prompts have samples flagged bad")


def regenerates_step(artifacts: Iterable[Artifact], on_selected: str) -> bool:
    """Whether a selected sample makes the run generate the complete step. Files per prompt regenerate only a prompt."""
    return any(
        artifact.role != PER_PROMPT_ROLE and get_selected_action(artifact, on_selected) == "regenerate"
        for artifact in artifacts
    )
