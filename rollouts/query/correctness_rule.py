"""The rule for Correct of a project: its text, the check that a query may be a rule, and the note on pages about it."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import BadInput
from rollouts.lib.validation import text
from rollouts.models import Project
from rollouts.query.ast import Is, Query, passes
from rollouts.query.parser import parse

DEFAULT = N_("acc=1 where it was logged, else score>0")
MOST_RULE = 200
CIRCULAR = ("correct", "wrong", "solve-all", "solve-none")


def rule_of(project: Project) -> str:
    """The rule as pages say it."""
    return project.correct or _(DEFAULT)


def notes(query: Query, project: Project) -> tuple[str, ...]:
    """What a page says beside the answer to a query that asks for Correct."""
    asks = any(isinstance(leaf, Is) and leaf.name in CIRCULAR for leaf in query.leaves())
    said = _("Correct is what answers `{rule}`, the rule of {project}.")
    return (said.format(rule=rule_of(project), project=project.slug),) if asks else ()


def rule(told: object) -> Query:
    """A query that may be a rule. Raises BadInput, BadQuery for one that cannot be read."""
    found = parse(text(told, "correct", most=MOST_RULE).strip())
    for leaf in found.leaves():
        if isinstance(leaf, Is) and leaf.name in CIRCULAR:
            said = _("The rule says what is correct, so it cannot ask for `is:{name}`.")
            raise BadInput(said.format(name=leaf.name), "correct")
        if passes(leaf):
            raise BadInput(_("The rule must ask for what was recorded; flags and pins come and go."), "correct")
    return found
