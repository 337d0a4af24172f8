"""Flags: created, changed and withdrawn by users."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, filter_by_owner, row_or_404
from dashboard.api.serializers import serialize_flag
from rolloutdeck.protocol import FLAG_LABELS, SPLITS
from rollouts.errors import InvalidInputError
from rollouts.flags import flag_samples, withdraw_flag
from rollouts.labels import can_withdraw_label
from rollouts.lib import parse_text
from rollouts.models import Label, LabelQuerySet, get_flag_name

FLAG_WRITE_ROLE = permissions.ROLE_BY_SCOPE["annotate"]


class Flags(ApiView):
    """Flags."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {
            "run": "Its id.",
            "sample": "Its id.",
            "split": "train or eval.",
            "step": "A number.",
            "user": "The author of the flag.",
            "label": "bad, good or unsure.",
            "reason": "A key of the project's reasons.",
            "withdrawn": "true: also withdrawn flags.",
        },
        "POST": {
            "sample": "Its id.",
            "samples": "Ids of several samples of one run, instead of `sample`.",
            "label": "bad (default), good or unsure.",
            "reason": "A key of the project's reasons, or empty.",
            "text": "A comment.",
        },
    }

    def get(self, request: Request) -> Response:
        """Flags you may see, newest first, by `run sample split step user label reason`; `withdrawn=true` for all."""
        query = self.parse_query()
        rows = filter_by_owner(visible_flags(request), request, query)
        if not query.boolean("withdrawn"):
            rows = rows.filter(withdrawn_at=None)
        values = {name: query[name] for name in ("sample", "user") if query.get(name)}
        values |= query.filters(label=FLAG_LABELS, split=SPLITS)
        if query.get("reason"):
            values["name"] = get_flag_name(query["reason"])
        if "label" in values:
            values["answer"] = f" {values.pop('label')} "
        columns = {"user": "user__username", "split": "step__split", "step": "step__step"}
        rows = rows.filter(**{columns.get(name, name): value for name, value in values.items()})
        return self.paginate(rows.order_by("-updated_at", "-pk"), serialize_flag)

    def post(self, request: Request) -> Response:
        """Flag `sample` with `label` (bad, good, unsure), a `reason` of the project and `text`. Repeat to replace them.

        `samples` flags several samples or, after an error, none. Then the response counts them.
        """
        data = self.parse_body()
        field = "samples" if "samples" in data else "sample"
        ids: Any = data["samples"] if field == "samples" else [data.get("sample")]
        if not isinstance(ids, list) or not ids or data.keys() >= {"sample", "samples"}:
            raise InvalidInputError("`samples` must be a list of ids, without `sample`.", "samples")
        ids = [parse_text(sample_id, field, max_chars=60) for sample_id in ids]
        run, reason = permissions.sample_or_404(request, ids[0]).step.run, data.text("reason", 40)
        permissions.require_role(request, run.project, FLAG_WRITE_ROLE)
        author, human = self.user.get_username(), Label.Source.HUMAN  # another user may have imported it
        own = select_flags().filter(sample=ids[0], name=get_flag_name(reason), source=human, author=author)
        existed = field == "sample" and own.exists()
        label, text = data.get("label", "bad"), data.get("text", "")
        action = flag_samples(run, ids, self.user, label=label, reason=reason, text=text)
        if field == "samples":
            return Response({"samples": len(set(ids)), "changed": action.changed_count})
        return Response(serialize_flag(own.get()), status=200 if existed else 201)


class OneFlag(ApiView):
    """One flag."""

    scopes = {"PATCH": "annotate"}
    takes = {"PATCH": {"label": "bad, good or unsure.", "text": "A comment.", "withdrawn": "true: withdraw the flag."}}

    def get(self, request: Request, pk: int) -> Response:
        """A flag."""
        return Response(serialize_flag(flag_or_404(request, pk)))

    def patch(self, request: Request, pk: int) -> Response:
        """Change `label` or `text` of your own flag; `withdrawn: true` withdraws it (maintainers: any user's flag)."""
        data = self.parse_body()
        flag = flag_or_404(request, pk)
        permissions.require_role(request, flag.run.project, FLAG_WRITE_ROLE)
        if data.boolean("withdrawn"):
            if len(data) > 1:
                raise InvalidInputError("Withdraw a flag or change it, not both in one request.", "withdrawn")
            if not can_withdraw_label(request.user, flag):
                raise PermissionDenied("This is another user's flag. Only a maintainer can withdraw it.")
            withdraw_flag(flag, self.user)
        else:
            if flag.author != request.user.get_username():  # another user may have imported it
                raise PermissionDenied("This is another user's flag. Create your own.")
            label, text = data.get("label", flag.value), data.get("text", flag.rationale)
            flag_samples(flag.run, [flag.sample], self.user, label=label, reason=flag.reason, text=text)
        return Response(serialize_flag(flag_or_404(request, pk)))


def visible_flags(request: Request) -> QuerySet[Label]:
    rows: QuerySet[Label] = select_flags().readable_by(request.user)
    return rows.filter(run__in=permissions.visible_runs(request))


def select_flags() -> LabelQuerySet:
    return Label.objects.flags().select_related("run__project", "step", "user")


def flag_or_404(request: Request, pk: int) -> Label:
    return row_or_404(visible_flags(request), pk, "flag")
