"""How a project arranges its charts: which are pinned, in which order, which are wide, and its charts of queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from django.contrib.auth.models import User
from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.charts.query_curves import MAX_QUERY_CHARS, ChartQuery
from rollouts.errors import InvalidInputError, OutdatedError
from rollouts.lib import parse_text
from rollouts.models import ChartArrangement, Project

MAX_KEYS: Final = {"pinned": 40, "order": 1000, "wide": 200, "queries": 40}
MAX_KEY_CHARS: Final = 10 + 2 * MAX_QUERY_CHARS


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`version` identifies the state that a change is based on."""

    pinned: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    version: int = 0

    def serialize(self) -> dict[str, Any]:
        return asdict(self)


def load_arrangement(project: Project) -> Arrangement:
    row = ChartArrangement.objects.filter(project=project).first()
    return build_arrangement(row) if row else Arrangement()


def build_arrangement(row: ChartArrangement) -> Arrangement:
    return Arrangement(tuple(row.pinned), tuple(row.order), tuple(row.wide), tuple(row.queries), row.version)


@transaction.atomic
def save_arrangement(project: Project, changes: Mapping[str, Any], version: int, by: User) -> Arrangement:
    """Replaces the lists in `changes`. Raises InvalidInputError, and OutdatedError if another user changed the charts
    since `version`."""
    values = {name: parse_keys(name, changes[name]) for name in MAX_KEYS if name in changes}
    row = ChartArrangement.objects.select_for_update().get_or_create(project=project)[0]
    if row.version != version:
        message = _("Another user changed the charts of this project. Yours were not saved; the page shows theirs now.")
        raise OutdatedError(message, "version")
    for name, keys in values.items():
        setattr(row, name, keys)
    row.version += 1
    row.updated_by = by
    row.save()
    return build_arrangement(row)


def parse_keys(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or len(value) > MAX_KEYS[name]:
        message = _("`{name}` must be a list of at most {count} names of charts.")
        raise InvalidInputError(message.format(name=name, count=MAX_KEYS[name]), name)
    keys = [parse_text(key, name, max_chars=MAX_KEY_CHARS) for key in value]
    if name == "queries":
        keys = [ChartQuery.parse(key).text for key in keys]
    return list(dict.fromkeys(filter(None, keys)))
