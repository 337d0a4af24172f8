"""Labels of samples, and the rubrics whose questions they answer."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, Params, check_names, filter_by_owner, row_or_404
from dashboard.api.serializers import serialize_label, serialize_rubric
from rolloutdeck.protocol import SPLITS
from rollouts.errors import InvalidInputError
from rollouts.labels import (
    Answer,
    can_withdraw_label,
    list_rubrics,
    load_history,
    load_rubric,
    save_rubric,
    serialize_change,
    store_labels,
    withdraw_label,
)
from rollouts.lib import parse_integer, parse_text
from rollouts.models import Label

LABEL_WRITE_ROLE = permissions.ROLE_BY_SCOPE["annotate"]
SOURCES = tuple(Label.Source.values)
ANSWER_FIELDS = {
    "name": "The key of a question of the rubric, review, flag or flag.REASON.",
    "value": "The answer, as the kind of the question asks for it; null withdraws the label.",
    "rationale": "Why.",
    "source": "human (default), code or model.",
    "author": "The name of the function or model, if the source is not human.",
    "start": "First character of the response that the label is about.",
    "end": "The character after the last one.",
}


class Labels(ApiView):
    """Labels."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {
            "project": "Its slug.",
            "run": "Its id.",
            "sample": "Its id.",
            "split": "train or eval.",
            "step": "A number.",
            "name": "The key of a question, review, flag or flag.REASON.",
            "author": "The name of a user, a function or a model.",
            "source": "human, code or model.",
            "withdrawn": "true: also withdrawn labels.",
        },
        "POST": {
            "sample": "Its id.",
            "samples": "Ids of several samples of one run, instead of `sample`.",
            **ANSWER_FIELDS,
            "labels": "A list of objects with these fields, instead of them: labels of samples of one run.",
        },
    }

    def get(self, request: Request) -> Response:
        """Current labels you may see, newest first, flags included; `withdrawn=true` for all."""
        query = self.parse_query()
        rows = visible_labels(request)
        if "project" in query:
            rows = rows.filter(run__project=permissions.project_or_404(request, query["project"]))
        rows = filter_by_owner(rows, request, Params({name: query[name] for name in ("run",) if name in query}))
        if not query.boolean("withdrawn"):
            rows = rows.filter(withdrawn_at=None)
        values = {name: query[name] for name in ("sample", "name", "author") if query.get(name)}
        values |= query.filters(source=SOURCES, split=SPLITS)
        columns = {"split": "step__split", "step": "step__step"}
        rows = rows.filter(**{columns.get(name, name): value for name, value in values.items()})
        return self.paginate(rows.order_by("-updated_at", "-pk"), serialize_label)

    def post(self, request: Request) -> Response:
        """Store labels in one action that can be undone: of `sample`, of several `samples`, or all of `labels`.

        A label of the same author, sample and name is replaced, and its history keeps it. After an error nothing is
        stored.
        """
        answers = parse_answers(self.parse_body())
        run = permissions.sample_or_404(request, answers[0].sample).step.run
        permissions.require_role(request, run.project, LABEL_WRITE_ROLE)
        action = store_labels(run, self.user, answers)
        samples = list(dict.fromkeys(answer.sample for answer in answers))
        response: dict[str, Any] = {"samples": len(samples), "changed": action.changed_count}
        if len(answers) == 1:
            author = answers[0].author or self.user.get_username()
            own = visible_labels(request).filter(sample=samples[0], name=answers[0].name, author=author)
            response["label"] = serialize_label(row) if (row := own.filter(source=answers[0].source).first()) else None
        return Response(response, status=201 if action.pk else 200)


