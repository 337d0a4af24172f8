"""What an export contains: its layout, its file format, and how samples are chosen and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.lib import parse_boolean, parse_choice, parse_integer
from rollouts.models import Project
from rollouts.reward_check import RewardQuestion, parse_reward_question

LAYOUTS: Final = {
    "samples": N_("one row per sample, with a column for each question"),
    "labels": N_("one row per label"),
    "sft": N_("prompts and responses for supervised fine-tuning"),
    "preferences": N_("a better and a worse response to a prompt, for DPO and reward models"),
    "kto": N_("responses that are good or bad, for KTO"),
    "reward": N_("a better and a worse response with the margin of their scores, for reward models"),
}
TABLES: Final = ("samples", "labels")  # all samples; the other layouts are training data
PAIRED: Final = ("preferences", "reward")
FORMATS: Final = ("jsonl", "parquet", "csv")
SIGNALS: Final = ("score", "label", "rank")
PAIRS: Final = ("best-worst", "all")
FORMS: Final = ("auto", "text", "messages")
DEFAULT_THRESHOLD: Final = 0.5
MAX_PER_PROMPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """`signal` says which of two responses is better: the `score`, the answers to a question (`asked`) of a `label`, or
    the `rank` that people gave. A pair needs a difference of scores above `min_margin`. With KTO a response is good
    from `threshold` on. `corrections`: a response that a person corrected is replaced by the correction, which in pairs
    is better than the response. `form`: conversations as messages or as text; `auto` is that of the first sample.
    `ids`: labels also have the ids of this server, for programs that join them with samples."""

    layout: str = "samples"
    format: str = "jsonl"
    signal: str = "score"
    asked: RewardQuestion | None = None
    threshold: float = DEFAULT_THRESHOLD
    min_margin: float = 0.0
    pairs: str = "best-worst"
    max_per_prompt: int | None = None
    drop_near_duplicates: bool = False
    corrections: bool = True
    form: str = "auto"
    ids: bool = False

    @property
    def is_training_data(self) -> bool:
        return self.layout not in TABLES

    @property
    def needs_margin(self) -> bool:
        """Whether a pair is left out unless its scores differ by more than `min_margin`. Not if people decide, no
        margin is asked for, and the layout has no column for it."""
        return self.signal == "score" or self.layout == "reward" or self.min_margin != 0


def parse_options(project: Project, values: Mapping[str, str]) -> ExportOptions:
    """Reads the parameters of a request; those that are missing have their defaults. Raises InvalidInputError."""
    layout = parse_choice(values.get("layout"), "layout", tuple(LAYOUTS), default="samples")
    signal = parse_choice(values.get("signal"), "signal", SIGNALS, default="score")
    if signal == "rank" and layout == "kto":
        raise InvalidInputError(
            _("A rank says which response is better, not which is good. Use score or label."), "signal"
        )
    asked = None
    if signal == "label" and layout not in TABLES:
        good = [value.strip() for value in values.get("good", "").split(",") if value.strip()]
        asked = parse_reward_question(project, values.get("question", ""), good)
    return ExportOptions(
        layout=layout,
        format=parse_choice(values.get("format"), "format", FORMATS, default="jsonl"),
        signal=signal,
        asked=asked,
        threshold=parse_number(values.get("threshold", ""), "threshold", DEFAULT_THRESHOLD),
        min_margin=parse_number(values.get("min_margin", ""), "min_margin", 0.0),
        pairs=parse_choice(values.get("pairs"), "pairs", PAIRS, default="best-worst"),
        max_per_prompt=parse_integer(
            values.get("max_per_prompt", ""), "max_per_prompt", minimum=1, maximum=MAX_PER_PROMPT
        ),
        drop_near_duplicates=parse_boolean(values.get("drop_near_duplicates", "no"), "drop_near_duplicates"),
        corrections=parse_boolean(values.get("corrections", "yes"), "corrections"),
        ids=parse_boolean(values.get("ids", "no"), "ids"),
        form=parse_choice(values.get("form"), "form", FORMS, default="auto"),
    )


def parse_number(text: str, field: str, default: float) -> float:
    if not text.strip():
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e300:
        raise InvalidInputError(_("`{field}` must be a number.").format(field=field), field)
    return value
