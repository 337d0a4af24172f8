"""Which samples a step shows, whatever order its dumps came and were indexed in.

The rows of a step are a pure function of its dumps that have a body, ordered by arrival: of each source the newest
is live; live dumps share the samples that they both tell of, see `merging.py`; samples that only superseded dumps know
stay, hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from rollouts.errors import StorageUnavailableError
from rollouts.formats import ADDITIVE_FORMATS
from rollouts.indexing.merge import merge_dumps
from rollouts.models import Dump, DuplicateSource, Sample, Step
from rollouts.samples import (
    INDEX_ROW_COLUMNS,
    IndexRow,
    IndexRowBuilder,
    build_records,
    insert_index_rows,
    open_body_file,
    scan_dump_rows,
)

HELD_ROWS = 20_000  # of a step, as tuples in memory


def reconcile_step(step: Step, dump: Dump, slim: IndexRowBuilder) -> list[IndexRow] | None:
    """Rewrites the rows of a step in which `dump` is new or indexed again; `slim` are its rows. Sets `dump.state`.

    Returns the step's rows, unless they are too many to hold.

    Under the step's row lock. Rows of the same step that do not change keep their ids, so links and flags hold.
    """
    versions = sorted([*others(dump), dump], key=lambda version: (version.received_at, version.pk))
    live = current(versions)
    shown = {version.pk for version in live}
    old = [version for version in versions if version.pk not in shown]
    mark(dump, live, old)
    Sample.objects.filter(step=step).delete()
    if versions == [dump]:
        DuplicateSource.objects.filter(dump=dump).delete()
        found = slim.rows(step.pk, dump.pk)
        rows = list(found) if slim.count <= HELD_ROWS else None
        insert_index_rows(found if rows is None else rows)
        return rows
    rows, sights = merge_dumps(
        step.pk, live, old, lambda version: slim if version.pk == dump.pk else from_body(version)
    )
    insert_index_rows(rows)
    DuplicateSource.objects.filter(dump__in=versions).delete()
    DuplicateSource.objects.bulk_create(sights, batch_size=5000)
    return rows


def reconcile_step_again(step: Step) -> None:
    """The rows of a step once more, out of the bodies of its dumps. Under the step's row lock. Raises
    StorageUnavailable when one is gone."""
    same = {name: getattr(step, name) for name in ("run_id", "attempt_id", "split", "step_kind", "step")}
    last = Dump.objects.filter(**same, segment__isnull=False).select_related("segment").order_by("-pk").first()
    if last:
        reconcile_step(step, last, from_body(last))


def others(dump: Dump) -> QuerySet[Dump]:
    """The other dumps of the step that have a body."""
    same = {name: getattr(dump, name) for name in ("run_id", "attempt_id", "split", "step_kind", "step")}
    return Dump.objects.filter(**same, segment__isnull=False).exclude(pk=dump.pk).select_related("segment")


def current(versions: Sequence[Dump]) -> list[Dump]:
    """The live ones of the versions, which are in order of arrival: the newest of each source. A source that comes in
    chunks adds them up, until it starts anew with a higher generation."""
    generation: dict[tuple[str, str], int] = {}
    for version in versions:
        source = (version.producer, name_of(version))
        generation[source] = max(version.generation, generation.get(source, 0))
    newest: dict[tuple[str, str, int | None], Dump] = {}
    for version in versions:
        if version.generation == generation[version.producer, name_of(version)]:
            newest[version.producer, name_of(version), version.offset] = version
    live = {version.pk for version in newest.values()}
    return [version for version in versions if version.pk in live]


def name_of(version: Dump) -> str:
    """What the newest of is live: the source. A file of a step that a trainer dumped again is another artifact, whose
    key is in its source; only its path stays. Where versions add up, each is the newest of its own."""
    if version.format in ADDITIVE_FORMATS:
        return f"{version.source}#{version.sha256}"
    head, _, path = version.source.partition("/")
    return f"{Dump.ARTIFACT_PREFIX}/{path}" if head.startswith(Dump.ARTIFACT_PREFIX) else version.source


def mark(dump: Dump, live: Sequence[Dump], old: Sequence[Dump]) -> None:
    """States follow from who is live. Dumps that wait to be indexed again keep saying so."""
    state = Dump.State
    done = Dump.objects.filter(state__in=[state.INDEXED, state.SUPERSEDED])
    done.filter(pk__in=[version.pk for version in live]).update(state=state.INDEXED)
    done.filter(pk__in=[version.pk for version in old]).update(state=state.SUPERSEDED)
    dump.state = state.INDEXED if dump in live else state.SUPERSEDED


def from_body(dump: Dump) -> IndexRowBuilder:
    """The rows of a dump that was indexed before. Raises StorageUnavailable when its body is gone."""
    try:
        return slim_of(dump)
    except FileNotFoundError:  # folded into a segment just now
        dump.refresh_from_db()
    try:
        return slim_of(dump)
    except FileNotFoundError as error:
        raise StorageUnavailableError(f"The body of dump {dump.pk} is not on the disk; index the run again.") from error


def slim_of(dump: Dump) -> IndexRowBuilder:
    slim = IndexRowBuilder()
    with open_body_file(dump) as file:
        names = file.schema_arrow.names
    own = [name for name in ("num.acc", "num.response_length", "more") if name in names]
    for table in scan_dump_rows(dump, [*INDEX_ROW_COLUMNS, *own]):
        slim.add(build_records(table), table["id"].to_pylist(), table["prompt_key"].to_pylist())
    return slim
