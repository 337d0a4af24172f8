"""Guidance rules of a project, and what they select, for trainers."""

import hashlib
import json
from typing import Any

from django.http import HttpResponse, HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import serialize_guidance
from rollouts.errors import InvalidInputError
from rollouts.guidance import RuleVersion, SelectedRows, list_guidance, load_guidance, save_guidance, select_rows
from rollouts.lib import parse_integer


class ProjectGuidance(ApiView):
    """The guidance rules of a project."""

    takes = {
        "GET": {"version": "A number; default: the newest. 0 if the project has no rules."},
        "PUT": {
            "rules": "[{key, query, action, target, value}]. `action`: mask, drop, weight, reward. `target`: prompt, "
            "response.",
            "baseline": "trainer (default): masked samples count as the trainer does it. exclude: they do not.",
            "base_version": "The version that you edited.",
        },
    }

    def get(self, request: Request, slug: str) -> Response:
        """A version of the rules, and the numbers of all versions."""
        query = self.parse_query()
        project = permissions.project_or_404(request, slug)
        version = load_guidance(project, query.integer("version", maximum=2**31 - 1))
        return Response(serialize_guidance(version, list_guidance(project)))

    def put(self, request: Request, slug: str) -> Response:
        """Save the rules as the next version; 412 if it is not based on the newest. Needs the role maintainer."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, "maintainer")
        base = parse_integer(data.get("base_version"), "base_version")
        if base is None:
            raise InvalidInputError("`base_version` is required: the version that you edited.", "base_version")
        saved = save_guidance(project, self.user, data.get("rules"), data.get("baseline"), base=base)
        return Response(serialize_guidance(saved, list_guidance(project)))


class GuidanceSelection(ApiView):
    """What the guidance rules of a project select."""

    statuses = {"GET": ("304",)}

    def get(self, request: Request, slug: str) -> HttpResponseBase:
        """For trainers: keys of prompts and responses by rule, without texts. 304 if `If-None-Match` is its ETag.

        `selected` says how many a rule selects, `sent` how many of them are here. `complete` is false if some were left
        out of the search.
        """
        self.parse_query()
        project = permissions.project_or_404(request, slug)
        version = load_guidance(project)
        data = serialize_selection(version, select_rows(project, version, self.user))
        body = json.dumps(data, separators=(",", ":")).encode()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if request.headers.get("If-None-Match", "").removeprefix("W/") == etag:
            return HttpResponse(status=304, headers={"ETag": etag})
        return HttpResponse(body, content_type="application/json", headers={"ETag": etag})


def serialize_selection(version: RuleVersion, selection: SelectedRows) -> dict[str, Any]:
    return {
        "version": version.number,
        "baseline": version.baseline,
        "rules": [
            {
                "key": rule.key,
                "action": rule.action,
                "target": rule.target,
                "value": rule.value,
                "samples": found.samples,
                "selected": found.selected,
                "sent": found.sent,
                "complete": found.is_complete,
                "problem": found.problem,
            }
            for rule, found in zip(version.rules, selection.rules, strict=True)
        ],
        "prompts": selection.prompts,
        "responses": selection.responses,
    }
