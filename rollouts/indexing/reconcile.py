"""Decides which samples of a step are visible, independent of the order in which its dumps were indexed.

The rows of a step are a pure function of its dumps that have a body, ordered by `received_at`. The newest dump of each
source is current, the others are superseded. Current dumps are merged, see `merge.py`. Samples that only superseded
dumps contain remain as hidden rows.
"""

from collections.abc import Collection, Mapping, Sequence

import pyarrow as pa
from django.db.models import QuerySet

from rollouts import samples
from rollouts.errors import StorageUnavailableError
from rollouts.formats import ADDITIVE_FORMATS
from rollouts.indexing.merge import merge_dumps
from rollouts.models import Dump, DuplicateSource, Sample, Step, StepTemplate, get_step_position
from rollouts.storage import is_file_lost

MAX_RETURNED_ROWS = 20_000  # tuples in memory


def reconcile_step(
    step: Step, index_rows: Mapping[Dump, samples.IndexRowBuilder], *, needs_all_bodies: bool = False
) -> list[samples.IndexRow] | None:
    """Rewrites the rows of a step after dumps were indexed, and sets their `state`. The caller holds the step's lock.

    `index_rows` are the rows of these dumps. Returns the rows of the step, None if they are many. Sample ids are
    stable, so links and flags remain valid. Raises StorageUnavailableError if the body of another dump is missing or
    damaged. Such a dump counts as if it had no body if it is failed, and, unless `needs_all_bodies`, while it waits to
    be indexed.
    """
    others = find_step_dumps(step).exclude(pk__in=[dump.pk for dump in index_rows])
    dumps = sorted([*others, *index_rows], key=lambda dump: (dump.received_at, dump.pk))
    current, superseded = partition_versions(dumps)
    set_states(index_rows, current, superseded)
    Sample.objects.filter(step=step).delete()
    DuplicateSource.objects.filter(dump__in=dumps).delete()
    if len(dumps) == 1 and dumps[0] in index_rows:
        only = index_rows[dumps[0]]
        new_rows = only.rows(step.pk, dumps[0].pk)
        returned = list(new_rows) if only.count <= MAX_RETURNED_ROWS else None
        samples.insert_index_rows(new_rows if returned is None else returned)
        samples.restore_numbers(step)
        store_templates(step, only.templates)
        return returned
    lost: list[Dump] = []

    def load_rows(other: Dump) -> samples.IndexRowBuilder:
        if other in index_rows:
            return index_rows[other]
        try:
            return load_index_rows(other)
        except StorageUnavailableError:
            is_given_up = other.state == Dump.State.FAILED
            if not is_given_up and (needs_all_bodies or not other.will_be_indexed):
                raise
            lost.append(other)
            return samples.IndexRowBuilder()

    rows, duplicates, templates = merge_dumps(step.pk, current, superseded, load_rows)
    if lost:
        current, superseded = partition_versions([other for other in dumps if other not in lost])
        set_states(index_rows, current, superseded)
        rows, duplicates, templates = merge_dumps(step.pk, current, superseded, load_rows)
    samples.insert_index_rows(rows)
    DuplicateSource.objects.bulk_create(duplicates, batch_size=5000)
    samples.restore_numbers(step)
    store_templates(step, templates)
    return rows


def store_templates(step: Step, templates: Sequence[samples.Template]) -> None:
    """Replaces the templates of a step, and marks its samples as up to date with `samples.PROPERTIES_VERSION`.

    Does nothing if samples of the step were dropped, since its templates are those of all samples.
    """
    if step.dropped:
        return
    StepTemplate.objects.filter(step=step).delete()
    StepTemplate.objects.bulk_create(
        StepTemplate(
            step=step,
            key=template.key,
            kind=template.kind,
            text=template.text,
            samples=len(template.members),
            groups=template.groups,
            score_mean=template.score_mean,
        )
        for template in templates
    )
    Step.objects.filter(pk=step.pk).update(properties=samples.PROPERTIES_VERSION)


