"""Scans the Parquet bodies for the terms about texts and logged keys, newest step first.

The scan is exact in every script and inside words, because it does not use an index of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from time import monotonic
from typing import TYPE_CHECKING, Final

from django.utils.translation import gettext as _

from rollouts.errors import StorageUnavailableError
from rollouts.lib import Cache, CacheSize
from rollouts.models import Dump, DuplicateSource
from rollouts.query.ast import NUMBER_FIELDS, InvalidQueryError, LoggedKeyTerm, QueryNode, collect_leaves
from rollouts.query.body_parts import BodyFilePart, FileVersion, find_dumps, get_file_version, list_body_parts
from rollouts.query.grammar import NUMBER_KEYS, TEXT_KEYS, list_key_aliases
from rollouts.samples import scan_dump_rows

if TYPE_CHECKING:
    from rollouts.query.body_reader import PartMatches
    from rollouts.query.sql import QueryScope

MAX_FILES_AT_ONCE: Final = 8
MAX_TRIES: Final = 3  # compaction may move rows to another file during a scan


@dataclass(slots=True)
class TimeBudget:
    """The time limit of a search over many steps, newest step first. The search stops after `seconds`, but not before
    it has searched the steps from `before_step` on. A caller that repeats the search with the last `cursor` as
    `before_step` therefore makes progress. Steps up to `cursor` were not searched; it is None if all were."""

    seconds: float
    before_step: int | None = None
    cursor: int | None = None
    started: float = field(default_factory=monotonic)

    def is_over(self, remaining: Sequence[BodyFilePart]) -> bool:
        """Returns whether to stop before `remaining`. A file without known steps is always scanned."""
        steps = [part.newest_step for part in remaining if part.newest_step is not None]
        if len(steps) < len(remaining):
            return False
        newest = max(steps)
        if self.cursor is not None and newest <= self.cursor:  # another scan of the same search stopped here
            return True
        if monotonic() - self.started < self.seconds or (self.before_step is not None and newest >= self.before_step):
            return False
        self.cursor = newest if self.cursor is None else max(newest, self.cursor)
        return True


def scan_bodies(scope: QueryScope, node: QueryNode, time_budget: TimeBudget | None = None) -> list[str]:
    """Returns the ids of the samples of which any body matches `node`. Some may be outside the scope. Raises
    InvalidQueryError for a key that no body has, and StorageUnavailableError."""
    for _try in range(MAX_TRIES):
        try:
            return add_duplicate_sources(scope, scan_parts(list_body_parts(scope), node, time_budget))
        except (FileNotFoundError, StorageUnavailableError):
            continue
    raise StorageUnavailableError(_("Cannot read the sample texts of this run. Try again, or re-index the run."))


def add_duplicate_sources(scope: QueryScope, ids: list[str]) -> list[str]:
    """Adds the samples whose rows have another id in the body of a batch that joined them."""
    if not ids:
        return ids
    matches = set(ids)
    for dump in find_dumps(scope).filter(source__startswith=Dump.ARTIFACT_PREFIX).select_related("segment"):
        body_ids = [name for table in scan_dump_rows(dump, ["id"]) for name in table["id"].to_pylist()]
        sources = DuplicateSource.objects.filter(dump=dump).values_list("ordinal", "sample")
        matches.update(sample for at, sample in sources if at < len(body_ids) and body_ids[at] in matches)
    return list(matches) if len(matches) > len(ids) else ids


def scan_parts(parts: Sequence[BodyFilePart], node: QueryNode, time_budget: TimeBudget | None) -> list[str]:
    ids: list[str] = []
    keys: set[str] = set()
    for start in range(0, len(parts), MAX_FILES_AT_ONCE):
        end = start + MAX_FILES_AT_ONCE
        for part_ids, part_keys in find_matches(parts[start:end], node):
            ids += part_ids
            keys |= part_keys
        if time_budget and parts[end:] and time_budget.is_over(parts[end:]):
            return ids
    if parts:
        check_logged_keys(node, keys)
    return ids


# The weight of an entry is the number of its ids.
match_cache: Cache[tuple[BodyFilePart, QueryNode, FileVersion], PartMatches] = Cache(
    CacheSize.FOUND_IDS, lambda matches: len(matches[0]) + 10
)


def find_matches(parts: Sequence[BodyFilePart], node: QueryNode) -> list[PartMatches]:
    """Returns the matches of each part. Parts that are not cached are read together."""
    from rollouts.query.body_reader import read_matches

    keys = [(part, node, get_file_version(part)) for part in parts]
    matches = match_cache.get_many(
        keys, lambda missing: dict(zip(missing, read_matches([part for part, *_ in missing], node), strict=True))
    )
    return [matches[key] for key in keys]


def find_matching_texts(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Returns for each text whether it matches a regular expression of the query language, in linear time."""
    from rollouts.query.body_reader import match_texts

    return match_texts(pattern, texts)


def check_logged_keys(node: QueryNode, keys: set[str]) -> None:
    """Raises InvalidQueryError for a key that no scanned row has: a typo must not look like "no match"."""
    for leaf in collect_leaves(node):
        if isinstance(leaf, LoggedKeyTerm) and not keys.intersection(list_key_aliases(leaf.key)):
            similar = "".join(get_close_matches(leaf.key, [*NUMBER_FIELDS, *sorted(keys)], n=1))
            logged_keys = ", ".join(sorted(keys.difference(NUMBER_KEYS, TEXT_KEYS))[:20])
            parts = [
                _("No sample here has the key `{key}`."),
                _("Did you mean `{similar}`?") if similar else "",
                _("Logged keys: {keys}.") if logged_keys else "",
                _("To search for it as text, put it in quotes."),
            ]
            message = " ".join(filter(None, parts))
            raise InvalidQueryError(message.format(key=leaf.key, similar=similar, keys=logged_keys), leaf.span)
