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

from dashboard.pages.common import formatting
from dashboard.pages.common.url_state import whole
from rollouts.indexing import detokenize
from rollouts.models import Run

WINDOW = 2048
BARS = 240
BLOCK = 128  # tokens at least
UNLIKELY = math.log(0.1)  # nats; what `.` stops at
ENTROPY = ("entropy", "entropys", "entropies", "token_entropy")
TRAINED = ("old_logprobs", "old_log_probs", "train_logprobs", "actor_logprobs", "training_logprobs")

Values = np.ndarray[Any, Any]  # a float per token, NaN where nothing was recorded

# Figure, what it is called, and the levels at which its background gets stronger; those of a signed one on both sides.
LEVELS = {
    "logprob": (-0.693, -2.303, -4.605, -6.908),  # p under 0.5, 0.1, 0.01, 0.001
    "reference": (-0.693, -2.303, -4.605, -6.908),
    "trained": (-0.693, -2.303, -4.605, -6.908),
    "entropy": (0.5, 1.0, 2.0, 3.0),
    "mismatch": (0.05, 0.2, 0.5, 1.0),
}
NAMES = {
    "logprob": N_("log-prob"), "reference": N_("reference log-prob"), "trained": N_("trainer's log-prob"),
    "entropy": N_("entropy"), "advantage": N_("advantage"), "mask": N_("mask"), "mismatch": N_("rollout − train"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of tokens in the chart: its extreme, in per cent from the top of a box of 100."""

    x: float
    y: float
    height: float
    kind: str

    def drawn(self, wide: float) -> str:
        return f'<rect class="{self.kind or "h0"}" x="{self.x}" y="{self.y}" height="{self.height}" width="{wide}"/>'


@dataclass(slots=True)
class Window:
    """Tokens `start` to `end` (not included) of `count`; `here` is the one that the address names, if any."""

    start: int
    end: int
    count: int
    here: int | None
    by: str
    columns: dict[str, Values]
    ids: Sequence[int]
    texts: list[str] | None
    prompt: int = 0
    bars: list[Bar] = field(default_factory=list)
    low: float | None = None
    high: float | None = None

    @property
    def names(self) -> list[tuple[str, str]]:
        return [(name, called(name)) for name in self.columns]

    @property
    def name(self) -> str:
        return called(self.by)

    @property
    def logprob(self) -> str:
        """What a token's log-probability is called, of which the page's script says the probability."""
        return called("logprob")

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
        return self.start - WINDOW if self.start else None

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


def of(body: Any, at: str, by: str, run: Run) -> Window:
    """The window that holds token `at`, coloured by the figure `by`; what is no token or figure is the first."""
    count = len(body.response_ids)
    here = whole(at)
    here = None if here is None else min(here, count - 1)
    start = (here or 0) // WINDOW * WINDOW
    end = min(start + WINDOW, count)
    columns = recorded(body, count)
    by = by if by in columns else next(iter(columns), "")
    ids = body.response_ids[start:end]
    texts = detokenize.pieces_of(run, ids)
    made = Window(start, end, count, here, by, columns, ids, texts, len(body.prompt_ids or ()))
    values = columns.get(by)
    if values is not None and not np.isnan(values).all():
        made.low, made.high = float(np.nanmin(values)), float(np.nanmax(values))
        made.bars = bars(values, by, made.low, made.high)
    return made


def recorded(body: Any, count: int) -> dict[str, Values]:
    """{figure: a value per token} of all that was recorded of each token, whatever key a trainer logged it under."""
    lists = {name: values for name, given in body.extras.items() if (values := numbers(given, count)) is not None}
    trained = next((lists.pop(name) for name in TRAINED if name in lists), None)
    sampled = numbers(fitted(body.logprobs, count), count)
    found = {
        "logprob": sampled,
        "entropy": next((lists.pop(name) for name in ENTROPY if name in lists), None),
        "advantage": numbers(fitted(body.advantages, count), count),
        "mismatch": None if sampled is None or trained is None else sampled - trained,
        "reference": numbers(fitted(body.ref_logprobs, count), count),
        "trained": trained,
        "mask": numbers(fitted(body.response_mask, count), count),
        **lists,
    }
    return {name: values for name, values in found.items() if values is not None}


def fitted(values: list[Any] | None, count: int) -> list[Any] | None:
    """As many values as there are tokens; what is lacking at the end was not recorded."""
    return [*values[:count], *[None] * (count - len(values))] if values else None


def numbers(values: Any, count: int) -> Values | None:
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


def bars(values: Values, by: str, low: float, high: float) -> list[Bar]:
    """At most `BARS` of equal width, each as far from nought as the farthest of its tokens."""
    low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    size = max(1, -(-len(values) // BARS))
    parts = np.pad(np.nan_to_num(values), (0, -len(values) % size)).reshape(-1, size)
    far = np.take_along_axis(parts, np.abs(parts).argmax(1)[:, None], 1)[:, 0]
    places = np.arange(0, len(values), size)
    figures = (100 * places / len(values), 100 * (high - np.maximum(far, 0.0)) / span, 100 * np.abs(far) / span)
    drawn = (np.round(one, digits).tolist() for one, digits in zip(figures, (3, 2, 2), strict=True))
    return [Bar(*one) for one in zip(*drawn, levels(by, far), strict=True)]


def levels(by: str, values: Values) -> list[str]:
    """The class of each token's background: h1 to h4, p1 to p3 above nought, n1 to n3 below it, or m0 for one that is
    masked; empty for nothing to say."""
    if by == "mask":
        return picked(("", "m0"), values == 0)
    if by in LEVELS:
        return picked(("", "h1", "h2", "h3", "h4"), (np.abs(values)[:, None] >= np.abs(LEVELS[by])).sum(1))
    strength = (np.abs(values)[:, None] > (0.0, 0.5, 1.5)).sum(1)
    return picked(("", "p1", "p2", "p3", "n3", "n2", "n1"), np.where(values > 0, strength, -strength))


def picked(names: tuple[str, ...], places: Values) -> list[str]:
    found: list[str] = np.array(names)[places.astype(int)].tolist()
    return found


def spans(window: Window) -> Iterator[str]:
    """The window's tokens as HTML, escaped: each a <b>, so that the n-th of them is the n-th token. They stand in
    blocks of whole lines, of which the browser lays out those in sight; mere ids have no lines."""
    inside = slice(window.start, window.end)
    kinds = levels(window.by, window.columns[window.by][inside]) if window.columns else repeat("")
    logprobs = window.columns.get("logprob")
    low = (logprobs[inside] < UNLIKELY).tolist() if logprobs is not None else repeat(False)
    shown = (
        [formatting.plain(one).replace("\n", "⏎\n") for one in window.texts] if window.texts else map(str, window.ids)
    )
    made: list[str] = []
    for place, (token, kind, unlikely) in enumerate(zip(shown, kinds, low, strict=False), window.start):
        made.append(span(token, kind, unlikely, place == window.here))
        if len(made) >= BLOCK and (window.texts is None or token.endswith("\n")):
            yield f'<span class="block">{"".join(made)}</span>'
            made.clear()
    yield f'<span class="block">{"".join(made)}</span>'


def span(shown: str, kind: str, low: bool, here: bool) -> str:
    names = " ".join([kind, "low"] if low else [kind]).strip()
    marks = [f' class="{names}"'] if names else []
    marks += [' aria-current="true"'] if here else []
    return f"<b{''.join(marks)}>{shown}</b>"


def told(window: Window) -> str:
    """What was recorded of the window's tokens, as JSON for the page's script: {figure: a value or null per token}."""
    columns = {called(name): values[window.start : window.end] for name, values in window.columns.items()}
    rounded = {
        name: [None if math.isnan(one) else round(one, 4) for one in part.tolist()] for name, part in columns.items()
    }
    return json.dumps({"id": window.ids, **rounded}, separators=(",", ":"))


def called(name: str) -> str:
    """A figure's name; of one that a trainer chose, its printable characters."""
    if name in NAMES:
        return _(NAMES[name])
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:40])


def short(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0f}" if value == round(value) else f"{value:.4f}"


def rows(window: Window) -> list[dict[str, Any]]:
    """The same as a table."""
    columns = [values[window.start : window.end].tolist() for values in window.columns.values()]
    return [
        {
            "at": window.start + place,
            "id": token,
            "text": window.texts[place] if window.texts else "",
            "values": [short(values[place]) for values in columns],
        }
        for place, token in enumerate(window.ids)
    ]
