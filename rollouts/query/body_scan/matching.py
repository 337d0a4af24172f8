"""Scans the Parquet bodies for the terms about texts and logged keys, newest step first.

The scan is exact in every script and inside words, because it does not use an index of words.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import redis
from django.conf import settings
from django.utils.translation import gettext as _

from rollouts.errors import RolloutError, SearchInterruptedError, StorageUnavailableError
from rollouts.lib import Cache, CacheSize
from rollouts.models import Dump, DuplicateSource
from rollouts.query.ast import NUMBER_FIELDS, InvalidQueryError, LoggedKeyTerm, QueryNode, collect_leaves
from rollouts.query.body_scan.parts import (
    BodyFilePart,
    FileVersion,
    find_dumps,
    get_file_version,
    list_body_parts,
    take_parts,
)
from rollouts.query.body_scan.request import ScanRequest, get_scan_request, start_scan_request
from rollouts.query.body_scan.shared_scan import SharedScan, share_scan
from rollouts.query.grammar import NUMBER_KEYS, TEXT_KEYS, list_key_aliases
from rollouts.samples import scan_dump_rows

if TYPE_CHECKING:
    from rollouts.query.body_scan.reader import PartMatches
    from rollouts.query.sql import QueryScope

log = logging.getLogger(__name__)

FILES_OF_HELPER: Final = 8  # that it takes at a time
MAX_HELPER_SECONDS: Final = 2.0  # without an answer; then this process scans what helpers have taken
HELPER_PAUSE: Final = 0.02
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

    def has_searched(self, part: BodyFilePart) -> bool:
        """Returns whether a file is before the cursor, so that the next part of the search leaves it out."""
        return self.cursor is None or part.newest_step is None or part.newest_step > self.cursor


def scan_bodies(scope: QueryScope, node: QueryNode, time_budget: TimeBudget | None = None) -> list[str]:
    """Returns the ids of the samples of which any body matches `node`. Some may be outside the scope. Raises
    InvalidQueryError for a key that no body has, unless the scope allows it, SearchInterruptedError and
    StorageUnavailableError."""
    last: Exception | None = None
    for _try in range(MAX_TRIES):
        try:
            parts = list_body_parts(scope)
            ids = scan_parts(parts, node, time_budget, may_lack_keys=scope.may_lack_keys)
            return add_duplicate_sources(scope, ids)
        except (FileNotFoundError, StorageUnavailableError) as error:
            last = error
    if isinstance(last, SearchInterruptedError):
        raise last
    raise StorageUnavailableError(
        _("Cannot read the sample texts of this run. Try again, or re-index the run.")
    ) from last


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


def scan_parts(
    parts: Sequence[BodyFilePart], node: QueryNode, time_budget: TimeBudget | None, *, may_lack_keys: bool
) -> list[str]:
    matches: list[PartMatches] = []
    left, may_share, started = list(parts), True, monotonic()
    while left and not (matches and time_budget and time_budget.is_over(left)):
        is_slow = matches and monotonic() - started > settings.SHARE_SEARCH_SECONDS
        if may_share and is_slow and len(left) > FILES_OF_HELPER:
            may_share = False
            with share_scan(left, node) as scan:
                if scan:
                    found, left = scan_with_helpers(scan, time_budget)
                    matches += found
                    continue
        batch = take_parts(left)
        matches += find_matches(batch, node)
        left = left[len(batch) :]
    if parts and not left and not may_lack_keys:
        check_logged_keys(node, set().union(*(keys for _ids, keys in matches)))
    return [pk for ids, _keys in matches for pk in ids]


def scan_with_helpers(scan: SharedScan, time_budget: TimeBudget | None) -> tuple[list[PartMatches], list[BodyFilePart]]:
    """Returns the matches, and the files that neither this process nor a helper has scanned."""
    request = get_scan_request()
    found: dict[int, PartMatches] = {}
    failed: set[int] = set()  # positions of files that a helper could not scan

    def receive() -> bool:
        matches = scan.receive()
        found.update({at: each for at, each in matches.items() if each is not None})
        failed.update(at for at, each in matches.items() if each is None)
        return bool(matches)

    def list_left() -> list[BodyFilePart]:
        return [part for at, part in enumerate(scan.parts) if at not in found]

    try:
        while positions := scan.take(FILES_OF_HELPER):
            matches = find_matches([scan.parts[at] for at in positions], scan.node)
            found |= dict(zip(positions, matches, strict=True))
            receive()
            if time_budget and (left := list_left()) and time_budget.is_over(left):
                return [found[at] for at in found if time_budget.has_searched(scan.parts[at])], left
        started = received_at = monotonic()
        while len(found) + len(failed) < len(scan.parts) and monotonic() - received_at < MAX_HELPER_SECONDS:
            request.check_cancelled()
            if monotonic() - started > request.remaining:
                raise request.build_time_error()
            if receive():
                received_at = monotonic()
            else:
                sleep(HELPER_PAUSE)
        request.used += monotonic() - started
    except redis.RedisError as error:
        log.warning("A search goes on without helpers: %s", error)
    return list(found.values()), list_left()


def help_scan(scan_id: str) -> int:
    """Scans files of another process's search until all are taken or it is over. Returns their number. Raises
    redis.RedisError."""
    scan, done = SharedScan.load(scan_id), 0
    while scan and (positions := scan.take(FILES_OF_HELPER)):
        matches: Sequence[PartMatches | None] = [None] * len(positions)
        try:
            with start_scan_request(ScanRequest(max_seconds=scan.seconds)):
                matches = find_matches([scan.parts[at] for at in positions], scan.node)
        except (RolloutError, FileNotFoundError) as error:
            log.warning("The search %s does not get its files: %s", scan_id, error)
            return done
        finally:
            scan.send(positions, matches)
        done += len(positions)
    return done


# The weight of an entry is the number of its ids.
match_cache: Cache[tuple[BodyFilePart, QueryNode, FileVersion], PartMatches] = Cache(
    CacheSize.FOUND_IDS, lambda matches: len(matches[0]) + 10
)


def find_matches(parts: Sequence[BodyFilePart], node: QueryNode) -> list[PartMatches]:
    """Returns the matches of each part. Parts that are not cached are read together."""
    from rollouts.query.body_scan.reader import read_matches

    keys = [(part, node, get_file_version(part)) for part in parts]
    matches = match_cache.get_many(
        keys, lambda missing: dict(zip(missing, read_matches([part for part, *_ in missing], node), strict=True))
    )
    return [matches[key] for key in keys]


def find_matching_texts(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Returns for each text whether it matches a regular expression of the query language, in linear time."""
    from rollouts.query.body_scan.reader import match_texts

    return match_texts(pattern, texts)


def find_regex_error(pattern: str) -> str:
    """Returns why a regular expression is not one of the query language, empty if it is."""
    from rollouts.query.body_scan.reader import find_pattern_error

    return find_pattern_error(pattern)


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
