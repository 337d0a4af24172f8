"""The tokens of a response, one window at a time: their values, and a chart of one value over all tokens.

Log-probs in nats as sampled; `mismatch` is the sampled log-prob minus the trainer's for the same token.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import parse_integer_param, render_text
from rollouts.indexing import decode_tokens
from rollouts.models import Run

WINDOW_TOKENS = 2048
MAX_TOKEN_BARS = 240
MIN_BLOCK_TOKENS = 128
UNLIKELY = math.log(0.1)  # nats; the key `.` goes to the next token below it
ENTROPY_KEYS = ("entropy", "entropys", "entropies", "token_entropy")
TRAINED_KEYS = ("old_logprobs", "old_log_probs", "train_logprobs", "actor_logprobs", "training_logprobs")

TokenValues = np.ndarray[Any, Any]  # a float per token, NaN if nothing was recorded

# {metric: limits of the four background levels}, compared as absolute values.
LOGPROB_LEVELS = (-0.693, -2.303, -4.605, -6.908)  # p < 0.5, 0.1, 0.01, 0.001
LEVELS = {
    "logprob": LOGPROB_LEVELS,
    "reference": LOGPROB_LEVELS,
    "trained": LOGPROB_LEVELS,
    "entropy": (0.5, 1.0, 2.0, 3.0),
    "mismatch": (0.05, 0.2, 0.5, 1.0),
}
METRIC_NAMES = {
    "logprob": N_("log-prob"), "reference": N_("reference log-prob"), "trained": N_("trainer log-prob"),
    "entropy": N_("entropy"), "advantage": N_("advantage"), "mask": N_("mask"), "mismatch": N_("rollout − train"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenBar:
    """The extreme value of several tokens, in percent of a square of 100, measured from its top left corner."""

    x: float
    y: float
    height: float
    level: str

    def render(self, width: float) -> str:
        return f'<rect class="{self.level or "h0"}" x="{self.x}" y="{self.y}" height="{self.height}" width="{width}"/>'


@dataclass(slots=True)
class TokenWindow:
    """Tokens `start` to `end` (exclusive) of `count`; `here` is the token that the URL names, `by` the metric that
    colours the tokens, `low` and `high` its range."""

    start: int
    end: int
    count: int
    here: int | None
    by: str
    columns: dict[str, TokenValues]
    ids: Sequence[int]
    texts: list[str] | None
    prompt: int = 0
    bars: list[TokenBar] = field(default_factory=list)
    low: float | None = None
    high: float | None = None

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(name, format_metric_name(name)) for name in self.columns]

    @property
    def name(self) -> str:
        return format_metric_name(self.by)

    @property
    def logprob_name(self) -> str:
        """For the page's script, which adds the probability to values of this name."""
        return format_metric_name("logprob")

    @property
    def last(self) -> int:
        return self.end - 1

    @property
    def chart(self) -> SafeString:
        """The bars, with gaps. A template takes ten times as long."""
        width = round(90 / max(1, len(self.bars)), 3)
        return mark_safe("".join(bar.render(width) for bar in self.bars))

    @property
    def before(self) -> int | None:
        return self.start - WINDOW_TOKENS if self.start else None

    @property
    def after(self) -> int | None:
        return self.end if self.end < self.count else None

    @property
    def unlikely_after(self) -> int | None:
        """The first unlikely token after this window."""
        values = self.columns.get("logprob")
        if values is None:
            return None
        unlikely = np.flatnonzero(values[self.end :] < UNLIKELY)
        return self.end + int(unlikely[0]) if unlikely.size else None

    @property
    def share(self) -> tuple[float, float]:
        """(x, width) of the window in the chart, in percent."""
        return round(100 * self.start / self.count, 2), round(100 * (self.end - self.start) / self.count, 2)


def build_token_window(body: Any, at: str, by: str, run: Run) -> TokenWindow:
    """The window with token `at`, coloured by the metric `by`; the first token or metric if a parameter is invalid."""
    count = len(body.response_ids)
    number = parse_integer_param(at)
    here = None if number is None else min(number, count - 1)
    start = (here or 0) // WINDOW_TOKENS * WINDOW_TOKENS
    end = min(start + WINDOW_TOKENS, count)
    columns = collect_token_values(body, count)
    by = by if by in columns else next(iter(columns), "")
    ids = body.response_ids[start:end]
    texts = decode_tokens(run, ids)
    window = TokenWindow(start, end, count, here, by, columns, ids, texts, len(body.prompt_ids or ()))
    values = columns.get(by)
    if values is not None and not np.isnan(values).all():
        window.low, window.high = float(np.nanmin(values)), float(np.nanmax(values))
        window.bars = build_token_bars(values, by, window.low, window.high)
    return window


def collect_token_values(body: Any, count: int) -> dict[str, TokenValues]:
    """{metric: a value per token} of all values that were recorded per token; also those under a trainer's own keys."""
    parsed = {name: parse_token_values(values, count) for name, values in body.extras.items()}
    extras = {name: values for name, values in parsed.items() if values is not None}
    trained = next((extras.pop(key) for key in TRAINED_KEYS if key in extras), None)
    sampled = parse_token_values(fit_to_length(body.logprobs, count), count)
    metrics = {
        "logprob": sampled,
        "entropy": next((extras.pop(key) for key in ENTROPY_KEYS if key in extras), None),
        "advantage": parse_token_values(fit_to_length(body.advantages, count), count),
        "mismatch": None if sampled is None or trained is None else sampled - trained,
        "reference": parse_token_values(fit_to_length(body.ref_logprobs, count), count),
        "trained": trained,
        "mask": parse_token_values(fit_to_length(body.response_mask, count), count),
        **extras,
    }
    return {name: values for name, values in metrics.items() if values is not None}


