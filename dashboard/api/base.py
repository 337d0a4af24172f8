"""What the views of the API share: their base class, parameters, and lists in pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import Http404
from rest_framework.pagination import PageNumberPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.search_limits import set_search_person
from rollouts.errors import InvalidInputError
from rollouts.lib import MAX_INT64, parse_boolean, parse_choice, parse_integer, parse_text

M = TypeVar("M", bound=Model)


class Params(dict[str, Any]):
    """The JSON object or the query parameters of a request. The methods raise InvalidInputError."""

    def text(self, name: str, max_chars: int) -> str:
        return parse_text(self.get(name), name, max_chars=max_chars)

    def integer(self, name: str, *, minimum: int = 0, maximum: int = MAX_INT64) -> int | None:
        return parse_integer(self.get(name), name, minimum=minimum, maximum=maximum)

    def boolean(self, name: str, default: bool = False) -> bool:
        return parse_boolean(self.get(name, default), name)

    def choice(self, name: str, allowed: Sequence[str], default: str = "") -> str:
        return parse_choice(self.get(name), name, allowed, default=default)

    def attempt(self) -> str:
        """The attempt whose samples are requested. Empty for the current ones."""
        return "" if self.get("attempt") == "current" else self.text("attempt", 120)

    def step(self) -> int | None:
        """Trainers may number steps from below 0."""
        return self.integer("step", minimum=-MAX_INT64)

    def filters(self, **allowed: Sequence[str]) -> dict[str, Any]:
        """Returns {name: value} of those parameters that are set: `step`, and the names with their allowed values."""
        values: dict[str, Any] = {name: self.choice(name, words) or None for name, words in allowed.items()}
        values["step"] = self.step()
        return {name: value for name, value in values.items() if value is not None}


class ApiPagination(PageNumberPagination):
    """`?page=` from 1, `?page_size=` up to 500. A page is {"next", "previous", "count", "results"}."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 500

    def paginate_queryset(self, queryset: Any, request: Any, view: Any = None) -> list[Any]:
        for name, limit in (("page", 10**9), ("page_size", self.max_page_size)):
            raw = request.query_params.get(name, "1")
            if not (raw.isascii() and raw.isdigit() and 1 <= len(raw) < 11 and 1 <= int(raw) <= limit):
                raise InvalidInputError(f"`{name}` must be a whole number from 1 to {limit}.", name)
        return super().paginate_queryset(queryset, request, view=view) or []

    def get_paginated_response(self, data: Any) -> Response:
        assert self.page is not None  # paginate_queryset was called before
        links = {"next": self.get_next_link(), "previous": self.get_previous_link()}
        return Response({**links, "count": self.page.paginator.count, "results": data})


class ApiView(APIView):
    """A view states once what its methods accept. Requests are checked against it, and the schema shows it."""

    scopes: ClassVar[dict[str, str]] = {}  # method -> scope of the token; default: read for GET, admin for the others
    paged = False
    sends: ClassVar[tuple[str, ...]] = ()  # media types, if they are not JSON; for the schema
    statuses: ClassVar[dict[str, tuple[str, ...]]] = {}  # method -> statuses of success next to 200; for the schema
    takes: ClassVar[dict[str, dict[str, str]]] = {}  # method -> query parameter or body field -> description

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        set_search_person(request.user)

    @property
    def user(self) -> User:
        return permissions.require_user(self.request)

    def parse_body(self) -> Params:
        """The JSON object of the body. Raises InvalidInputError for unknown fields."""
        known, data = self.takes[str(self.request.method)], self.request.data
        if not isinstance(data, dict):
            raise InvalidInputError("The body must be a JSON object.")
        check_names(data, known, "field")
        return Params(data)

    def parse_query(self) -> Params:
        """The query parameters. Raises InvalidInputError for unknown names and for values that no database stores."""
        known = [*self.takes.get(str(self.request.method), {}), *(("page", "page_size") if self.paged else ())]
        check_names(self.request.query_params, known, "parameter")
        params = self.request.query_params.items()
        return Params({name: parse_text(value, name, max_chars=8000) for name, value in params})

    def paginate(self, rows: Any, serialize: Callable[[Any], Any], extra: Mapping[str, Any] | None = None) -> Response:
        """The requested page of `rows`, and the fields of `extra`."""
        return self.paginate_together(rows, lambda page: [serialize(row) for row in page], extra)

    def paginate_together(
        self, rows: Any, serialize: Callable[[list[Any]], list[Any]], extra: Mapping[str, Any] | None = None
    ) -> Response:
        """The same where `serialize` gets all rows of the page at once, to load what they need together."""
        paginator = ApiPagination()
        page = paginator.paginate_queryset(rows, self.request)
        response = paginator.get_paginated_response(serialize(list(page)))
        return Response({**(extra or {}), **response.data}) if extra else response


def check_names(names: Iterable[str], known: Iterable[str], what: str) -> None:
    if unknown := next((name for name in names if name not in known), None):
        accepted = ", ".join(known) or "none"
        raise InvalidInputError(f"{unknown[:40]!r} is no {what} of this request. Known: {accepted}.", unknown[:40])


def filter_by_owner(rows: QuerySet[M], request: Request, query: Params) -> QuerySet[M]:
    """Filters rows by `project` and `run`, if they are set. Raises Http404."""
    if "project" in query:
        rows = rows.filter(project=permissions.project_or_404(request, query["project"]))
    if "run" in query:
        rows = rows.filter(run=permissions.run_or_404(request, query["run"]))
    return rows


def row_or_404(rows: QuerySet[M], pk: int, what: str) -> M:
    row = rows.filter(pk=pk).first()
    if row is None:
        raise Http404(f"There is no {what} {pk}, or you have no access to it.")
    return row
