"""The rule for Correct of a project: its text, the check that a query may be a rule, and the note on pages about it."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.lib import parse_text
from rollouts.models import Project
from rollouts.query.ast import PropertyTerm, Query, is_changeable_term
from rollouts.query.parser import parse_query

DEFAULT_RULE_TEXT = N_("acc=1 if logged, else score>0")
MAX_RULE_CHARS = 200
CIRCULAR_PROPERTIES = ("correct", "wrong", "solve-all", "solve-none")


def get_rule_text(project: Project) -> str:
    """The rule as pages say it."""
    return project.correct or _(DEFAULT_RULE_TEXT)


def build_correctness_notes(query: Query, project: Project) -> tuple[str, ...]:
    """What a page says beside the answer to a query that asks for Correct."""
    asks = any(isinstance(leaf, PropertyTerm) and leaf.name in CIRCULAR_PROPERTIES for leaf in query.leaves())
    said = _("“Correct” uses the rule of {project}: `{rule}`.")
    return (said.format(rule=get_rule_text(project), project=project.slug),) if asks else ()


def parse_correctness_rule(told: object) -> Query:
    """A query that may be a rule. Raises BadInput, BadQuery for one that cannot be read."""
    found = parse_query(parse_text(told, "correct", most=MAX_RULE_CHARS).strip())
    for leaf in found.leaves():
        if isinstance(leaf, PropertyTerm) and leaf.name in CIRCULAR_PROPERTIES:
            said = _("A correctness rule cannot use `is:{name}`: the rule itself defines it.")
            raise InvalidInputError(said.format(name=leaf.name), "correct")
        if is_changeable_term(leaf):
            raise InvalidInputError(_("A correctness rule can use only recorded values, not flags or pins."), "correct")
    return found
