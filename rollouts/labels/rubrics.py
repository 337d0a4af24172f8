"""Versions of a project's rubric: the current one, all of them, and a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.errors import NotFoundError, OutdatedError
from rollouts.labels.question_parsing import parse_questions
from rollouts.labels.questions import DEFAULT_RUBRIC, MAX_GUIDELINES_CHARS, RubricVersion, dump_questions
from rollouts.lib import parse_multiline_text
from rollouts.models import Project, Rubric
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_VERSIONS_LISTED: Final = 100


def load_rubric(project: Project, number: int | None = None) -> RubricVersion:
    """Returns a version of the project's rubric, by default the newest. Raises NotFoundError."""
    rows = project.rubrics.select_related("created_by").order_by("-number")
    row = rows.first() if number is None else rows.filter(number=number).first()
    if row is not None:
        return read_rubric(row)
    if number:
        raise NotFoundError(_("The rubric has no version {number}.").format(number=number), "version")
    return DEFAULT_RUBRIC


def read_rubric(row: Rubric, *, has_author: bool = True) -> RubricVersion:
    """Without `has_author` the row of the author is not read."""
    author = row.created_by.get_username() if has_author and row.created_by else ""
    return RubricVersion(row.number, parse_questions(row.questions), row.guidelines, row.pk, author, row.created_at)


def list_rubrics(project: Project) -> list[RubricVersion]:
    """Returns the stored versions, newest first."""
    rows = project.rubrics.select_related("created_by").order_by("-number")
    return [read_rubric(row) for row in rows[:MAX_VERSIONS_LISTED]]


def save_rubric(
    project: Project, by: User, questions: Any, guidelines: Any = "", *, base: int | None = None
) -> RubricVersion:
    """Stores the next version of the rubric and returns it; the current one if nothing changed.

    `base` is the version that was edited: raises OutdatedError if another one was stored since. Raises
    InvalidInputError if a question is not valid.
    """
    parsed = parse_questions(questions)
    text = parse_multiline_text(guidelines or "", "guidelines", max_chars=MAX_GUIDELINES_CHARS)
    with transaction.atomic():
        Project.objects.lock(project)
        current = load_rubric(project)
        if base is not None and base != current.number:
            message = _("The rubric is now version {number}, not {base}. Load it again and repeat your change.")
            raise OutdatedError(message.format(number=current.number, base=base), "base_version")
        if (parsed, text) == (current.questions, current.guidelines):
            return current
        row = Rubric.objects.create(
            project=project, number=current.number + 1, questions=dump_questions(parsed), guidelines=text, created_by=by
        )
        keys = [question.key for question in parsed]
        record_audit_entry(by, "rubric.save", str(row.number), project=project, questions=keys)
    return read_rubric(row)
