"""The fields of a query: those of samples, and a type for those of other objects, such as runs.

The grammar, the errors and the completion are the same for all objects. Only the names differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rollouts.query import ast


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`key_example` is a term about a key that is no field. If `keys_have_names`, such a key can be asked for as
    `name:text` without a prefix, and `field=text` is the same as `field:text`."""

    number_fields: tuple[str, ...]
    integer_fields: tuple[str, ...]
    name_fields: tuple[str, ...]
    property_names: tuple[str, ...]
    missing_names: tuple[str, ...]
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()  # the values of name fields that have few
    age_fields: tuple[str, ...] = ()
    missing_aliases: tuple[tuple[str, str], ...] = ()
    key_example: str = "extra.lang=zh"
    keys_have_names: bool = False
    has_labels: bool = False  # `label.NAME` is a label, not a logged key

    @property
    def key_prefix(self) -> str:
        return self.key_example.partition(".")[0]

    @property
    def field_names(self) -> tuple[str, ...]:
        return (*self.number_fields, *self.name_fields, *self.age_fields, "is", "no")

    def get_choices(self, name: str) -> tuple[str, ...]:
        return dict(self.choices).get(name, ())


SAMPLE_VOCABULARY: Final = Vocabulary(
    number_fields=ast.NUMBER_FIELDS,
    integer_fields=ast.INTEGER_FIELDS,
    name_fields=ast.NAME_FIELDS,
    property_names=ast.PROPERTY_NAMES,
    missing_names=ast.MISSING_NAMES,
    choices=(("split", ("train", "eval")), ("label-source", ("human", "code", "model"))),
    missing_aliases=tuple(ast.MISSING_ALIASES.items()),
    has_labels=True,
)