def reconcile_step_again(step: Step) -> None:
    """Rewrites the rows of a step from the bodies of its dumps. The caller holds the step's lock.

    Raises StorageUnavailableError if the body of a dump that is not failed is missing or damaged.
    """
    for last in find_step_dumps(step).order_by("-pk"):
        try:
            index_rows = load_index_rows(last)
        except StorageUnavailableError:
            if last.state != Dump.State.FAILED:
                raise
            continue
        reconcile_step(step, {last: index_rows}, needs_all_bodies=True)
        return
    Sample.objects.filter(step=step).delete()
    DuplicateSource.objects.filter(dump__in=Dump.objects.filter(**get_step_position(step))).delete()
    store_templates(step, [])


def find_step_dumps(row: Step | Dump) -> QuerySet[Dump]:
    """Returns the dumps of a step that have a body."""
    return Dump.objects.filter(**get_step_position(row), segment__isnull=False).select_related("segment")


def partition_versions(dumps: Sequence[Dump]) -> tuple[list[Dump], list[Dump]]:
    """Returns the current and the superseded dumps, of dumps in order of arrival.

    The newest dump of each source is current. If a source sends chunks, all chunks of its highest generation are.
    """
    generations: dict[tuple[str, str], int] = {}
    for dump in dumps:
        source = get_source_key(dump)
        generations[source] = max(dump.generation, generations.get(source, 0))
    newest: dict[tuple[tuple[str, str], int | None], Dump] = {}
    for dump in dumps:
        source = get_source_key(dump)
        if dump.generation == generations[source]:
            newest[source, dump.offset] = dump
    current = set(newest.values())
    return [dump for dump in dumps if dump in current], [dump for dump in dumps if dump not in current]


def get_source_key(dump: Dump) -> tuple[str, str]:
    """Returns the producer and the source of a dump. Of dumps with the same key, the newest is current.

    If a trainer writes a file of a step again, it is in another artifact, whose key is a part of the source. So only
    the path in the artifact is used. The dumps of an additive format are all current.
    """
    if dump.format in ADDITIVE_FORMATS:
        return dump.producer, f"{dump.source}#{dump.sha256}"
    path = dump.source.partition("/")[2]
    return dump.producer, f"{Dump.ARTIFACT_PREFIX}/{path}" if dump.is_from_artifact else dump.source


def set_states(indexed_now: Collection[Dump], current: Sequence[Dump], superseded: Sequence[Dump]) -> None:
    """Stores the states of the dumps. Those that are queued to be indexed again keep theirs. Of dumps that were just
    indexed, sets the attribute."""
    state = Dump.State
    indexed = Dump.objects.filter(state__in=[state.INDEXED, state.SUPERSEDED])
    indexed.filter(pk__in=[other.pk for other in current]).update(state=state.INDEXED)
    indexed.filter(pk__in=[other.pk for other in superseded]).update(state=state.SUPERSEDED)
    for dump in indexed_now:
        dump.state = state.INDEXED if dump in current else state.SUPERSEDED


def load_index_rows(dump: Dump) -> samples.IndexRowBuilder:
    """Returns the index rows of a dump, built from its body.

    Raises StorageUnavailableError if the body is missing or damaged, OSError if the disk or the bucket does not answer.
    """
    try:
        try:
            return build_index_rows(dump)
        except FileNotFoundError:  # the body was just moved into a segment
            dump.refresh_from_db()
            return build_index_rows(dump)
    except (OSError, pa.ArrowException) as error:
        if not is_file_lost(error):
            raise
        is_missing = isinstance(error, FileNotFoundError)
        problem = "is not on the disk" if is_missing else f"is damaged ({error})"
        raise StorageUnavailableError(
            f"The body of dump {dump.pk} {problem}; index the run again, or run `rolloutdeck fsck --repair`."
        ) from error


def build_index_rows(dump: Dump) -> samples.IndexRowBuilder:
    index_rows = samples.IndexRowBuilder()
    with samples.open_body_file(dump) as file:
        schema = file.schema_arrow
        names = dict.fromkeys(name for name in samples.INDEX_ROW_COLUMNS if name in schema.names)
        columns = [*(names | dict.fromkeys(samples.list_reward_columns(schema)))]
        for table in samples.scan_dump_rows_in_file(dump, file, columns):
            index_rows.add(samples.build_records(table), table["id"].to_pylist(), table["prompt_key"].to_pylist())
    return index_rows
