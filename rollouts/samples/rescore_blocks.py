"""The results of re-scores: blocks of a step, and their numbers in the rows of its samples.

The blocks are the truth and refer to the ids of samples. The numbers in the rows are an index, like the rows: they are
written again from the blocks whenever the rows of a step are. All functions expect the lock of the step's row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson
import zstandard
from django.db import connection
from django.db.models import Avg, F
from django.db.models.functions import Greatest
from django.utils import timezone

from rollouts.models import Queue, Rescore, RescoreBlock, Sample, Step, build_rescore_column

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

MAX_BLOCK_RESULTS: Final = 5000
ROWS_PER_STATEMENT: Final = 1000

BlockContent = dict[str, Any]  # {sample id: number, or {value, error, parts, rationale}}


@dataclass(frozen=True, slots=True)
class RescoreResult:
    """What a function or a model said about a sample: a number, or why there is none."""

    value: float | None = None
    error: str = ""
    parts: Mapping[str, Any] = field(default_factory=dict)
    rationale: str = ""

    @classmethod
    def unpack(cls, packed: Any) -> RescoreResult:
        return cls(**packed) if isinstance(packed, dict) else cls(packed)

    def pack(self) -> Any:
        """Returns what `unpack` reads: only the number if there is nothing else."""
        if not (self.error or self.parts or self.rationale):
            return self.value
        values = {"value": self.value, "error": self.error, "parts": dict(self.parts), "rationale": self.rationale}
        return {name: value for name, value in values.items() if value not in (None, "", {})}

    def list_numbers(self, rescore: Rescore) -> dict[str, float | None]:
        """Returns the numbers by key of the row; None if it has none."""
        known = {name: self.parts.get(name) for name in rescore.parts}
        numbers = {name: value if isinstance(value, int | float) else None for name, value in known.items()}
        return {rescore.key: self.value} | {rescore.part_key(name): value for name, value in numbers.items()}


def pack_block(content: BlockContent) -> bytes:
    return zstandard.compress(orjson.dumps(content), 3)


def unpack_block(data: Any) -> BlockContent:
    content: BlockContent = orjson.loads(zstandard.decompress(bytes(data)))
    return content


def load_results(step: Step, rescore: Rescore, samples: Collection[str] | None = None) -> dict[str, RescoreResult]:
    """Returns the results of the step by sample id, or those of some samples."""
    results: dict[str, RescoreResult] = {}
    for data in RescoreBlock.objects.filter(step=step, rescore=rescore).values_list("data", flat=True):
        content = unpack_block(data)
        ids = content.keys() if samples is None else content.keys() & samples
        results |= {sample: RescoreResult.unpack(content[sample]) for sample in ids}
    return results


def store_results(step: Step, rescore: Rescore, results: Mapping[str, RescoreResult]) -> tuple[int, int]:
    """Stores results of samples of the step; a sample's earlier result is replaced. Returns by how much the number of
    results, and that of errors, has grown."""
    remaining = {sample: result.pack() for sample, result in results.items()}
    blocks = list(RescoreBlock.objects.filter(step=step, rescore=rescore).order_by("pk"))
    before: list[RescoreResult] = []
    for block in blocks:
        content = unpack_block(block.data)
        if known := content.keys() & remaining.keys():
            before += [RescoreResult.unpack(content[sample]) for sample in known]
            content |= {sample: remaining.pop(sample) for sample in known}
            save_block(block, content)
    if remaining:
        last = blocks[-1] if blocks else None
        if last and last.count + len(remaining) <= MAX_BLOCK_RESULTS:
            save_block(last, unpack_block(last.data) | remaining)
        else:
            save_block(RescoreBlock(step=step, rescore=rescore), remaining)
    write_numbers(step, {sample: result.list_numbers(rescore) for sample, result in results.items()})
    compute_means(step, rescore)
    errors = count_errors(results.values()) - count_errors(before)
    return len(results) - len(before) - errors, errors


def count_errors(results: Iterable[RescoreResult]) -> int:
    return sum(result.value is None for result in results)


def save_block(block: RescoreBlock, content: BlockContent) -> None:
    block.count, block.data = len(content), pack_block(content)
    block.save()


def write_numbers(step: Step, numbers: Mapping[str, Mapping[str, float | None]]) -> None:
    """Adds numbers to the rows of samples. None removes a number."""
    table, column = (connection.ops.quote_name(name) for name in (Sample._meta.db_table, "rescores"))
    if connection.vendor == "postgresql":
        merged = f"jsonb_strip_nulls(COALESCE({column}, '{{}}'::jsonb) || %s::jsonb)"
    else:
        merged = f"json_patch(COALESCE({column}, '{{}}'), %s)"
    statement = f"UPDATE {table} SET {column} = {merged} WHERE id = %s AND step_id = %s"  # noqa: S608  names from code
    rows = [(orjson.dumps(values).decode(), sample, step.pk) for sample, values in sorted(numbers.items())]
    with connection.cursor() as cursor:
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            cursor.executemany(statement, rows[start : start + ROWS_PER_STATEMENT])


def restore_numbers(step: Step) -> None:
    """Writes all numbers into the rows of the step, which were just written, and the means of the step."""
    rescores: dict[int, Rescore] = {}
    for block in RescoreBlock.objects.filter(step=step).select_related("rescore").order_by("pk"):
        rescores[block.rescore_id] = block.rescore
        results = {sample: RescoreResult.unpack(packed) for sample, packed in unpack_block(block.data).items()}
        write_numbers(step, {sample: result.list_numbers(block.rescore) for sample, result in results.items()})
    for rescore in rescores.values():
        compute_means(step, rescore)


def compute_means(step: Step, rescore: Rescore) -> None:
    """Writes the means of a re-score at the step, each trajectory once. If samples were dropped since the re-score was
    made, they stay those of all samples."""
    is_older = step.dropped_at is not None and rescore.created_at < step.dropped_at
    if step.dropped and is_older and rescore.key in (step.rescores or {}):
        return
    columns = {f"mean{at}": build_rescore_column(key) for at, key in enumerate(rescore.list_columns().values())}
    samples = Sample.objects.visible().filter(step=step, final=True)
    values = samples.order_by().aggregate(**{name: Avg(column) for name, column in columns.items()})
    means = dict(zip(rescore.list_columns().values(), values.values(), strict=True))
    others = {key: mean for key, mean in (step.rescores or {}).items() if key not in means}
    step.rescores = others | {key: mean for key, mean in means.items() if mean is not None}
    Step.objects.filter(pk=step.pk).update(rescores=step.rescores)


def load_rescore_names(steps: Collection[int], reader: User | AnonymousUser | None = None) -> dict[str, str]:
    """Returns {key: name} of the re-scores of the runs of these steps. Empty for a reader who reviews a blind queue."""
    if not steps or (reader is not None and reader.pk and Queue.objects.blind_for(reader.pk).queues):
        return {}
    rescores = Rescore.objects.filter(run__in=Step.objects.filter(pk__in=list(steps)).values("run"))
    return {key: name for rescore in rescores for name, key in rescore.list_columns().items()}


def name_values(values: Mapping[str, float] | None, names: Mapping[str, str]) -> dict[str, float]:
    """Returns {name of a re-score: number} of a row."""
    return {names[key]: value for key, value in (values or {}).items() if key in names}


def load_rescore_values(
    rows: Sequence[Sample], reader: User | AnonymousUser | None = None
) -> dict[str, dict[str, float]]:
    """Returns {name of a re-score: number} by sample id. Empty for a reader who reviews a blind queue."""
    names = load_rescore_names({row.step_id for row in rows if row.rescores}, reader)
    return {row.pk: name_values(row.rescores, names) for row in rows if row.rescores} if names else {}


def rename_results(step: Step, renamed: Mapping[str, str]) -> None:
    """Moves results to the new ids of their samples."""
    if not renamed:
        return
    for block, content in iterate_blocks(step):
        if content.keys() & renamed.keys():
            save_block(block, {renamed.get(sample, sample): packed for sample, packed in content.items()})


def remove_missing_results(step: Step) -> None:
    """Removes the results of samples that the step no longer has, with what a model wrote about them."""
    blocks = list(iterate_blocks(step))
    if not blocks:
        return
    samples = set(Sample.objects.filter(step=step).values_list("pk", flat=True))
    for block, content in blocks:
        gone = content.keys() - samples
        if not gone:
            continue
        errors = count_errors(RescoreResult.unpack(content[sample]) for sample in gone)
        add_counts(block.rescore_id, errors - len(gone), -errors)
        if kept := {sample: packed for sample, packed in content.items() if sample not in gone}:
            save_block(block, kept)
        else:
            block.delete()


def add_counts(rescore: int, results: int, errors: int) -> None:
    Rescore.objects.filter(pk=rescore).update(
        results=Greatest(F("results") + results, 0), errors=Greatest(F("errors") + errors, 0), updated_at=timezone.now()
    )


def iterate_blocks(step: Step) -> Iterator[tuple[RescoreBlock, BlockContent]]:
    for block in RescoreBlock.objects.filter(step=step).order_by("pk"):
        yield block, unpack_block(block.data)
