"""The syntax tree of a query: its terms, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rollouts.errors import InvalidInputError

Span = tuple[int, int]

NUMBER_FIELDS: Final = ("score", "len", "tokens", "adv", "n", "step", "staleness", "duration")
INTEGER_FIELDS: Final = ("len", "tokens", "n", "step", "staleness")
NAME_FIELDS: Final = (
    "split", "group", "prompt", "source", "reason", "alike", "label", "author", "label-source", "disagrees",
)  # fmt: skip
PROPERTY_NAMES: Final = (
    "answer-mismatch", "other-answer", "truncated", "flagged", "correct", "wrong", "zerovar", "solve-all", "solve-none",
    "final", "intermediate", "trunc?", "repetition", "language-mix", "garbled", "empty", "duplicate", "tokens", "tool",
    "filtered", "guided", "pinned", "reused", "labelled", "disagreed", "unseen", "seen", "fine", "flagged-by-others",
    "flagged-bad",
)  # fmt: skip
MISSING_NAMES: Final = ("marker", "score", "text", "label")
LABEL_NAMES: Final = ("label", "author", "label-source")  # the name fields about labels
MISSING_ALIASES: Final = {"answer": "marker"}
PERSONAL_PROPERTIES: Final = ("unseen", "seen", "fine", "flagged-by-others")  # depend on the user
LABEL_PROPERTIES: Final = ("flagged", "flagged-bad", "labelled", "disagreed", "flagged-by-others")
CHANGEABLE_PROPERTIES: Final = (
    "flagged",
    "flagged-bad",
    "labelled",
    "disagreed",
    "pinned",
    "reused",
    *PERSONAL_PROPERTIES,
)  # change after indexing


class InvalidQueryError(InvalidInputError):
    """The query cannot be parsed. `span` is the (start, end) of the invalid part, in characters of the query."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message, "q")
        self.span = span


@dataclass(frozen=True, slots=True)
class RangeTerm:
    """low <= number <= high. `open_low` and `open_high` exclude the bound itself."""

    key: str
    low: float | None
    high: float | None
    open_low: bool = False
    open_high: bool = False


@dataclass(frozen=True, slots=True)
class RecordedTerm:
    """The number was recorded."""

    key: str


@dataclass(frozen=True, slots=True)
class NameTerm:
    """`name:text`, or `source=text` (`is_exact`)."""

    name: str
    text: str
    span: Span = field(compare=False)
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class LabelTerm:
    """A label with this name and value. `text` is a key, or the text of a text label (`is_part`: a part of it), empty
    if only the number counts; `bounds` are set if the value may be a number."""

    name: str
    text: str
    bounds: RangeTerm | None
    is_part: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class RescoreTerm:
    """A number of a re-score, by its key in the rows. `sign` is `known` or one of `< <= > >= =`. It is compared with
    `number`, or with the number field or the key of a re-score in `other`."""

    key: str
    sign: str
    number: float | None = None
    other: str = ""


@dataclass(frozen=True, slots=True)
class PropertyTerm:
    name: str


@dataclass(frozen=True, slots=True)
class MissingTerm:
    name: str


@dataclass(frozen=True, slots=True)
class LoggedKeyTerm:
    """A key that the run logged, or a number of a re-score. `sign` is one of `< <= > >= = :`, or `known` if the key
    only has to be logged."""

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


BodyTerm = LoggedKeyTerm | TextTerm | RegexTerm
ColumnTerm = RangeTerm | RecordedTerm | NameTerm | LabelTerm | RescoreTerm | PropertyTerm | MissingTerm
QueryNode = ColumnTerm | BodyTerm | Not | And | Or


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query: `root` is None if it is empty, `leaves` are its terms. Pages show the messages in `notes`."""

    text: str = ""
    root: QueryNode | None = None
    leaves: tuple[QueryNode, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def personal(self) -> bool:
        """Whether the result depends on the user."""
        return any(isinstance(leaf, PropertyTerm) and leaf.name in PERSONAL_PROPERTIES for leaf in self.leaves)

    @property
    def may_ask_rescores(self) -> bool:
        """Whether a term can be about a re-score."""
        return any(isinstance(leaf, LoggedKeyTerm) or is_disagreement(leaf) for leaf in self.leaves)

    @property
    def asks_labels(self) -> bool:
        """Whether the result depends on labels, which a reviewer of a blind queue may not all read."""
        return any(map(is_label_term, self.leaves))


def is_disagreement(leaf: QueryNode) -> bool:
    return isinstance(leaf, NameTerm) and leaf.name == "disagrees"


def is_label_term(leaf: QueryNode) -> bool:
    """Returns whether the term asks for labels of others, flags included."""
    if isinstance(leaf, NameTerm):
        return leaf.name == "reason" or leaf.name in LABEL_NAMES
    if isinstance(leaf, PropertyTerm):
        return leaf.name in LABEL_PROPERTIES
    return isinstance(leaf, LabelTerm) or leaf == MissingTerm("label")


def is_changeable_term(leaf: QueryNode) -> bool:
    """Returns whether users and later runs change which samples match the term."""
    is_property = isinstance(leaf, PropertyTerm) and leaf.name in CHANGEABLE_PROPERTIES
    return is_label_term(leaf) or is_property or is_disagreement(leaf)


def collect_leaves(node: QueryNode) -> list[QueryNode]:
    if isinstance(node, And | Or):
        return [leaf for part in node.parts for leaf in collect_leaves(part)]
    return collect_leaves(node.part) if isinstance(node, Not) else [node]
