"""`rolloutdeck labels import` against a real server."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rolloutdeck.cli.review import label_import
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import Label, Project, Sample
from tests.rollouts.support.push import indexed, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_an_export_is_imported_again_and_problems_are_written(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate"))
    monkeypatch.setattr(label_import, "ROWS_PER_REQUEST", 2)
    project = Project.objects.get()
    save_rubric(project, owner, [{"key": "correct", "kind": "yes-no"}])
    run_row = builders.run(project)
    rows = [{"prompt": "p", "group": "g", "index": n, "response": text} for n, text in enumerate("abc")]
    indexed(run_row, lines(*rows), 1)
    ids = list(Sample.objects.order_by("index").values_list("pk", flat=True))
    store_labels(run_row, owner, [Answer(pk, "correct", True) for pk in ids])
    before = list(Label.objects.values())

    def run(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(["labels", "import", *map(str, words)]), *capsys.readouterr()

    out, archive, packed = node / "out", node / "out.zip", node / "rows.jsonl.gz"
    assert main(["export", "--layout", "labels", "--run", "grpo", "--out", str(out)]) == 0
    data = out / "data" / "labels.jsonl"
    shutil.make_archive(str(archive.with_suffix("")), "zip", out)
    packed.write_bytes(gzip.compress(data.read_bytes()))
    for file in (out, archive, packed, data):
        status, printed, _ = run(file)
        assert (status, printed) == (0, "3 rows: 0 new, 0 changed, 3 unchanged.\nSamples found: 3 by place.\n")
    assert list(Label.objects.values()) == before
    Label.objects.all().delete()
    assert "3 new" in run(data, "--dry-run")[1] and not Label.objects.exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.read_bytes())))
    assert run("-")[0] == 0 and list(Label.objects.values("sample", "updated_at", "created_at", "author")) == [
        {name: row[name] for name in ("sample", "updated_at", "created_at", "author")} for row in before
    ]

    written, left = node / "written.jsonl", node / "left.jsonl"
    good = {"prompt": "p", "response": "a", "name": "correct", "value": False, "note": 1}
    rows = [good, {**good, "response": "z"}, {**good, "value": 7}]
    written.write_text("\n".join(map(json.dumps, rows)) + "\n\nno json\n[]\n", encoding="utf-8")
    status, printed, listed = run(written, "--unmatched", left)
    assert status == 1 and printed.startswith("5 rows: 0 new, 1 changed, 0 unchanged, 1 without a sample, 3 not valid.")
    assert (
        "line 2, unmatched: No sample has this prompt and response." in listed
        and "line 5, invalid: is not JSON" in listed
    )
    assert "Fields that were not used: note." in listed
    problems = [json.loads(line) for line in left.read_text().splitlines()]
    assert problems[0] == {**rows[1], "problem": "unmatched: No sample has this prompt and response."}
    assert [row.get("line") for row in problems] == [None, None, "no json", "[]"]
    # corrected rows are imported from the file that was written
    left.write_text(json.dumps({**problems[0], "response": "b"}) + "\n", encoding="utf-8")
    status, printed, listed = run(left, "--json")
    assert (status, json.loads(printed)["labels"]) == (0, {"new": 0, "changed": 1, "unchanged": 0})
    assert "problem" not in listed

    written.write_bytes(b"PAR1")
    assert run(written)[0] == 2 and run(node / "missing")[0] == 2
    assert "has no data/*.jsonl" in run(node)[2]
    assert "no run 'gone'" in run(data, "--run", "gone")[2]
