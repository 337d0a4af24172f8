"""Lists come in pages: {"next", "previous", "results", "count"}."""

from __future__ import annotations

from typing import Any

from rest_framework.pagination import PageNumberPagination
from rest_framework.response import Response

from rollouts.errors import InvalidInputError


class ApiPagination(PageNumberPagination):
    """`?page=` from 1, `?page_size=` up to 500."""

    page_size_query_param = "page_size"
    max_page_size = 500

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> list[Any] | None:
        for name, most in (("page", 10**9), ("page_size", self.max_page_size)):
            raw = request.query_params.get(name, "1")
            if not (raw.isascii() and raw.isdigit() and 1 <= len(raw) < 11 and 1 <= int(raw) <= most):
                raise InvalidInputError(f"`{name}` must be a whole number from 1 to {most}.", name)
        return super().paginate_queryset(queryset, request, view=view)

    def get_paginated_response(self, data: Any) -> Response:
        assert self.page is not None  # paginate_queryset came first
        return Response(
            {
                "next": self.get_next_link(),
                "previous": self.get_previous_link(),
                "count": self.page.paginator.count,
                "results": data,
            }
        )
