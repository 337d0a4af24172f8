"""Settings: the guidance rules of a project. The form has all rules, what they select now, and the earlier versions."""

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
from rollouts.errors import InvalidInputError, StorageUnavailableError
from rollouts.guidance import (
    Rule,
    RuleSelection,
    RuleVersion,
    list_guidance,
    load_guidance,
    parse_rules,
    save_guidance,
    select_rows,
)

if TYPE_CHECKING:
    from django.http import QueryDict

    from rollouts.models import Project

EMPTY_ROWS = 2
MAX_ROWS = 30
ACTION_NAMES = {
    "mask": N_("mask: advantage 0"),
    "drop": N_("drop: not in the loss"),
    "weight": N_("weight: advantage × value"),
    "reward": N_("pass the value to the reward function"),
}
TARGET_NAMES = {
    "prompt": N_("all responses to the prompt"),
    "response": N_("the same response to the prompt"),
}
BASELINE_NAMES = {
    "trainer": N_("count as the trainer does it"),
    "exclude": N_("do not count"),
}
EXAMPLES = (
    (Rule("flagged", "is:flagged-bad", "mask"), N_("Nothing is learnt from prompts with a response flagged as bad.")),
    (
        Rule("hack", "reason:reward-hack", "reward", "response", -1.0),
        N_("The reward function gets -1 if a response that was flagged as a hack is generated again."),
    ),
    (
        Rule("unsure", "label.correct=no", "weight", "prompt", 0.5),
        N_("Prompts with a response that a person called wrong count half."),
    ),
)


@dataclass(slots=True)
class EditedRule:
    """A rule as it is typed. `error` belongs to `error_field`."""

    key: str = ""
    query: str = ""
    action: str = "mask"
    target: str = "prompt"
    value: str = ""
    error_field: str = ""
    error: str = ""

    @classmethod
    def of_rule(cls, rule: Rule) -> EditedRule:
        value = repr(rule.value).removesuffix(".0") if rule.action in ("weight", "reward") else ""
        return cls(rule.key, rule.query, rule.action, rule.target, value)

    @property
    def is_empty(self) -> bool:
        return not (self.key or self.query)

    def to_json(self) -> dict[str, Any]:
        """Returns what `parse_rules` reads."""
        row: dict[str, Any] = {"key": self.key, "query": self.query, "action": self.action, "target": self.target}
        return row | {"value": parse_number(self.value)}


def parse_number(text: str) -> Any:
    """Returns a number, else the text, which is then refused as no number."""
    try:
        return float(text)
    except ValueError:
        return text


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def guidance_page(request: HttpRequest, slug: str) -> HttpResponse:
    """A post with `do=preview` shows what the rules select, and saves nothing."""
    project = permissions.project_or_404(request, slug, role="maintainer" if request.method == "POST" else "viewer")
    if request.method != "POST":
        try:
            version = load_guidance(project, common.parse_integer_param(request.GET.get("version", "")))
        except InvalidInputError as error:
            messages.error(request, str(error))
            return redirect("guidance", slug)
        example = [rule for rule, _text in EXAMPLES if rule.key == request.GET.get("example", "")]
        rows = [EditedRule.of_rule(rule) for rule in (*version.rules, *example)]
        context = build_context(request, project, version, rows)
        return render(request, "guidance/page.html", context | {"has_example": bool(example)})
    rows, baseline = read_rows(request.POST), request.POST.get("baseline", "")
    current, message = load_guidance(project), ""
    edited, previewed = current, False
    try:
        rules = [row.to_json() for row in rows]
        if request.POST.get("do") == "preview":
            edited, previewed = RuleVersion(current.number, parse_rules(rules), baseline), True
        else:
            base = common.parse_integer_param(request.POST.get("base", ""))
            user = common.get_signed_in_user(request)
            saved = save_guidance(project, user, rules, baseline, base=-1 if base is None else base)
            messages.success(request, _("The rules are version {number}.").format(number=saved.number))
            return redirect("guidance", slug)
    except InvalidInputError as error:
        message = assign_error_to_row(rows, error)
    context = build_context(request, project, edited, rows)
    context |= {"error": message, "base": request.POST.get("base", ""), "is_preview": previewed}
    context["chosen_baseline"] = baseline
    has_errors = bool(message) or any(row.error for row in rows)
    return render(request, "guidance/page.html", context, status=400 if has_errors else 200)


def read_rows(form: QueryDict) -> list[EditedRule]:
    """Returns the rules of the form, without the removed and the empty ones."""
    rows = []
    for name in form.getlist("row")[:MAX_ROWS]:
        fields = ("key", "query", "action", "target", "value")
        row = EditedRule(*(form.get(f"{field}:{name}", "").strip() for field in fields))
        if not row.is_empty and f"remove:{name}" not in form:
            rows.append(row)
    return rows


def assign_error_to_row(rows: list[EditedRule], error: InvalidInputError) -> str:
    """Puts the error at its field. Returns its message if it belongs to none."""
    name, _dot, rest = error.field.partition(".")
    number, _dot, field = rest.partition(".")
    if name != "rules" or not number.isdigit() or int(number) >= len(rows):
        return str(error)
    row = rows[int(number)]
    row.error, row.error_field = str(error), field or "key"
    return ""


def build_context(
    request: HttpRequest, project: Project, version: RuleVersion, rows: list[EditedRule]
) -> dict[str, Any]:
    maintains = permissions.role_allows(project.role_of(request.user), "maintainer")
    selected, problem = load_selected(request, project, version)
    used = load_guidance(project).number
    return {
        "project": project,
        "tab": "settings",
        "version": version,
        "used": used,
        "base": used,
        "versions": list_guidance(project),
        "rows": [*rows, *(EditedRule() for _row in range(EMPTY_ROWS))],
        "selected": [(rule, describe_action(rule), found) for rule, found in selected],
        "problem": problem,
        "examples": [(rule, describe_action(rule), _(text)) for rule, text in EXAMPLES],
        "actions": ACTION_NAMES.items(),
        "targets": TARGET_NAMES.items(),
        "baselines": BASELINE_NAMES.items(),
        "baseline_name": _(BASELINE_NAMES.get(version.baseline, BASELINE_NAMES["trainer"])),
        "chosen_baseline": version.baseline,
        "maintainer": maintains,
    }


def load_selected(
    request: HttpRequest, project: Project, version: RuleVersion
) -> tuple[list[tuple[Rule, RuleSelection]], str]:
    """Returns the rules with what they select now, and why that is unknown."""
    try:
        selection = select_rows(project, version, common.get_signed_in_user(request))
    except StorageUnavailableError as error:
        return [(rule, RuleSelection(rule.key)) for rule in version.rules], str(error)
    return list(zip(version.rules, selection.rules, strict=True)), ""


def describe_action(rule: Rule) -> str:
    name = _(ACTION_NAMES[rule.action])
    return f"{name} ({rule.value:g})" if rule.action in ("weight", "reward") else name
