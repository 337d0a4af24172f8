"""Flags: raised, changed and withdrawn by people."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import FLAG_LABELS, SPLITS
from rollouts.errors import InvalidInputError
from rollouts.flags import can_withdraw_flag, flag_samples, withdraw_flag
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text
from rollouts.models import Flag


class Flags(APIView):
    """Flags."""

    scopes = {"POST": "annotate"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "run": "Its id.",
            "sample": "Its id.",
            "split": "train or eval.",
            "step": "A number.",
            "user": "Who flagged.",
            "label": "bad, good or unsure.",
            "reason": "A key of the project's reasons.",
            "withdrawn": "true: also those that were withdrawn.",
        },
        "POST": {
            "sample": "Its id.",
            "samples": "Or the ids of many, all of one run.",
            "label": "bad (default), good or unsure.",
            "reason": "A key of the project's reasons, or empty.",
            "text": "Anything.",
        },
    }

    def get(self, request: Request) -> Response:
        """Flags you may see, newest first, by `run sample split step user label reason`; `withdrawn=true` for all."""
        query = parse_query_params(request, self)
        rows = Flag.objects.filter(run__in=permissions.visible_runs(request)).select_related("run", "step", "user")
        if "run" in query:
            rows = rows.filter(run=permissions.run_or_404(request, query["run"]))
        if not parse_boolean(query.get("withdrawn", "false"), "withdrawn"):
            rows = rows.filter(withdrawn_at=None)
        parse_choice(query.get("label"), "label", FLAG_LABELS, default="")
        parse_choice(query.get("split"), "split", SPLITS, default="")
        step = parse_integer(query.get("step"), "step")
        columns = {
            "sample": "sample",
            "user": "user__username",
            "label": "label",
            "reason": "reason",
            "split": "step__split",
        }
        rows = rows.filter(**{columns[name]: query[name] for name in columns if query.get(name)})
        rows = rows if step is None else rows.filter(step__step=step)
        pages = ApiPagination()
        page = pages.paginate_queryset(rows.order_by("-updated_at", "-pk"), request, self) or []
        return pages.get_paginated_response([serializers.serialize_flag(row) for row in page])

    def post(self, request: Request) -> Response:
        """Flag `sample` with `label` (bad, good, unsure), a `reason` of the project and `text`; again replaces them.

        With `samples` many in one act: all or none; the answer counts them.
        """
        data = parse_json_body(request, self)
        if "samples" in data:
            return flag_many_samples(request, data)
        sample = permissions.sample_or_404(request, parse_text(data.get("sample"), "sample", most=60))
        permissions.require_role(request, sample.step.run.project, permissions.ROLE_BY_SCOPE["annotate"])
        label, reason = data.get("label", "bad"), parse_text(data.get("reason"), "reason", most=40)
        mine = Flag.objects.filter(sample=sample.pk, user=request.user.pk, reason=reason)
        before = mine.exists()
        by, words = permissions.require_user(request), data.get("text", "")
        flag_samples(sample.step.run, [sample.pk], by, label=label, reason=reason, text=words)
        flag = mine.select_related("run__project", "step", "user").get()
        return Response(serializers.serialize_flag(flag), status=200 if before else 201)


class OneFlag(APIView):
    """One flag."""

    scopes = {"PATCH": "annotate"}
    takes: ClassVar[AcceptedParams] = {
        "PATCH": {"label": "bad, good or unsure.", "text": "Anything.", "withdrawn": "true: take it back."}
    }

    def get(self, request: Request, pk: int) -> Response:
        """A flag."""
        return Response(serializers.serialize_flag(flag_or_404(request, pk)))

    def patch(self, request: Request, pk: int) -> Response:
        """Change `label` or `text` of your own flag; `withdrawn: true` takes it back (maintainers: anybody's)."""
        data = parse_json_body(request, self)
        flag = flag_or_404(request, pk)
        permissions.require_role(request, flag.run.project, permissions.ROLE_BY_SCOPE["annotate"])
        wanted = parse_boolean(data.get("withdrawn", False), "withdrawn")
        if wanted and (len(data) > 1):
            raise InvalidInputError("Withdraw a flag or change it, not both at once.", "withdrawn")
        if wanted:
            if not can_withdraw_flag(request.user, flag):
                raise PermissionDenied("This is somebody else's flag; a maintainer can withdraw it.")
            withdraw_flag(flag, permissions.require_user(request))
            return Response(serializers.serialize_flag(flag_or_404(request, pk)))
        if flag.user_id != request.user.pk:
            raise PermissionDenied("This is somebody else's flag; raise one of your own.")
        label, words = data.get("label", flag.label), data.get("text", flag.text)
        by = permissions.require_user(request)
        flag_samples(flag.run, [flag.sample], by, label=label, reason=flag.reason, text=words)
        return Response(serializers.serialize_flag(flag_or_404(request, pk)))


def flag_many_samples(request: Request, data: dict[str, Any]) -> Response:
    """Flags the samples of one run. Raises BadInput, Http404."""
    ids = data["samples"]
    if not isinstance(ids, list) or not ids or "sample" in data:
        raise InvalidInputError("`samples` must be a list of ids, and then there is no `sample`.", "samples")
    run = permissions.sample_or_404(request, parse_text(ids[0], "samples", most=60)).step.run
    permissions.require_role(request, run.project, permissions.ROLE_BY_SCOPE["annotate"])
    act = flag_samples(
        run,
        [parse_text(one, "samples", most=60) for one in ids],
        permissions.require_user(request),
        label=data.get("label", "bad"),
        reason=parse_text(data.get("reason"), "reason", most=40),
        text=data.get("text", ""),
    )
    return Response({"samples": len(set(ids)), "changed": len(act.before["was"])})


def flag_or_404(request: Request, pk: int) -> Flag:
    rows = Flag.objects.filter(run__in=permissions.visible_runs(request)).select_related("run__project", "step", "user")
    flag = rows.filter(pk=pk).first() if pk < 2**63 else None
    if flag is None:
        raise Http404(f"There is no flag {pk} that you may see.")
    return flag
