"""Tokens of a response, a window at a time: what was recorded of each, and one figure of all of them as a chart above.

Log-probs in nats as sampled; `mismatch` is what the trainer computed for the same token less that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.html import escape

from dashboard.pages import text
from rollouts import decoding
from rollouts.models import Run

WINDOW = 4096
BARS = 240
UNLIKELY = math.log(0.1)  # nats; what `.` stops at
ENTROPY = ("entropy", "entropys", "entropies", "token_entropy")
TRAINED = ("old_logprobs", "old_log_probs", "train_logprobs", "actor_logprobs", "training_logprobs")

Values = Sequence[Any]

# Figure, what it is called, and the levels at which its background gets stronger; those of a signed one on both sides.
LEVELS = {
    "logprob": (-0.693, -2.303, -4.605, -6.908),  # p under 0.5, 0.1, 0.01, 0.001
    "reference": (-0.693, -2.303, -4.605, -6.908),
    "trained": (-0.693, -2.303, -4.605, -6.908),
    "entropy": (0.5, 1.0, 2.0, 3.0),
    "mismatch": (0.05, 0.2, 0.5, 1.0),
}
NAMES = {
    "logprob": "log-prob", "reference": "reference log-prob", "trained": "trainer's log-prob", "entropy": "entropy",
    "advantage": "advantage", "mask": "mask", "mismatch": "rollout − train",
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
    ids: Values
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
        values = self.columns.get("logprob", ())
        return next((at for at in range(self.end, len(values)) if is_unlikely(values[at])), None)

    @property
    def share(self) -> tuple[float, float]:
        """Where the window lies in the chart: (x, width), in per cent."""
        return round(100 * self.start / self.count, 2), round(100 * (self.end - self.start) / self.count, 2)


def of(body: Any, at: str, by: str, run: Run) -> Window:
    """The window that holds token `at`, coloured by the figure `by`; anything odd is the first of either."""
    count = len(body.response_ids)
    here = min(int(at), count - 1) if at.isdecimal() and at.isascii() and len(at) < 9 else None
    start = (here or 0) // WINDOW * WINDOW
    end = min(start + WINDOW, count)
    columns = recorded(body, count)
    by = by if by in columns else next(iter(columns), "")
    ids = body.response_ids[start:end]
    texts = decoding.pieces_of(run, ids)
    made = Window(start, end, count, here, by, columns, ids, texts, len(body.prompt_ids or ()))
    values = columns.get(by, ())
    known = [value for value in values if value is not None]
    if known:
        made.low, made.high = min(known), max(known)
        made.bars = bars(values, by, made.low, made.high)
    return made


def recorded(body: Any, count: int) -> dict[str, Values]:
    """{figure: a value per token} of all that was recorded of each token, whatever key a trainer logged it under."""
    lists = {name: values for name, values in body.extras.items() if is_per_token(values, count)}
    trained = next((lists.pop(name) for name in TRAINED if name in lists), None)
    found = {
        "logprob": body.logprobs,
        "entropy": next((lists.pop(name) for name in ENTROPY if name in lists), None),
        "advantage": body.advantages,
        "mismatch": difference(body.logprobs, trained),
        "reference": body.ref_logprobs,
        "trained": trained,
        "mask": body.response_mask,
        **lists,
    }
    return {name: finite(values) for name, values in found.items() if values}


def is_per_token(values: Any, count: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) == count > 0
        and all(value is None or isinstance(value, (int, float)) for value in values)
    )


def difference(sampled: Values | None, trained: Values | None) -> list[float | None] | None:
    if not sampled or not trained:
        return None
    pairs = zip(sampled, trained, strict=False)
    return [None if ours is None or theirs is None else ours - theirs for ours, theirs in pairs]


def finite(values: Values) -> Values:
    return [None if value is None or not math.isfinite(value) else value for value in values]


def is_unlikely(value: float | None) -> bool:
    return value is not None and value < UNLIKELY


def bars(values: Values, by: str, low: float, high: float) -> list[Bar]:
    """At most `BARS` of equal width, each as far from nought as the farthest of its tokens."""
    low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    size = max(1, -(-len(values) // BARS))
    made = []
    for place in range(0, len(values), size):
        known = [value for value in values[place : place + size] if value is not None]
        far = max(known, key=abs) if known else 0.0
        top = round(100 * (high - max(far, 0.0)) / span, 2)
        made.append(Bar(round(100 * place / len(values), 3), top, round(100 * abs(far) / span, 2), level(by, far)))
    return made


def level(by: str, value: float | None) -> str:
    """The class of a token's background: h1 to h4, p1 to p3 above nought, n1 to n3 below it, or m0 for one that is
    masked; empty for nothing to say."""
    if value is None:
        return ""
    if by == "mask":
        return "" if value else "m0"
    if by in LEVELS:
        far = abs(value)
        strength = sum(far >= abs(limit) for limit in LEVELS[by])
        return f"h{strength}" if strength else ""
    far = abs(value)
    strength = sum(far > limit for limit in (0.0, 0.5, 1.5))
    return f"{'p' if value > 0 else 'n'}{strength}" if strength else ""


def spans(window: Window) -> str:
    """The window's tokens as HTML, escaped; each says what was recorded of it in `data-t`."""
    return "".join(span(window, at) for at in range(window.start, window.end))


def span(window: Window, at: int) -> str:
    place = at - window.start
    values = window.columns.get(window.by, ())
    kind = level(window.by, values[at] if at < len(values) else None)
    logprobs = window.columns.get("logprob", ())
    low = " data-low" if at < len(logprobs) and is_unlikely(logprobs[at]) else ""
    here = ' aria-current="true"' if at == window.here else ""
    shown = text.plain(window.texts[place]).replace("\n", "⏎\n") if window.texts else str(window.ids[place])
    return f'<b class="{kind}" id="t{at}" data-t="{said(window, at)}"{low}{here}>{shown}</b>'


def said(window: Window, at: int) -> str:
    """`#12 · id 345 · log-prob −0.1235 (p 0.88)`, escaped for an attribute."""
    parts = [f"#{at:,}", f"id {window.ids[at - window.start]}"]
    for name, values in window.columns.items():
        value = values[at] if at < len(values) else None
        if value is not None:
            chance = f" (p {math.exp(min(value, 0.0)):.3g})" if name == "logprob" else ""
            parts.append(f"{called(name)} {short(value)}{chance}")
    return escape(" · ".join(parts))


def called(name: str) -> str:
    """A figure's name; of one that a trainer chose, its printable characters."""
    return NAMES.get(name) or "".join(sign if sign.isprintable() else "\ufffd" for sign in name[:40])


def short(value: Any) -> str:
    return "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def rows(window: Window) -> list[dict[str, Any]]:
    """The same as a table."""
    return [
        {
            "at": at,
            "id": window.ids[at - window.start],
            "text": window.texts[at - window.start] if window.texts else "",
            "values": [short(values[at]) if at < len(values) else "" for values in window.columns.values()],
        }
        for at in range(window.start, window.end)
    ]
