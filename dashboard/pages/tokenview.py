"""Tokens of a response, a window at a time: what was recorded of each, and one figure of all of them as a chart above.

Log-probs in nats as sampled; `mismatch` is what the trainer computed for the same token less that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages import text
from dashboard.pages.ask import whole
from rollouts import decoding
from rollouts.models import Run

WINDOW = 2048
BARS = 240
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
    def bar_width(self) -> float:
        """In per cent of the chart, with a gap."""
        return round(90 / max(1, len(self.bars)), 3)

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
    texts = decoding.pieces_of(run, ids)
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
    made = []
    for place in range(0, len(values), size):
        part = np.nan_to_num(values[place : place + size])
        far = float(part[np.abs(part).argmax()])
        top = round(100 * (high - max(far, 0.0)) / span, 2)
        made.append(Bar(round(100 * place / len(values), 3), top, round(100 * abs(far) / span, 2), level(by, far)))
    return made


def level(by: str, value: float) -> str:
    """The class of a token's background: h1 to h4, p1 to p3 above nought, n1 to n3 below it, or m0 for one that is
    masked; empty for nothing to say."""
    if math.isnan(value):
        return ""
    if by == "mask":
        return "" if value else "m0"
    far = abs(value)
    if by in LEVELS:
        strength = sum(far >= abs(limit) for limit in LEVELS[by])
        return f"h{strength}" if strength else ""
    strength = sum(far > limit for limit in (0.0, 0.5, 1.5))
    return f"{'p' if value > 0 else 'n'}{strength}" if strength else ""


def spans(window: Window) -> str:
    """The window's tokens as HTML, escaped: each a <b>, so that the n-th of them is the n-th token."""
    values = window.columns[window.by][window.start : window.end].tolist() if window.columns else []
    logprobs = window.columns.get("logprob")
    low = (logprobs[window.start : window.end] < UNLIKELY).tolist() if logprobs is not None else []
    shown = window.texts or [str(token) for token in window.ids]
    return "".join(
        span(
            text.plain(token).replace("\n", "⏎\n"),
            level(window.by, values[place]) if values else "",
            bool(low and low[place]),
            window.start + place == window.here,
        )
        for place, token in enumerate(shown)
    )


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
