"""Versions of a project's guidance: the current one, all of them, and a new one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from rolloutdeck.protocol import GUIDANCE_BASELINES
from rollouts.errors import NotFoundError, OutdatedError
from rollouts.guidance.rules import Rule, parse_rules
from rollouts.lib import parse_choice
from rollouts.models import GuidanceVersion, Project
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_VERSIONS_LISTED: Final = 100


@dataclass(frozen=True, slots=True)
class RuleVersion:
    """A version of the rules. `number` is 0 if the project has none."""

    number: int
    rules: tuple[Rule, ...]
    baseline: str = "trainer"
    created_by: str = ""
    created_at: Any = field(default=None, compare=False)


NO_RULES: Final = RuleVersion(0, ())


def load_guidance(project: Project, number: int | None = None) -> RuleVersion:
    """Returns a version of the project's rules, by default the newest. Raises NotFoundError."""
    rows = project.guidance_versions.select_related("created_by").order_by("-number")
    row = rows.first() if number is None else rows.filter(number=number).first()
    if row is not None:
        return read_version(row)
    if number:
        raise NotFoundError(_("The rules have no version {number}.").format(number=number), "version")
    return NO_RULES


def read_version(row: GuidanceVersion) -> RuleVersion:
    author = row.created_by.get_username() if row.created_by else ""
    return RuleVersion(row.number, tuple(Rule(**rule) for rule in row.rules), row.baseline, author, row.created_at)


def list_guidance(project: Project) -> list[RuleVersion]:
    """Returns the stored versions, newest first."""
    rows = project.guidance_versions.select_related("created_by").order_by("-number")
    return [read_version(row) for row in rows[:MAX_VERSIONS_LISTED]]


def load_rules_by_version(project: Project, numbers: Iterable[int]) -> dict[int, dict[str, Rule]]:
    """Returns {version: {key: rule}}, without versions that do not exist. One query."""
    rows = project.guidance_versions.filter(number__in=set(numbers)).select_related("created_by")
    return {row.number: {rule.key: rule for rule in read_version(row).rules} for row in rows}


def save_guidance(project: Project, by: User, rules: Any, baseline: Any, *, base: int | None = None) -> RuleVersion:
    """Stores the next version of the rules and returns it; the current one if nothing changed.

    `base` is the version that was edited: raises OutdatedError if another one was stored since. Raises
    InvalidInputError if a rule is not valid.
    """
    parsed = parse_rules(rules)
    chosen = parse_choice(baseline, "baseline", GUIDANCE_BASELINES, default="trainer")
    with transaction.atomic():
        Project.objects.lock(project)
        current = load_guidance(project)
        if base is not None and base != current.number:
            message = _("The rules are now version {number}, not {base}. Load them again and repeat your change.")
            raise OutdatedError(message.format(number=current.number, base=base), "base_version")
        if (parsed, chosen) == (current.rules, current.baseline):
            return current
        row = GuidanceVersion.objects.create(
            project=project,
            number=current.number + 1,
            rules=[rule.to_json() for rule in parsed],
            baseline=chosen,
            created_by=by,
        )
        keys = [rule.key for rule in parsed]
        record_audit_entry(by, "guidance.save", str(row.number), project=project, rules=keys)
    return read_version(row)
