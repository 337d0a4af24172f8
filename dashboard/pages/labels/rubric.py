"""Settings: the rubric of a project. The form has all questions, a preview, and the earlier versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.views.decorators.http import require_http_methods

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.labels.answer_form import AnswerField, build_preview, clean_text, parse_decimal
from rollouts.errors import InvalidInputError
from rollouts.labels import Question, RubricVersion, list_rubrics, load_rubric, parse_questions, save_rubric

if TYPE_CHECKING:
    from django.http import QueryDict

    from rollouts.models import Project

EMPTY_ROWS = 3
MAX_ROWS = 60
KIND_NAMES = {
    "yes-no": N_("yes or no"), "choice": N_("one of the options"), "choices": N_("some of the options"),
    "rating": N_("rating"), "number": N_("number"), "text": N_("text"),
}  # fmt: skip


@dataclass(slots=True)
class EditedQuestion:
    """A question as it is typed. `options` has one line `key = title` for each. `error` belongs to `error_field`."""

    key: str = ""
    title: str = ""
    kind: str = "yes-no"
    options: str = ""
    minimum: str = ""
    maximum: str = ""
    description: str = ""
    required: bool = False
    range: bool = False
    error_field: str = ""
    error: str = ""

    @classmethod
    def of_question(cls, question: Question) -> EditedQuestion:
        lines = [f"{option.key} = {option.title}" for option in question.options]
        low, high = ("" if bound is None else f"{bound:.15g}" for bound in (question.minimum, question.maximum))
        return cls(
            question.key, question.title, question.kind, "\n".join(lines), low, high, question.description,
            question.required, question.range,
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        return not (self.key or self.title or self.options or self.description)

    def to_json(self) -> dict[str, Any]:
        """Returns what `parse_questions` reads. Fields that the kind does not have are left out."""
        row: dict[str, Any] = {"key": self.key, "title": self.title, "kind": self.kind}
        if self.kind in ("choice", "choices"):
            pairs = (line.partition("=") for line in self.options.splitlines() if line.strip())
            row["options"] = [{"key": key.strip(), "title": title.strip()} for key, _sign, title in pairs]
        if self.kind in ("rating", "number"):
            bounds = {"minimum": self.minimum, "maximum": self.maximum}
            row |= {name: parse_decimal(text) for name, text in bounds.items() if text}
        return row | {"description": self.description, "required": self.required, "range": self.range}


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def rubric_page(request: HttpRequest, slug: str) -> HttpResponse:
    """A post with `do=preview` shows the questions as annotators will see them; another one saves them."""
    project = permissions.project_or_404(request, slug, role="maintainer" if request.method == "POST" else "viewer")
    if request.method != "POST":
        number = common.parse_integer_param(request.GET.get("version", ""))
        try:
            rubric = load_rubric(project, number)
        except InvalidInputError as error:
            messages.error(request, str(error))
            return redirect("rubric", slug)
        rows = [EditedQuestion.of_question(question) for question in rubric.questions] if rubric.number else []
        shown = rubric.questions
        if not rubric.number and "example" in request.GET:
            rows = build_example()
            shown = parse_questions([row.to_json() for row in rows])
        context = build_context(request, project, rubric, rows, rubric.guidelines)
        context |= {"preview": build_preview(shown), "has_example": bool(rows) and not rubric.number}
        return render(request, "labels/rubric.html", context)
    rows, guidelines = read_rows(request.POST), clean_text(request.POST.get("guidelines", ""))
    current = load_rubric(project)
    preview: list[AnswerField] = []
    message = ""
    try:
        questions = [row.to_json() for row in rows]
        preview = build_preview(parse_questions(questions))
        if request.POST.get("do") != "preview":
            base = common.parse_integer_param(request.POST.get("base", ""))
            user = common.get_signed_in_user(request)
            saved = save_rubric(project, user, questions, guidelines, base=-1 if base is None else base)
            messages.success(request, _("The rubric is version {number}.").format(number=saved.number))
            return redirect("rubric", slug)
    except InvalidInputError as error:
        message = assign_error_to_row(rows, error)
    context = build_context(request, project, current, rows, guidelines)
    context |= {"preview": preview, "error": message, "base": request.POST.get("base", "")}
    has_errors = bool(message) or any(row.error for row in rows)
    return render(request, "labels/rubric.html", context, status=400 if has_errors else 200)


def build_example() -> list[EditedQuestion]:
    """Returns questions that an empty rubric may start with."""
    problems = {
        "reasoning": _("the reasoning"),
        "format": _("the format"),
        "repetition": _("repetition"),
        "reward-hack": _("a reward hack"),
    }
    options = "\n".join(f"{key} = {title}" for key, title in problems.items())
    return [
        EditedQuestion("correct", _("Is the answer correct?"), required=True),
        EditedQuestion("problems", _("What is wrong?"), "choices", options),
        EditedQuestion("quality", _("How good is the explanation?"), "rating", minimum="1", maximum="5"),
    ]


def read_rows(form: QueryDict) -> list[EditedQuestion]:
    """Returns the questions of the form in the order of their positions, without the removed and the empty ones."""
    positions = form.getlist("row")[:MAX_ROWS]
    rows: list[tuple[float, int, EditedQuestion]] = []
    for at, name in enumerate(positions):
        texts: dict[str, Any] = {
            field: clean_text(form.get(f"{field}:{name}", ""))
            for field in ("key", "title", "kind", "options", "minimum", "maximum", "description")
        }
        switches: dict[str, Any] = {field: f"{field}:{name}" in form for field in ("required", "range")}
        row = EditedQuestion(**texts, **switches)
        if not row.is_empty and f"remove:{name}" not in form:
            position = parse_decimal(form.get(f"position:{name}", ""))
            rows.append((position if isinstance(position, float) else at + 1, at, row))
    return [row for _position, _at, row in sorted(rows, key=lambda entry: entry[:2])]


def assign_error_to_row(rows: list[EditedQuestion], error: InvalidInputError) -> str:
    """Puts the error at its field. Returns its message if it belongs to none."""
    name, _dot, rest = error.field.partition(".")
    number, _dot, field = rest.partition(".")
    if name != "questions" or not number.isdigit() or int(number) >= len(rows):
        return str(error)
    row = rows[int(number)]
    row.error, row.error_field = str(error), field.partition(".")[0] or "key"
    return ""


def build_context(
    request: HttpRequest, project: Project, rubric: RubricVersion, rows: list[EditedQuestion], guidelines: str
) -> dict[str, Any]:
    maintains = permissions.role_allows(project.role_of(request.user), "maintainer")
    return {
        "project": project,
        "tab": "settings",
        "rubric": rubric,
        "base": load_rubric(project).number,
        "versions": list_rubrics(project),
        "rows": [*rows, *(EditedQuestion() for _row in range(EMPTY_ROWS))],
        "guidelines": guidelines,
        "guidelines_html": common.render_note(guidelines) if guidelines else "",
        "kinds": KIND_NAMES.items(),
        "maintainer": maintains,
    }
