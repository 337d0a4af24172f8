"""What the plan does with selected samples: the choices, and the effect on each prompt of the pinned steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import GroupLinks, StepUrlState, format_number, format_signed_number
from dashboard.pages.pins.plan_draft import ACTION_WORDS, PlanDraft
from rollouts import replay
from rollouts.guidance import load_guidance
from rollouts.models import Pin, Project

MAX_RULE_NAMES = 3
MAX_STEPS = 60
MAX_NAME_CHARS = 14
SQUARE, SQUARE_GAP = 12, 2
SOURCE_WORDS = {"flags": N_("samples flagged bad"), "rules": N_("samples that the guidance rules select")}
MEANINGS = {
    "keep": N_("All samples are replayed as they are."),
    "mask": N_("Masked samples stay in the batch and in the rewards of their group; nothing is learnt from them."),
    "drop": N_("No response to their prompts is trained on. Trainers that need a full batch refuse a smaller one."),
    "regenerate": N_(
        "A step with a selected sample is generated again; where each prompt has its own files, the prompt."
    ),
    "exclude": N_("What the trainer of the pins does by default: {action}."),
}


@dataclass(frozen=True, slots=True)
class ActionChoice:
    """`is_supported`: by the trainers of all pins of the plan."""

    key: str
    name: str
    is_supported: bool


@dataclass(frozen=True, slots=True)
class SelectedPromptRow:
    """A prompt of the table: `effect` with the step that replays it, and the link to its responses."""

    target: int
    effect: replay.PromptEffect
    link: str

    @property
    def name(self) -> str:
        name = self.effect.group or self.effect.prompt_key
        return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"

    @property
    def rules(self) -> str:
        names = list(map(name_rule, self.effect.rules))
        return ", ".join(names[:MAX_RULE_NAMES]) + (" …" if len(names) > MAX_RULE_NAMES else "")

    @property
    def means(self) -> str:
        """`0.75 → 0.67`; the second one only if samples are masked."""
        before, after = self.effect.mean, self.effect.remaining_mean
        return format_number(before) + ("" if after is None else f" → {format_number(after)}")

    @property
    def change(self) -> str:
        return "" if self.effect.change is None else format_signed_number(self.effect.change)

    @property
    def drawing(self) -> SafeString:
        """A square for each response, crossed if it is selected."""
        samples, size = self.effect.samples, SQUARE + SQUARE_GAP
        squares = format_html_join("", "{}", ((draw_square(at * size, row),) for at, row in enumerate(samples)))
        return format_html(
            '<svg class="prompt-squares" width="{}" height="{}" role="img" aria-label="{}">{}</svg>',
            len(samples) * size, SQUARE, self.effect.text, squares,
        )  # fmt: skip


def draw_square(x: int, sample: replay.SampleEffect) -> SafeString:
    """Green, orange or grey, as in other lists of responses."""
    state = {True: "right", False: "wrong", None: "unknown"}[sample.correct]
    square = format_html('<rect class="{}" x="{}" width="{}" height="{}"/>', state, x, SQUARE, SQUARE)
    if not sample.rules:
        return square
    return square + format_html('<path class="cross" d="M{} 0l{} {}m0 -{}l-{} {}"/>', x, *[SQUARE] * 5)


def name_rule(key: str) -> str:
    return _("flagged bad") if key == replay.FLAGGED_RULE else key


def build_selection_context(
    project: Project, draft: PlanDraft, pins: Sequence[int], entries: Sequence[replay.EntryCompatibility]
) -> dict[str, Any]:
    """The context of `pins/selection.html`. `pins`: the ids of the draft's pins."""
    choices = list_choices(draft, replay.list_supported_actions(pins))
    effects = replay.describe_effects(entries)
    shown = {entry.entry.target_step: entry.entry.pin for entry in entries}
    action = replay.resolve_action(draft.on_selected, pins)
    steps = [(step, effect, describe_rules(effect)) for step, effect in effects.items()]
    return {
        "selection": {
            "choices": choices,
            "unsupported": [choice.name for choice in choices if not choice.is_supported],
            "sources": [(key, _(name)) for key, name in SOURCE_WORDS.items()],
            "trainer": replay.find_loading_trainer(pins),
            "meaning": _(MEANINGS[draft.on_selected]).format(action=_(ACTION_WORDS[action])),
            "version": load_guidance(project).number if draft.selected_by == "rules" else None,
            "rows": build_prompt_rows(effects, shown),
            "steps": steps[:MAX_STEPS],
            "left_off_steps": len(steps[MAX_STEPS:]),
            "left_off": sum(effect.left_off for effect in effects.values()),
            "is_complete": all(entry.excluded.is_complete for entry in entries),
        }
    }


def describe_rules(effect: replay.EntryEffect) -> str:
    """`hack 3, again 1`."""
    return ", ".join(f"{name_rule(key)} {count:,}" for key, count in effect.rules.items())


def list_choices(draft: PlanDraft, supported: Sequence[str]) -> list[ActionChoice]:
    """`exclude` is shown only in plans that have it: saved through the API, or before there was a choice."""
    keys = [key for key in ACTION_WORDS if key != "exclude" or draft.on_selected == "exclude"]
    return [ActionChoice(key, _(ACTION_WORDS[key]), key == "exclude" or key in supported) for key in keys]


def build_prompt_rows(effects: Mapping[int, replay.EntryEffect], pins: Mapping[int, Pin]) -> list[SelectedPromptRow]:
    """A pin that is replayed at several steps is listed at the first one."""
    links: dict[int, GroupLinks] = {}
    rows: list[SelectedPromptRow] = []
    listed: set[int] = set()
    for target, effect in effects.items():
        pin = pins[target]
        if pin.pk in listed:
            continue
        listed.add(pin.pk)
        run_links = links.setdefault(pin.run_id, GroupLinks(pin.run, StepUrlState()))
        for prompt in effect.prompts:
            link = run_links.build_link(prompt.step, prompt.group) or reverse("sample", args=[prompt.samples[0].id])
            rows.append(SelectedPromptRow(target, prompt, link))
    return rows