def parse_answers(data: Params) -> list[Answer]:
    """Raises InvalidInputError."""
    if "labels" in data:
        rows = data["labels"]
        if len(data) > 1 or not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise InvalidInputError("`labels` must be a list of objects, without other fields.", "labels")
        for row in rows:
            check_names(row, ["sample", *ANSWER_FIELDS], "field of a label")
        return [parse_answer(Params(row), row.get("sample"), "sample") for row in rows]
    field = "samples" if "samples" in data else "sample"
    ids: Any = data["samples"] if field == "samples" else [data.get("sample")]
    if not isinstance(ids, list) or not ids or data.keys() >= {"sample", "samples"}:
        raise InvalidInputError("`samples` must be a list of ids, without `sample`.", "samples")
    return [parse_answer(data, sample, field) for sample in ids]


def parse_answer(data: Params, sample: Any, field: str) -> Answer:
    """The values are checked again when they are stored. Raises InvalidInputError."""
    if "value" not in data:
        raise InvalidInputError("`value` is required: the answer, or null to withdraw it.", "value")
    return Answer(
        sample=parse_text(sample, field, max_chars=60),
        name=data.text("name", 50),
        value=data["value"],
        rationale="" if data.get("rationale") is None else data["rationale"],
        source=data.choice("source", SOURCES, "human"),
        author=data.text("author", 150).strip(),
        start=data.integer("start"),
        end=data.integer("end"),
    )


class OneLabel(ApiView):
    """One label."""

    scopes = {"PATCH": "annotate"}
    takes = {"PATCH": {"withdrawn": "true: withdraw the label."}}

    def get(self, request: Request, pk: int) -> Response:
        """A label."""
        return Response(serialize_label(label_or_404(request, pk)))

    def patch(self, request: Request, pk: int) -> Response:
        """`withdrawn: true` withdraws a label that you stored (maintainers: any label)."""
        data = self.parse_body()
        label = label_or_404(request, pk)
        permissions.require_role(request, label.run.project, LABEL_WRITE_ROLE)
        if not data.boolean("withdrawn"):
            raise InvalidInputError("Send `withdrawn: true`. To change a label, store it again.", "withdrawn")
        if not can_withdraw_label(request.user, label):
            raise PermissionDenied("This is another user's label. Only a maintainer can withdraw it.")
        withdraw_label(label, self.user)
        return Response(serialize_label(label_or_404(request, pk)))


class LabelHistory(ApiView):
    """Earlier states of a label."""

    def get(self, request: Request, pk: int) -> Response:
        """The states that were replaced, newest first; `undone`: an undo replaced it."""
        return Response({"results": [serialize_change(row) for row in load_history(label_or_404(request, pk))]})


class ProjectRubric(ApiView):
    """The rubric of a project."""

    takes = {
        "GET": {"version": "A number; default: the newest. 0 is the rubric of a project that has none of its own."},
        "PUT": {
            "questions": "[{key, title, kind, options, minimum, maximum, required, description, range}].",
            "guidelines": "Markdown.",
            "base_version": "The version that you edited.",
        },
    }

    def get(self, request: Request, slug: str) -> Response:
        """A version of the rubric with its questions, and the numbers of all versions."""
        query = self.parse_query()
        project = permissions.project_or_404(request, slug)
        number = query.integer("version", maximum=2**31 - 1)
        versions = list_rubrics(project)
        return Response(serialize_rubric(load_rubric(project, number), versions))

    def put(self, request: Request, slug: str) -> Response:
        """Save the questions as the next version; 412 if it is not based on the newest. Needs the role maintainer."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, "maintainer")
        base = parse_integer(data.get("base_version"), "base_version")
        if base is None:
            raise InvalidInputError("`base_version` is required: the version that you edited.", "base_version")
        saved = save_rubric(project, self.user, data.get("questions"), data.get("guidelines"), base=base)
        return Response(serialize_rubric(saved, list_rubrics(project)))


def visible_labels(request: Request) -> QuerySet[Label]:
    rows = Label.objects.readable_by(request.user).filter(run__in=permissions.visible_runs(request))
    return rows.select_related("run__project", "step", "user", "rubric")


def label_or_404(request: Request, pk: int) -> Label:
    return row_or_404(visible_labels(request), pk, "label")
