"""Tokens of a response, a window at a time: what was recorded of each, and one figure of all of them as a chart above.

Log-probs in nats as sampled; `mismatch` is what the trainer computed for the same token less that.
"""

from __future__ import annotations

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
MIN_BLOCK_TOKENS = 128  # tokens at least
UNLIKELY = math.log(0.1)  # nats; what `.` stops at
ENTROPY = ("entropy", "entropys", "entropies", "token_entropy")
TRAINED = ("old_logprobs", "old_log_probs", "train_logprobs", "actor_logprobs", "training_logprobs")

TokenValues = np.ndarray[Any, Any]  # a float per token, NaN where nothing was recorded

# Figure, what it is called, and the levels at which its background gets stronger; those of a signed one on both sides.
LEVELS = {
    "logprob": (-0.693, -2.303, -4.605, -6.908),  # p under 0.5, 0.1, 0.01, 0.001
    "reference": (-0.693, -2.303, -4.605, -6.908),
    "trained": (-0.693, -2.303, -4.605, -6.908),
    "entropy": (0.5, 1.0, 2.0, 3.0),
    "mismatch": (0.05, 0.2, 0.5, 1.0),
}
NAMES = {
    "logprob": N_("log-prob"), "reference": N_("reference log-prob"), "trained": N_("trainer log-prob"),
    "entropy": N_("entropy"), "advantage": N_("advantage"), "mask": N_("mask"), "mismatch": N_("rollout − train"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenBar:
    """A stretch of tokens in the chart: its extreme, in per cent from the top of a box of 100."""

    x: float
    y: float
    height: float
    kind: str

    def drawn(self, wide: float) -> str:
        return f'<rect class="{self.kind or "h0"}" x="{self.x}" y="{self.y}" height="{self.height}" width="{wide}"/>'


@dataclass(slots=True)
class TokenWindow:
    """Tokens `start` to `end` (not included) of `count`; `here` is the one that the address names, if any."""

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
        return [(name, format_value_name(name)) for name in self.columns]

    @property
    def name(self) -> str:
        return format_value_name(self.by)

    @property
    def logprob(self) -> str:
        """What a token's log-probability is called, of which the page's script says the probability."""
        return format_value_name("logprob")

    @property
    def last(self) -> int:
        return self.end - 1

    @property
    def chart(self) -> SafeString:
        """The bars, with gaps. A template takes ten times as long."""
        wide = round(90 / max(1, len(self.bars)), 3)
        return mark_safe("".join(one.drawn(wide) for one in self.bars))

    @property
    def before(self) -> int | None:
        return self.start - WINDOW_TOKENS if self.start else None

    @property
    def after(self) -> int | None:
        return self.end if self.end < self.count else None

    @property
    def unlikely_after(self) -> int | None:
        """The next unlikely token behind this window."""
        values = self.columns.get("logprob")
        if values is None:
            return None
        places = np.flatnonzero(values[self.end :] < UNLIKELY)
        return self.end + int(places[0]) if places.size else None

    @property
    def share(self) -> tuple[float, float]:
        """Where the window lies in the chart: (x, width), in per cent."""
        return round(100 * self.start / self.count, 2), round(100 * (self.end - self.start) / self.count, 2)


def build_token_window(body: Any, at: str, by: str, run: Run) -> TokenWindow:
    """The window that holds token `at`, coloured by the figure `by`; what is no token or figure is the first."""
    count = len(body.response_ids)
    here = parse_integer_param(at)
    here = None if here is None else min(here, count - 1)
    start = (here or 0) // WINDOW_TOKENS * WINDOW_TOKENS
    end = min(start + WINDOW_TOKENS, count)
    columns = collect_token_values(body, count)
    by = by if by in columns else next(iter(columns), "")
    ids = body.response_ids[start:end]
    texts = decode_tokens(run, ids)
    made = TokenWindow(start, end, count, here, by, columns, ids, texts, len(body.prompt_ids or ()))
    values = columns.get(by)
    if values is not None and not np.isnan(values).all():
        made.low, made.high = float(np.nanmin(values)), float(np.nanmax(values))
        made.bars = build_token_bars(values, by, made.low, made.high)
    return made


def collect_token_values(body: Any, count: int) -> dict[str, TokenValues]:
    """{figure: a value per token} of all that was recorded of each token, whatever key a trainer logged it under."""
    lists = {
        name: values for name, given in body.extras.items() if (values := parse_token_values(given, count)) is not None
    }
    trained = next((lists.pop(name) for name in TRAINED if name in lists), None)
    sampled = parse_token_values(fit_to_length(body.logprobs, count), count)
    found = {
        "logprob": sampled,
        "entropy": next((lists.pop(name) for name in ENTROPY if name in lists), None),
        "advantage": parse_token_values(fit_to_length(body.advantages, count), count),
        "mismatch": None if sampled is None or trained is None else sampled - trained,
        "reference": parse_token_values(fit_to_length(body.ref_logprobs, count), count),
        "trained": trained,
        "mask": parse_token_values(fit_to_length(body.response_mask, count), count),
        **lists,
    }
    return {name: values for name, values in found.items() if values is not None}


def fit_to_length(values: list[Any] | None, count: int) -> list[Any] | None:
    """As many values as there are tokens; what is lacking at the end was not recorded."""
    return [*values[:count], *[None] * (count - len(values))] if values else None


def parse_token_values(values: Any, count: int) -> TokenValues | None:
    """A list of `count` numbers or nulls as an array; None for anything else. What is not finite is not recorded."""
    if not isinstance(values, list) or len(values) != count or not count:
        return None
    if not {*map(type, values)} <= {int, float, bool, type(None)}:
        return None
    try:
        made = np.array(values, np.float64)
    except OverflowError:
        return None
    return np.where(np.isfinite(made), made, np.nan)


def build_token_bars(values: TokenValues, by: str, low: float, high: float) -> list[TokenBar]:
    """At most `BARS` of equal width, each as far from nought as the farthest of its tokens."""
    low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    size = max(1, -(-len(values) // MAX_TOKEN_BARS))
    parts = np.pad(np.nan_to_num(values), (0, -len(values) % size)).reshape(-1, size)
    far = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1)[:, 0]
    places = np.arange(0, len(values), size)
    figures = (100 * places / len(values), 100 * (high - np.maximum(far, 0.0)) / span, 100 * np.abs(far) / span)
    drawn = (np.round(one, digits).tolist() for one, digits in zip(figures, (3, 2, 2), strict=True))
    return [TokenBar(*one) for one in zip(*drawn, choose_level_classes(by, far), strict=True)]


def choose_level_classes(by: str, values: TokenValues) -> list[str]:
    """The class of each token's background: h1 to h4, p1 to p3 above nought, n1 to n3 below it, or m0 for one that is
    masked; empty for nothing to say."""
    if by == "mask":
        return pick_classes(("", "m0"), values == 0)
    if by in LEVELS:
        return pick_classes(("", "h1", "h2", "h3", "h4"), (np.abs(values)[:, None] >= np.abs(LEVELS[by])).sum(1))
    strength = (np.abs(values)[:, None] > (0.0, 0.5, 1.5)).sum(1)
    return pick_classes(("", "p1", "p2", "p3", "n3", "n2", "n1"), np.where(values > 0, strength, -strength))


def pick_classes(names: tuple[str, ...], places: TokenValues) -> list[str]:
    found: list[str] = np.array(names)[places.astype(int)].tolist()
    return found


def render_token_spans(window: TokenWindow) -> Iterator[str]:
    """The window's tokens as HTML, escaped: each a <b>, so that the n-th of them is the n-th token. They stand in
    blocks of whole lines, of which the browser lays out those in sight; mere ids have no lines."""
    inside = slice(window.start, window.end)
    kinds = choose_level_classes(window.by, window.columns[window.by][inside]) if window.columns else repeat("")
    logprobs = window.columns.get("logprob")
    low = (logprobs[inside] < UNLIKELY).tolist() if logprobs is not None else repeat(False)
    shown = [render_text(one).replace("\n", "⏎\n") for one in window.texts] if window.texts else map(str, window.ids)
    made: list[str] = []
    for place, (token, kind, unlikely) in enumerate(zip(shown, kinds, low, strict=False), window.start):
        made.append(render_token_span(token, kind, unlikely, place == window.here))
        if len(made) >= MIN_BLOCK_TOKENS and (window.texts is None or token.endswith("\n")):
            yield f'<span class="block">{"".join(made)}</span>'
            made.clear()
    yield f'<span class="block">{"".join(made)}</span>'


def render_token_span(shown: str, kind: str, low: bool, here: bool) -> str:
    names = " ".join([kind, "low"] if low else [kind]).strip()
    marks = [f' class="{names}"'] if names else []
    marks += [' aria-current="true"'] if here else []
    return f"<b{''.join(marks)}>{shown}</b>"


def serialize_token_values(window: TokenWindow) -> str:
    """What was recorded of the window's tokens, as JSON for the page's script: {figure: a value or null per token}."""
    columns = {format_value_name(name): values[window.start : window.end] for name, values in window.columns.items()}
    rounded = {
        name: [None if math.isnan(one) else round(one, 4) for one in part.tolist()] for name, part in columns.items()
    }
    return json.dumps({"id": window.ids, **rounded}, separators=(",", ":"))


def format_value_name(name: str) -> str:
    """A figure's name; of one that a trainer chose, its printable characters."""
    if name in NAMES:
        return _(NAMES[name])
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:40])


def format_token_value(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0f}" if value == round(value) else f"{value:.4f}"


def build_token_rows(window: TokenWindow) -> list[dict[str, Any]]:
    """The same as a table."""
    columns = [values[window.start : window.end].tolist() for values in window.columns.values()]
    return [
        {
            "at": window.start + place,
            "id": token,
            "text": window.texts[place] if window.texts else "",
            "values": [format_token_value(values[place]) for values in columns],
        }
        for place, token in enumerate(window.ids)
    ]
