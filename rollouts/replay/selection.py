"""Which samples of pinned steps a plan selects, and why: those flagged bad, or those that the guidance rules select.

Rules select as they do in a running training: the prompts, or the responses to a prompt, that have a matching sample in
the newest runs, and here also in the pinned runs. Only the actions mask and drop leave a row out of the update, so
rules with another action select nothing of a replay. The plan, not the rule, says what happens to a selected sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rolloutdeck.protocol import KEY_SEPARATOR
from rollouts.guidance import (
    TEXTS_AT_ONCE,
    RuleVersion,
    SelectedRows,
    build_response_keys,
    has_text,
    load_guidance,
    select_rows,
)
from rollouts.models import STEP_POSITION, Artifact, Label, Pin, Project, Sample, Step, get_step_position

if TYPE_CHECKING:
    from django.contrib.auth.models import User

FLAGGED_RULE: Final = "flagged bad"  # stands where the keys of rules do
RULE_ACTIONS: Final = ("mask", "drop")  # of the rules that act on replays
MAX_KEYS_PER_QUERY: Final = 900
CHUNK_ROWS: Final = 2000
SAMPLE_COLUMNS: Final = ("pk", "step", "prompt_key", "facets", "dump", "ordinal", "visible")
MAX_TEXTS: Final = 20_000  # responses of pinned steps that are compared with those of rules

StepPosition = tuple[Any, ...]
SelectedSamples = dict[str, tuple[str, ...]]  # {sample id: keys of rules}


def get_position(row: Pin | Artifact | Step) -> StepPosition:
    return tuple(get_step_position(row).values())


@dataclass(frozen=True, slots=True)
class PlanSelector:
    """What a plan selects and what it does with it: see `Revision`. `reader`: whose view of labels counts where rules
    select. `is_shown`: it also counts where flags select. A trainer loads what all flags select."""

    on_selected: str = "keep"
    selected_by: str = "flags"
    reader: User | None = None
    is_shown: bool = False

    @property
    def selects(self) -> bool:
        return self.on_selected != "keep"

    @property
    def follows_rules(self) -> bool:
        return self.selects and self.selected_by == "rules" and self.reader is not None


@dataclass(slots=True)
class StepSelection:
    """The selected samples by the position of their step. `version` is that of the rules, None without rules.
    `is_complete`: no sample was left out of the search."""

    samples: Mapping[StepPosition, SelectedSamples] = field(default_factory=dict)
    version: int | None = None
    is_complete: bool = True


def select_samples(positions: Collection[StepPosition], selector: PlanSelector) -> StepSelection:
    """Returns the selected samples of the steps at these positions, which are of one project. Raises
    StorageUnavailableError."""
    runs = {position[0] for position in positions}
    project = Project.objects.filter(runs__in=list(runs)).first() if selector.follows_rules else None
    if project is None or selector.reader is None:
        return StepSelection(load_flagged_samples(runs, selector.reader if selector.is_shown else None))
    version = load_guidance(project)
    selection = select_rows(project, version, selector.reader, runs)
    return select_by_rules(version, selection, positions)


def load_flagged_samples(runs: Collection[int], reader: User | None) -> dict[StepPosition, SelectedSamples]:
    """Returns the samples that are flagged bad. With `reader`, by flags that this user may read."""
    bad = Label.objects.flags().active().filter(step__run__in=list(runs), answer=" bad ")
    bad = bad.readable_by(reader) if reader is not None else bad
    samples: dict[StepPosition, SelectedSamples] = defaultdict(dict)
    for sample, *position in bad.values_list("sample", *(f"step__{name}" for name in STEP_POSITION)):
        samples[tuple(position)][sample] = (FLAGGED_RULE,)
    return samples


def select_by_rules(
    version: RuleVersion, selection: SelectedRows, positions: Collection[StepPosition]
) -> StepSelection:
    acting = {index for index, rule in enumerate(version.rules) if rule.action in RULE_ACTIONS}
    prompts = keep_rules(selection.prompts, acting)
    responses = keep_rules(selection.responses, acting)
    matched = keep_rules(selection.samples, acting)
    compared = {key.partition(KEY_SEPARATOR)[0] for key in responses}
    found = StepSelection(defaultdict(dict), version.number, is_complete=is_complete(selection, acting))
    with_texts: list[tuple[Sample, StepPosition]] = []
    for sample, position in iter_samples("pk", sorted(matched), positions):
        add_rules(found.samples[position], sample.pk, version, matched[sample.pk])
    for sample, position in iter_samples("prompt_key", sorted({*prompts, *compared}), positions):
        if indices := prompts.get(sample.prompt_key):
            add_rules(found.samples[position], sample.pk, version, indices)
        if sample.prompt_key in compared and has_text(sample):
            with_texts.append((sample, position))
    found.is_complete &= len(with_texts) <= MAX_TEXTS
    with_texts.sort(key=lambda row: not row[0].visible)  # hidden ones are left out first
    del with_texts[MAX_TEXTS:]
    with_texts.sort(key=lambda row: (row[0].dump_id, row[0].ordinal))  # a chunk needs few files
    for first in range(0, len(with_texts), TEXTS_AT_ONCE):
        chunk = with_texts[first : first + TEXTS_AT_ONCE]
        keys = build_response_keys([sample for sample, _ in chunk])
        for sample, position in chunk:
            add_rules(found.samples[position], sample.pk, version, responses.get(keys.get(sample.pk, ""), ()))
    return found


def keep_rules(keys: Mapping[str, Sequence[int]], acting: Collection[int]) -> dict[str, list[int]]:
    kept = ((key, [index for index in indices if index in acting]) for key, indices in keys.items())
    return {key: indices for key, indices in kept if indices}


def is_complete(selection: SelectedRows, acting: Collection[int]) -> bool:
    return all(rule.is_complete for index, rule in enumerate(selection.rules) if index in acting)


def add_rules(samples: SelectedSamples, sample: str, version: RuleVersion, indices: Sequence[int]) -> None:
    if indices:
        keys = (version.rules[index].key for index in indices)
        samples[sample] = tuple(dict.fromkeys((*samples.get(sample, ()), *keys)))


def iter_samples(
    name: str, keys: Sequence[str], positions: Collection[StepPosition]
) -> Iterator[tuple[Sample, StepPosition]]:
    """Yields the samples of these steps whose field `name` has one of these keys, with the columns that their texts are
    read by. Hidden ones too: an older version of a step may be pinned."""
    steps = load_step_ids(positions) if keys else {}
    ids = list(steps)
    for first in range(0, len(ids), MAX_KEYS_PER_QUERY):
        samples = Sample.objects.filter(step__in=ids[first : first + MAX_KEYS_PER_QUERY])
        for start in range(0, len(keys), MAX_KEYS_PER_QUERY):
            found = samples.filter(**{f"{name}__in": keys[start : start + MAX_KEYS_PER_QUERY]})
            for sample in found.only(*SAMPLE_COLUMNS).iterator(chunk_size=CHUNK_ROWS):
                yield sample, steps[sample.step_id]


def load_step_ids(positions: Collection[StepPosition]) -> dict[int, StepPosition]:
    wanted, runs = set(positions), {position[0] for position in positions}
    rows = Step.objects.filter(run__in=list(runs)).values_list("pk", *STEP_POSITION).iterator(chunk_size=CHUNK_ROWS)
    return {pk: tuple(position) for pk, *position in rows if tuple(position) in wanted}
