"""The correctness rule of a project: its text, which queries are valid rules, and when a rule's result is known.

A term is unknown for a sample if its value was not recorded. `-acc=1` finds samples without `acc`, as a filter should;
a correctness rule leaves them unevaluated.
"""

from collections.abc import Iterable

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from rollouts.errors import InvalidInputError
from rollouts.lib import parse_text
from rollouts.models import Project
from rollouts.query import ast
from rollouts.query.parser import parse_query

DEFAULT_RULE_TEXT = N_("acc=1 if logged, else score>0")
MAX_RULE_CHARS = 200
CIRCULAR_PROPERTIES = ("correct", "wrong", "solve-all", "solve-none")


def get_rule_text(project: Project) -> str:
    return project.correct or _(DEFAULT_RULE_TEXT)


def name_correctness_rules(projects: Iterable[Project]) -> str:
    """Returns the rules of the projects, each once and not translated."""
    return "; ".join(dict.fromkeys(project.correct or DEFAULT_RULE_TEXT for project in projects))


def build_correctness_notes(query: ast.Query, project: Project) -> tuple[str, ...]:
    """Returns the message to show with the result of a query that uses the correctness rule."""
    if not any(isinstance(leaf, ast.PropertyTerm) and leaf.name in CIRCULAR_PROPERTIES for leaf in query.leaves):
        return ()
    message = _("“Correct” uses the rule of {project}: `{rule}`.")
    return (message.format(rule=get_rule_text(project), project=project.slug),)


def parse_correctness_rule(text: object) -> ast.Query:
    """Returns a query that is a valid rule. Raises InvalidInputError, InvalidQueryError if it cannot be parsed."""
    query = parse_query(parse_text(text, "correct", max_chars=MAX_RULE_CHARS).strip())
    for leaf in query.leaves:
        if isinstance(leaf, ast.PropertyTerm) and leaf.name in CIRCULAR_PROPERTIES:
            message = _("A correctness rule cannot use `is:{name}`: the rule itself defines it.")
            raise InvalidInputError(message.format(name=leaf.name), "correct")
        if ast.is_changeable_term(leaf):
            message = _("A correctness rule can use only recorded values, not flags, labels or pins.")
            raise InvalidInputError(message, "correct")
        if isinstance(leaf, ast.LoggedKeyTerm) and leaf.sign in ("<", "<=", ">", ">=") and leaf.number is None:
            # In a search it may compare a re-score with another number. In a rule it would be false for all samples.
            message = _("`{name}{sign}` needs a number; text can only be compared with `=`.")
            raise ast.InvalidQueryError(message.format(name=leaf.key, sign=leaf.sign), leaf.span)
    return query


def build_known_true(node: ast.QueryNode) -> ast.QueryNode:
    """Returns a query that matches the samples of which `node` is known to be true."""
    match node:
        case ast.And(parts):
            return ast.And(tuple(map(build_known_true, parts)))
        case ast.Or(parts):
            return ast.Or(tuple(map(build_known_true, parts)))
        case ast.Not(part):
            return build_known_false(part)
        case _:
            return node


def build_known_false(node: ast.QueryNode) -> ast.QueryNode:
    """Returns a query that matches the samples of which `node` is known to be false."""
    match node:
        case ast.And(parts):
            return ast.Or(tuple(map(build_known_false, parts)))
        case ast.Or(parts):
            return ast.And(tuple(map(build_known_false, parts)))
        case ast.Not(part):
            return build_known_true(part)
        case ast.RangeTerm(key):
            return ast.And((ast.RecordedTerm(key), ast.Not(node)))
        case ast.LoggedKeyTerm(key, _, _, _, span):
            return ast.And((ast.LoggedKeyTerm(key, "known", "", None, span), ast.Not(node)))
        case ast.TextTerm() | ast.RegexTerm():
            return ast.And((ast.Not(ast.PropertyTerm("no-text")), ast.Not(node)))
        case ast.RecordedTerm():
            return ast.And((node, ast.Not(node)))  # nothing: a missing value is unknown, not false
        case _:
            return ast.Not(node)
