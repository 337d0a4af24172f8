"""What a query is made of once it has been read: terms, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rollouts.errors import InvalidInputError

Span = tuple[int, int]

NUMBER_FIELDS: Final = ("score", "len", "tokens", "adv", "n", "step")
INTEGER_FIELDS: Final = ("len", "tokens", "n", "step")
NAME_FIELDS: Final = ("split", "group", "prompt", "source", "reason")
PROPERTY_NAMES: Final = (
    "truncated", "flagged", "correct", "wrong", "zerovar", "solve-all", "solve-none", "final", "intermediate",
    "trunc?", "repetition", "language-mix", "empty", "duplicate", "tokens", "tool", "filtered", "pinned", "reused",
    "unseen", "seen", "fine", "flagged-by-others",
)  # fmt: skip
MISSING_NAMES: Final = ("marker", "score", "text")
MISSING_ALIASES: Final = {"answer": "marker"}  # other words for what can be missing
PERSONAL_PROPERTIES: Final = ("unseen", "seen", "fine", "flagged-by-others")  # what depends on who asks
CHANGEABLE_PROPERTIES: Final = (
    "flagged",
    "pinned",
    "reused",
    *PERSONAL_PROPERTIES,
)  # what people and later runs change


class InvalidQueryError(InvalidInputError):
    """The query cannot be read. `span` is the (start, end) of the bad part, in characters of the query."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message, "q")
        self.span = span


@dataclass(frozen=True, slots=True)
class RangeTerm:
    """low <= number <= high of a stored number, without the ends where `open_low`, `open_high`."""

    key: str
    low: float | None
    high: float | None
    open_low: bool = False
    open_high: bool = False


@dataclass(frozen=True, slots=True)
class RecordedTerm:
    """The number is recorded at all."""

    key: str


@dataclass(frozen=True, slots=True)
class NameTerm:
    """`name:text`."""

    name: str
    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class PropertyTerm:
    name: str


@dataclass(frozen=True, slots=True)
class MissingTerm:
    name: str


@dataclass(frozen=True, slots=True)
class LoggedKeyTerm:
    """A key of the run's own: `sign` is one of `< <= > >= = :`."""

    key: str
    sign: str
    text: str
    number: float | None
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class TextTerm:
    """A substring of prompt or response."""

    text: str
    any_case: bool


@dataclass(frozen=True, slots=True)
class RegexTerm:
    pattern: str


@dataclass(frozen=True, slots=True)
class Not:
    part: QueryNode


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[QueryNode, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[QueryNode, ...]


QueryNode = (
    RangeTerm
    | RecordedTerm
    | NameTerm
    | PropertyTerm
    | MissingTerm
    | LoggedKeyTerm
    | TextTerm
    | RegexTerm
    | Not
    | And
    | Or
)
BODY_TERMS = (LoggedKeyTerm, TextTerm, RegexTerm)


@dataclass(frozen=True, slots=True)
class Query:
    """A query that was understood. `root` is None for the empty one; `notes` are sentences a page should show."""

    text: str = ""
    root: QueryNode | None = None
    notes: tuple[str, ...] = ()

    def leaves(self) -> list[QueryNode]:
        return collect_leaves(self.root) if self.root else []

    @property
    def personal(self) -> bool:
        """Whether the answer depends on who asks."""
        return any(isinstance(leaf, PropertyTerm) and leaf.name in PERSONAL_PROPERTIES for leaf in self.leaves())


def is_changeable_term(leaf: QueryNode) -> bool:
    """Whether people and later runs change its answer."""
    return (isinstance(leaf, PropertyTerm) and leaf.name in CHANGEABLE_PROPERTIES) or (
        isinstance(leaf, NameTerm) and leaf.name == "reason"
    )


def collect_leaves(node: QueryNode) -> list[QueryNode]:
    if isinstance(node, And | Or):
        return [leaf for part in node.parts for leaf in collect_leaves(part)]
    return collect_leaves(node.part) if isinstance(node, Not) else [node]


def compute_tolerance(number: float) -> float:
    """Numbers this close count as equal: trainers log float32, people type decimals."""
    return 1e-6 * max(1.0, abs(number))
