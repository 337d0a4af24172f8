"""What a query is made of once it has been read: terms, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rollouts.errors import BadInput

Span = tuple[int, int]

NUMBERS: Final = ("score", "len", "tokens", "adv", "n", "step")
WHOLE: Final = ("len", "tokens", "n", "step")
NAMES: Final = ("split", "group", "prompt", "source", "reason")
PROPERTIES: Final = (
    "truncated", "flagged", "correct", "wrong", "zerovar", "solve-all", "solve-none", "final", "intermediate",
    "trunc?", "repetition", "language-mix", "empty", "duplicate", "tokens", "tool", "filtered", "pinned", "reused",
    "unseen", "seen", "fine", "flagged-by-others",
)  # fmt: skip
MISSING: Final = ("marker", "score", "text")
ALSO: Final = {"answer": "marker"}  # other words for what can be missing
PERSONAL: Final = ("unseen", "seen", "fine", "flagged-by-others")  # what depends on who asks
PASSING: Final = ("flagged", "pinned", "reused", *PERSONAL)  # what people and later runs change


class BadQuery(BadInput):
    """The query cannot be read. `span` is the (start, end) of the bad part, in characters of the query."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message, "q")
        self.span = span


@dataclass(frozen=True, slots=True)
class Range:
    """low <= number <= high of a stored number, without the ends where `open_low`, `open_high`."""

    key: str
    low: float | None
    high: float | None
    open_low: bool = False
    open_high: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """The number is recorded at all."""

    key: str


@dataclass(frozen=True, slots=True)
class Named:
    """`name:text`."""

    name: str
    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Is:
    name: str


@dataclass(frozen=True, slots=True)
class No:
    name: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A key of the run's own: `sign` is one of `< <= > >= = :`."""

    key: str
    sign: str
    text: str
    number: float | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A substring of prompt or response."""

    text: str
    any_case: bool


@dataclass(frozen=True, slots=True)
class Regex:
    pattern: str


@dataclass(frozen=True, slots=True)
class Not:
    part: Node


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


Node = Range | Known | Named | Is | No | Logged | Text | Regex | Not | And | Or
BODY = (Logged, Text, Regex)


@dataclass(frozen=True, slots=True)
class Query:
    """A query that was understood. `root` is None for the empty one; `notes` are sentences a page should show."""

    text: str = ""
    root: Node | None = None
    notes: tuple[str, ...] = ()

    def leaves(self) -> list[Node]:
        return leaves(self.root) if self.root else []

    @property
    def personal(self) -> bool:
        """Whether the answer depends on who asks."""
        return any(isinstance(leaf, Is) and leaf.name in PERSONAL for leaf in self.leaves())


def passes(leaf: Node) -> bool:
    """Whether people and later runs change its answer."""
    return (isinstance(leaf, Is) and leaf.name in PASSING) or (isinstance(leaf, Named) and leaf.name == "reason")


def leaves(node: Node) -> list[Node]:
    if isinstance(node, And | Or):
        return [leaf for part in node.parts for leaf in leaves(part)]
    return leaves(node.part) if isinstance(node, Not) else [node]


def tolerance(number: float) -> float:
    """Numbers this close count as equal: trainers log float32, people type decimals."""
    return 1e-6 * max(1.0, abs(number))
