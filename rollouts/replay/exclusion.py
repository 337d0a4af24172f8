"""Finds the rows of a pin's files that a plan selects, and the facts of the rows that remain.

If an artifact is one prompt, the samples of the trained step name it by their group; in some formats group and index
name the row. If prompts are dropped, a trainer's layout excludes all answers to the prompt of a selected row, so the
facts lose complete prompts. Masked rows remain, and no fact changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext as _

from rolloutdeck.protocol import FactDifference, compare_facts
from rolloutdeck.trainer_api import find_loader, format_has_only_trained, list_selected_actions, resolve_selected_action
from rollouts.models import Artifact, Pin
from rollouts.pins import FEED_INDEX_PATTERN, PER_PROMPT_ROLE
from rollouts.replay.outdated_files import find_other_versions, find_outdated_pins
from rollouts.replay.selected_rows import SelectedRowIndex, find_filtered_samples
from rollouts.replay.selection import (
    PlanSelector,
    SelectedSamples,
    get_position,
    select_samples,
)

PADDED_ROLES = ("rollout_tq",)  # the trainer repeats prompts if a batch has fewer than requested
SIZE_FACTS = ("rows", "prompts")


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


def get_format(artifact: Artifact) -> str:
    return str(artifact.facts.get("format"))


def get_selected_action(artifact: Artifact, on_selected: str) -> str:
    """Returns what the plan's setting means for the trainer that loads the artifact."""
    return resolve_selected_action(on_selected, get_format(artifact), artifact.role)


def has_maskable_rows(artifact: Artifact) -> bool:
    """Whether the trainer's own dumps are the files that it loads, with a record for each row."""
    return list_selected_actions(get_format(artifact))[:1] == ("mask",)


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
