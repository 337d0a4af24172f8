"""The table of labels: the same on every server that has the same runs and labels.

So its rows name samples by place and content, not by ids of this server, and their order is that of what they say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from django.contrib.auth.models import AnonymousUser, User

from rollouts.exports.rows import ExportCounts, Row
from rollouts.labels import PAIR_QUESTIONS
from rollouts.models import Label, Sample, SampleQuerySet, Step
from rollouts.samples import SampleContent, dump_json, load_contents, load_exported_labels

BATCH_SAMPLES: Final = 512
LABEL_COLUMNS: Final = ("name", "rationale", "source", "author", "rubric", "start", "end")
GONE: Final = SampleContent("", None)  # a sample whose text is not on disk any more


def iterate_label_rows(
    samples: SampleQuerySet, counts: ExportCounts, reader: User | AnonymousUser | None, *, ids: bool = False
) -> Iterator[list[Row]]:
    """Yields one row per label of a run, with the place of its sample. `ids`: also the ids of this server."""
    for place in list_step_places(samples, reader):
        steps, chosen = place
        contents: dict[str, SampleContent] = {}
        ordered: list[tuple[Any, ...]] = []
        for start in range(0, len(chosen), BATCH_SAMPLES):
            batch = list(
                Sample.objects.filter(pk__in=chosen[start : start + BATCH_SAMPLES]).order_by("dump", "ordinal")
            )
            contents |= load_contents(batch)
            ordered += [build_sort_key(sample, contents.get(sample.pk, GONE)) for sample in batch]
        ordered.sort()
        for start in range(0, len(ordered), BATCH_SAMPLES):
            part = [key[-1] for key in ordered[start : start + BATCH_SAMPLES]]
            rows = build_rows(part, steps, contents, reader, ids=ids)
            counts.samples += len(part)
            counts.rows += len(rows)
            for step in steps.values():
                counts.steps.setdefault(step.run.name, set()).add(step.step)
            yield rows


def list_step_places(
    samples: SampleQuerySet, reader: User | AnonymousUser | None
) -> list[tuple[dict[int, Step], list[str]]]:
    """Returns the ids of the samples of each step with labels that the reader may read, in the order of the steps.
    Attempts that trained at the same time share a step."""
    labels = Label.objects.active().filter(sample__in=samples.order_by().values("pk"))
    labels = labels if reader is None else labels.readable_by(reader)
    labelled = samples.filter(pk__in=labels.values("sample"))
    by_step: dict[int, list[str]] = defaultdict(list)
    for pk, step in labelled.order_by().values_list("pk", "step"):
        by_step[step].append(pk)
    steps = sorted(load_steps(by_step), key=get_step_order)
    return [
        ({step.pk: step for step in same}, [pk for step in same for pk in by_step[step.pk]])
        for same in (list(group) for _order, group in groupby(steps, key=get_step_order))
    ]


def load_steps(by_step: Mapping[int, Any]) -> list[Step]:
    pks = sorted(by_step)
    return [
        step
        for start in range(0, len(pks), BATCH_SAMPLES)
        for step in Step.objects.filter(pk__in=pks[start : start + BATCH_SAMPLES]).select_related("run", "attempt")
    ]


def get_step_order(step: Step) -> tuple[str, str, str, int]:
    return step.run.name, step.split, step.step_kind, step.step


def build_sort_key(sample: Sample, content: SampleContent) -> tuple[Any, ...]:
    """The last part is the sample's id, which decides only between samples that nothing else tells apart."""
    index, turn = sample.index, content.turn
    return (
        sample.group, index is None, index or 0, sample.trajectory, turn is None, turn or 0, sample.prompt_key,
        content.key, sample.pk,
    )  # fmt: skip


def build_rows(
    ids_in_order: Sequence[str],
    steps: Mapping[int, Step],
    contents: Mapping[str, SampleContent],
    reader: User | AnonymousUser | None,
    *,
    ids: bool,
) -> list[Row]:
    samples = Sample.objects.in_bulk(ids_in_order)
    labels = load_exported_labels(ids_in_order, reader)
    named = {} if ids else load_named_keys([label for some in labels.values() for label in some], contents)
    rows = []
    for pk in ids_in_order:
        sample = samples.get(pk)
        if sample is None:  # dropped a moment ago
            continue
        step, content = steps[sample.step_id], contents.get(pk, GONE)
        place = {
            "run": step.run.name, "split": step.split, "step_kind": step.step_kind, "step": step.step,
            "group": sample.group, "index": sample.index, "trajectory": sample.trajectory or None,
            "turn": content.turn, "prompt_key": sample.prompt_key, "content_key": content.key or None,
        }  # fmt: skip
        server = {"sample": pk, "run_id": step.run.uid, "attempt": step.attempt.key} if ids else {}
        for label in sorted(labels.get(pk, ()), key=get_label_order):
            value = label["value"]
            if named and label["name"] in PAIR_QUESTIONS:
                value = [named.get(name, name) for name in value]
            times = {name: format_time(label[name]) for name in ("created_at", "updated_at")}
            said = {name: label[name] for name in LABEL_COLUMNS}
            rows.append({**server, **place, "json_value": dump_json(value), **said, **times})
    return rows


def get_label_order(label: Mapping[str, Any]) -> tuple[Any, ...]:
    return label["created_at"], label["name"], label["source"], label["author"]


def load_named_keys(labels: Sequence[Mapping[str, Any]], contents: Mapping[str, SampleContent]) -> dict[str, str]:
    """Returns the content keys of the samples that answers name, by id."""
    values = [label["value"] for label in labels if label["name"] in PAIR_QUESTIONS]
    named = {str(name) for value in values if isinstance(value, list) for name in value}
    missing = Sample.objects.filter(pk__in=named - contents.keys()).order_by("dump", "ordinal")
    found = load_contents(list(missing)) if named else {}
    return {pk: content.key for pk in named if (content := contents.get(pk) or found.get(pk))}


def format_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
