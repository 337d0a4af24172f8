"""Exported folders open with `datasets.load_dataset`, and the trainers of TRL train on them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rollouts import exports
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import Project, Run, Sample
from rollouts.query import find_samples
from tests.rollouts.support.query_rows import push
from tests.support import builders
from tests.trainers.verl.process import train

pytestmark = [pytest.mark.trainers, pytest.mark.django_db]


def write_export(run: Run, user: User, folder: Path, **options: str) -> str:
    samples = find_samples(run).samples
    export = exports.Export(run.project, exports.parse_options(run.project, options), [samples], {}, reader=user)
    with zipfile.ZipFile(io.BytesIO(b"".join(exports.stream_archive(export)))) as archive:
        archive.extractall(folder)
    return str(folder)


def test_trl_trains_on_every_layout_and_load_dataset_opens_every_format(
    project: Project, mate: User, tmp_path: Path
) -> None:
    save_rubric(project, mate, [{"key": "correct", "title": "Right?", "kind": "yes-no"}])
    texts, chats = builders.run(project, "texts"), builders.run(project, "chats")
    rows = [{"prompt": f"{g}+{g}=", "response": f" {g + n}", "group": str(g), "score": float(n == g)}
            for g in range(4) for n in range(4)]  # fmt: skip
    push(texts, rows)
    for run in (texts, chats):
        messages = [[{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
                    for row in rows]  # fmt: skip
        if run == chats:
            push(run, [{**row, "messages": each} for row, each in zip(rows, messages, strict=True)])
        sample = Sample.objects.filter(step__run=run).first()
        assert sample is not None
        store_labels(run, mate, [Answer(sample.pk, "correct", True), Answer(sample.pk, "correction", "better")])
    opened = []
    for at, (run, layout) in enumerate((run, layout) for run in (texts, chats) for layout in exports.LAYOUTS):
        file_format = exports.FORMATS[at % 2]
        opened.append(
            (layout, write_export(run, mate, tmp_path / f"{run.name}-{layout}", layout=layout, format=file_format))
        )
    few = builders.run(project, "few")
    push(few, rows[:2])
    for run in (texts, few):  # the folders have one name, which is part of the key of the cache of `datasets`
        opened.append(("samples", write_export(run, mate, tmp_path / run.name / "same", layout="samples")))
    done = train("../../trl/inside/exported.py", json.dumps(opened), folder=tmp_path)
    results = done.read_output()
    assert len(results) == 14 and all(is_finite for _rows, _columns, is_finite in results), results
    assert [count for count, _columns, _is_finite in results[12:]] == [16, 2]
    columns = {layout: set(names) for (layout, _), (_rows, names, _) in zip(opened, results, strict=True)}
    assert {"prompt", "chosen", "rejected", "margin"} <= columns["reward"] and "messages" in columns["sft"]