def fit_to_length(values: list[Any] | None, count: int) -> list[Any] | None:
    """As many values as there are tokens; missing values at the end were not recorded."""
    return [*values[:count], *[None] * (count - len(values))] if values else None


def parse_token_values(values: Any, count: int) -> TokenValues | None:
    """A list of `count` numbers or nulls as an array; None for anything else. Values that are not finite become NaN."""
    if not isinstance(values, list) or len(values) != count or not count:
        return None
    if not {*map(type, values)} <= {int, float, bool, type(None)}:
        return None
    try:
        array = np.array(values, np.float64)
    except OverflowError:
        return None
    return np.where(np.isfinite(array), array, np.nan)


def build_token_bars(values: TokenValues, by: str, low: float, high: float) -> list[TokenBar]:
    """At most `MAX_TOKEN_BARS` bars of equal width, each with the value of its tokens that is farthest from 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    size = max(1, -(-len(values) // MAX_TOKEN_BARS))
    parts = np.pad(np.nan_to_num(values), (0, -len(values) % size)).reshape(-1, size)
    extremes = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1)[:, 0]
    x = np.round(100 * np.arange(0, len(values), size) / len(values), 3).tolist()
    y = np.round(100 * (high - np.maximum(extremes, 0.0)) / span, 2).tolist()
    heights = np.round(100 * np.abs(extremes) / span, 2).tolist()
    return [TokenBar(*bar) for bar in zip(x, y, heights, choose_level_classes(by, extremes), strict=True)]


def choose_level_classes(by: str, values: TokenValues) -> list[str]:
    """The CSS class of each token's background: h1 to h4; p1 to p3 above 0 and n1 to n3 below; m0 for a masked token;
    empty for none."""
    if by == "mask":
        return pick_classes(("", "m0"), values == 0)
    if by in LEVELS:
        return pick_classes(("", "h1", "h2", "h3", "h4"), (np.abs(values)[:, None] >= np.abs(LEVELS[by])).sum(1))
    strength = (np.abs(values)[:, None] > (0.0, 0.5, 1.5)).sum(1)
    return pick_classes(("", "p1", "p2", "p3", "n3", "n2", "n1"), np.where(values > 0, strength, -strength))


def pick_classes(names: tuple[str, ...], indices: TokenValues) -> list[str]:
    classes: list[str] = np.array(names)[indices.astype(int)].tolist()
    return classes


def render_token_spans(window: TokenWindow) -> Iterator[str]:
    """The window's tokens as escaped HTML; the n-th <b> is the n-th token. They are in blocks of complete lines, since
    browsers lay out only the visible blocks; ids without text have no lines."""
    inside = slice(window.start, window.end)
    levels = choose_level_classes(window.by, window.columns[window.by][inside]) if window.columns else repeat("")
    low = find_unlikely_tokens(window)
    tokens = [render_text(text).replace("\n", "⏎\n") for text in window.texts] if window.texts else map(str, window.ids)
    block: list[str] = []
    for number, (token, level, unlikely) in enumerate(zip(tokens, levels, low, strict=False), window.start):
        block.append(render_token_span(token, level, unlikely, number == window.here))
        if len(block) >= MIN_BLOCK_TOKENS and (window.texts is None or token.endswith("\n")):
            yield f'<span class="block">{"".join(block)}</span>'
            block.clear()
    yield f'<span class="block">{"".join(block)}</span>'


def render_token_span(token: str, level: str, low: bool, here: bool) -> str:
    classes = " ".join([level, "low"] if low else [level]).strip()
    attributes = (f' class="{classes}"' if classes else "") + (' aria-current="true"' if here else "")
    return f"<b{attributes}>{token}</b>"


def find_unlikely_tokens(window: TokenWindow) -> list[bool]:
    """For each token of the window, whether it is one of those that the key `.` goes to."""
    logprobs = window.columns.get("logprob")
    if logprobs is None:
        return [False] * len(window.ids)
    unlikely: list[bool] = (logprobs[window.start : window.end] < UNLIKELY).tolist()
    return unlikely


def serialize_token_values(window: TokenWindow) -> str:
    """The window's values as JSON for the page's script: {metric: a value or null per token}."""
    values: dict[str, Any] = {"id": window.ids}
    for name, column in window.columns.items():
        part = column[window.start : window.end].tolist()
        values[format_metric_name(name)] = [None if math.isnan(value) else round(value, 4) for value in part]
    return json.dumps(values, separators=(",", ":"))


def format_metric_name(name: str) -> str:
    """The name of a metric; of a trainer's own key its printable characters."""
    if name in METRIC_NAMES:
        return _(METRIC_NAMES[name])
    return "".join(character if character.isprintable() else "\ufffd" for character in name[:40])


def format_token_value(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0f}" if value == round(value) else f"{value:.4f}"


def build_token_rows(window: TokenWindow) -> list[dict[str, Any]]:
    columns = [values[window.start : window.end].tolist() for values in window.columns.values()]
    low = find_unlikely_tokens(window)
    return [
        {
            "at": window.start + position,
            "id": token,
            "text": window.texts[position] if window.texts else "",
            "values": [format_token_value(values[position]) for values in columns],
            "low": low[position],
        }
        for position, token in enumerate(window.ids)
    ]
