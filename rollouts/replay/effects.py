"""What a plan does with the selected samples of each pinned step: prompt by prompt, and the totals of the step.

Trainers count masked samples in the baseline of their group. So a group whose other samples have equal scores may still
be trained on; `leaves_no_difference` says that its remaining samples are not compared with each other any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from rollouts.models import Sample, Step
from rollouts.replay.compatibility import EntryCompatibility
from rollouts.replay.exclusion import regenerates_step
from rollouts.replay.selected_rows import chunk

MAX_PROMPTS: Final = 200  # of all entries together that are described one by one
MAX_PROMPT_SAMPLES: Final = 64  # of one prompt that are listed
EFFECTS = {
    "mask": N_("{count} of {total} masked"),
    "drop": N_("dropped: {count} of {total} selected"),
    "regenerate": N_("generated again: {count} of {total} selected"),
}


@dataclass(frozen=True, slots=True)
class SampleEffect:
    """A sample of a prompt and the rules that select it; none if it stays."""

    id: str
    score: float | None
    correct: bool | None
    rules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptEffect:
    """A prompt of a pinned step with selected samples. `total` counts all its samples, `samples` lists the first ones.

    `mean` is the mean score of all samples, `remaining_mean` that of the `remaining` ones; None if a score is unknown.
    """

    step: Step
    group: str
    prompt_key: str
    selected: int
    total: int
    samples: tuple[SampleEffect, ...]
    rules: tuple[str, ...]
    mean: float | None
    remaining_mean: float | None
    had_difference: bool
    has_difference: bool
    remaining: int
    action: str

    @property
    def change(self) -> float | None:
        if self.mean is None or self.remaining_mean is None:
            return None
        return self.remaining_mean - self.mean

    @property
    def has_lost_difference(self) -> bool:
        """Whether masks leave no different scores. Unknown scores may differ."""
        is_known = self.remaining_mean is not None or not self.remaining
        return self.action == "mask" and self.had_difference and not self.has_difference and is_known

    @property
    def note(self) -> str:
        """What the masks leave of the prompt, if it matters."""
        if self.action != "mask":
            return ""
        if not self.remaining:
            return _("nothing remains")
        if self.mean is None or self.remaining_mean is None:  # a score is unknown
            return ""
        if not self.had_difference:
            return _("equal scores, before and after")
        return "" if self.has_difference else _("the remaining scores are equal")

    @property
    def text(self) -> str:
        return _(EFFECTS[self.action]).format(count=self.selected, total=self.total)


@dataclass(frozen=True, slots=True)
class EntryEffect:
    """What happens at one target step: totals, and the first `prompts`. `left_off` is the number of the others.

    `action` is one of mask, drop, regenerate. `regenerates_step`: a selected sample makes the run generate the step.
    `without_difference` counts the listed prompts whose scores differed and do not any more.
    """

    action: str
    samples: int
    prompt_count: int
    rules: dict[str, int]
    prompts: tuple[PromptEffect, ...]
    without_difference: int
    version: int | None = None
    is_complete: bool = True
    regenerates_step: bool = False

    @property
    def left_off(self) -> int:
        return self.prompt_count - len(self.prompts)

    @property
    def text(self) -> str:
        """`masked: 3 samples of 2 prompts`."""
        samples = ngettext("{count} sample", "{count} samples", self.samples).format(count=f"{self.samples:,}")
        prompts = ngettext("{count} prompt", "{count} prompts", self.prompt_count).format(
            count=f"{self.prompt_count:,}"
        )
        texts = {
            "mask": _("masked: {samples} of {prompts}"),
            "drop": _("dropped: {prompts} with {samples} selected"),
            "regenerate": _("generated again: {prompts} with {samples} selected"),
        }
        texts["step"] = _("the step is generated again: {samples} of {prompts} selected")
        text = texts["step" if self.regenerates_step else self.action]
        return text.format(samples=samples, prompts=prompts)


def describe_effects(entries: Sequence[EntryCompatibility], limit: int = MAX_PROMPTS) -> dict[int, EntryEffect]:
    """Returns what happens to the selected samples, by target step; entries that keep all samples have none."""
    shown = [entry for entry in entries if entry.action != "keep" and entry.excluded.samples]
    effects: dict[int, EntryEffect] = {}
    by_pin: dict[int, EntryEffect] = {}
    for entry in shown:
        if entry.entry.pin_id not in by_pin:
            left = max(0, limit - sum(len(effect.prompts) for effect in by_pin.values()))
            by_pin[entry.entry.pin_id] = describe_entry(entry, left)
        effects[entry.entry.target_step] = by_pin[entry.entry.pin_id]
    return effects


def describe_entry(entry: EntryCompatibility, limit: int) -> EntryEffect:
    excluded = entry.excluded
    selected = load_selected_rows(excluded.samples)
    counts: Counter[tuple[int, str, str]] = Counter((row.step_id, row.group, row.prompt_key) for row in selected)
    keys = sorted(counts, key=lambda key: (key[0], natural_key(key[1]), key[2]))[:limit]
    prompts = [
        build_prompt_effect(key, rows, excluded.samples, entry.action)
        for key, rows in load_prompt_rows(keys).items()
        if rows  # none if a newer version of the step has other groups
    ]
    rules = Counter(rule for keys_of_sample in excluded.samples.values() for rule in keys_of_sample)
    return EntryEffect(
        entry.action,
        excluded.selected_count,
        len(counts),
        dict(rules.most_common()),
        tuple(prompts),
        sum(prompt.has_lost_difference for prompt in prompts),
        excluded.version,
        excluded.is_complete,
        regenerates_step(entry.artifacts, entry.action),
    )


PromptKey = tuple[int, str, str]  # step id, group, prompt key


def natural_key(group: str) -> tuple[int, str]:
    return (int(group) if group.isascii() and group.isdigit() and len(group) < 16 else 0, group)


def load_selected_rows(samples: Iterable[str]) -> list[Sample]:
    columns = ("pk", "step_id", "group", "prompt_key")
    return [row for ids in chunk(samples) for row in Sample.objects.filter(pk__in=ids).only(*columns)]


def load_prompt_rows(keys: Sequence[PromptKey]) -> dict[PromptKey, list[Sample]]:
    """Returns the samples of each prompt, the last one of each trajectory, in the order of the step."""
    rows: dict[PromptKey, list[Sample]] = {key: [] for key in keys}
    steps, prompts = {key[0] for key in keys}, {key[2] for key in keys}
    found = Sample.objects.visible().filter(step__in=steps, prompt_key__in=prompts).select_related("step")
    for row in found.order_by("index", "dump", "ordinal"):
        if (own := rows.get((row.step_id, row.group, row.prompt_key))) is not None:
            own.append(row)
    return rows


def build_prompt_effect(
    key: PromptKey, rows: Sequence[Sample], selected: Mapping[str, tuple[str, ...]], action: str
) -> PromptEffect:
    """`selected`: the rules by sample id."""
    samples = [SampleEffect(row.pk, row.score, row.correct, selected.get(row.pk, ())) for row in rows]
    count = sum(bool(sample.rules) for sample in samples)
    before = [row.score for row in rows if row.final]
    after = [row.score for row in rows if row.final and row.pk not in selected] if action == "mask" else []
    return PromptEffect(
        rows[0].step,
        key[1],
        key[2],
        count,
        len(samples),
        tuple(samples[:MAX_PROMPT_SAMPLES]),
        tuple(dict.fromkeys(rule for sample in samples for rule in sample.rules)),
        compute_mean(before),
        compute_mean(after),
        len(set(before) - {None}) > 1,
        len(set(after) - {None}) > 1,
        len(after),
        action,
    )


def compute_mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None
