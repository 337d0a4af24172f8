"""`rolloutdeck labels import` against a real server."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rolloutdeck.cli.review import label_import
from rollouts.labels import Answer, save_rubric, store_labels
from rollouts.models import Label, Project, Sample
from tests.rolloutdeck.support.commands import Command
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def labels_import(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`labels import` into a project with one sample of the prompt `p`, with the response `a`."""
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate"))
    project = Project.objects.get()
    save_rubric(project, owner, [{"key": "correct", "kind": "yes-no"}])
    index_file(builders.run(project), lines({"prompt": "p", "group": "g", "index": 0, "response": "a"}), 1)

    def run(*words: object) -> tuple[int, str, str]:
        return main(["labels", "import", *map(str, words)]), *capsys.readouterr()

    return run


def write_answers(path: Path, *responses: str) -> list[dict[str, Any]]:
    """Writes one answer for each response of the prompt `p`, and returns the rows."""
    rows = [{"prompt": "p", "response": text, "name": "correct", "value": True} for text in responses]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return rows


def test_the_imported_file_may_be_replaced_by_the_rows_that_were_not_imported(
    node: Path, labels_import: Command
) -> None:
    labels_file, link = node / "left.jsonl", node / "link.jsonl"
    rows = write_answers(labels_file, *["z" * 2000] * 100, "a")  # more than one buffer, the good row at the end
    labels_file.chmod(0o640)
    link.symlink_to(labels_file)
    status, printed, _ = labels_import(labels_file, "--unmatched", link)
    assert status == 1 and printed.startswith("101 rows: 1 new, 0 changed, 0 unchanged, 100 without a sample.")
    written = [json.loads(line) for line in labels_file.read_text().splitlines()]
    assert [{**row, "problem": ""} for row in written] == [{**row, "problem": ""} for row in rows[:-1]]
    assert link.is_symlink() and labels_file.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in node.iterdir()) == ["left.jsonl", "link.jsonl"]


def test_a_row_that_is_too_long_stays_whole_in_the_replaced_file(
    node: Path, labels_import: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_import, "MAX_ROW_BYTES", 1000)
    labels_file = node / "left.jsonl"
    rows = write_answers(labels_file, "a", "b" * 2000)
    for _try in range(2):
        assert labels_import(labels_file, "--unmatched", labels_file)[0] in (1, 2)
        written = [json.loads(line) for line in labels_file.read_text().splitlines()]
        assert [{**row, "problem": ""} for row in written] == [{**rows[1], "problem": ""}]


def test_an_import_that_fails_leaves_the_file_of_unmatched_rows_as_it_was(
    node: Path, labels_import: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "wrong")
    labels_file = node / "left.jsonl"
    write_answers(labels_file, "a")
    before = labels_file.read_bytes()
    assert labels_import(labels_file, "--unmatched", labels_file)[0] == 2
    assert labels_file.read_bytes() == before and [path.name for path in node.iterdir()] == ["left.jsonl"]


def test_a_packed_file_that_is_cut_damaged_or_encrypted_is_refused_in_a_sentence(
    node: Path, labels_import: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_import, "ROWS_PER_REQUEST", 50)  # the damage is found at the end, in the second part
    write_answers(node / "rows.jsonl", *["z" * 100] * 100)
    text = (node / "rows.jsonl").read_bytes()
    cut, damaged, encrypted = node / "cut.jsonl.gz", node / "damaged.zip", node / "encrypted.zip"
    cut.write_bytes(gzip.compress(text)[:-20])
    for path in (damaged, encrypted):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data/labels.jsonl", text)
    damaged.write_bytes(damaged.read_bytes().replace(b'"zzz', b'"yyy', 1))
    data = bytearray(encrypted.read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + flags] |= 1
    encrypted.write_bytes(data)
    bad_crc = "Bad CRC-32 for file 'data/labels.jsonl'. 50 rows before are done."
    for path, says in ((cut, "ended before"), (damaged, bad_crc), (encrypted, "is encrypted")):
        status, _, printed = labels_import(path)
        assert status == 2 and f"{path} can't be read: " in printed and says in printed
    assert not Label.objects.exists()


def test_unmatched_does_not_replace_a_file_whose_rows_were_not_imported(node: Path, labels_import: Command) -> None:
    labels_file, packed = node / "left.jsonl", node / "left.jsonl.gz"
    write_answers(labels_file, "a")
    packed.write_bytes(gzip.compress(labels_file.read_bytes()))
    for words, says in (
        ([labels_file, "--dry-run"], "--dry-run imports nothing"),
        ([packed], "can't replace the packed"),
    ):
        before = words[0].read_bytes()
        status, _, printed = labels_import(*words, "--unmatched", words[0])
        assert status == 2 and says in printed and words[0].read_bytes() == before
    assert labels_import(labels_file, "--dry-run", "--unmatched", node / "new.jsonl")[0] == 0
    pipe = node / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert labels_import(labels_file, "--unmatched", pipe)[0] == 0 and pipe.is_fifo()
    os.close(reader)


def fail_for_temporary_files(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Makes a method of `Path` fail for temporary files."""
    method = getattr(Path, name)

    def fail(path: Path, *words: Any, **options: Any) -> Any:
        if path.name.startswith("."):
            raise OSError(code, os.strerror(code), str(path))
        return method(path, *words, **options)

    monkeypatch.setattr(Path, name, fail)


@pytest.mark.parametrize(("method", "code"), [("open", errno.EACCES), ("replace", errno.EBUSY)])
def test_a_file_that_can_t_be_replaced_is_written_unless_it_is_imported(
    node: Path, labels_import: Command, monkeypatch: pytest.MonkeyPatch, method: str, code: int
) -> None:
    """The folder is not writable, or the file is a mount."""
    labels_file, problems = node / "left.jsonl", node / "problems.jsonl"
    rows = write_answers(labels_file, "z")
    problems.write_text("earlier\n" * 100)
    fail_for_temporary_files(monkeypatch, method, code)
    assert labels_import(labels_file, "--unmatched", problems)[0] == 1
    written = [json.loads(line) for line in problems.read_text().splitlines()]
    assert [{**row, "problem": ""} for row in written] == [{**rows[0], "problem": ""}]
    before = labels_file.read_bytes()
    assert labels_import(labels_file, "--unmatched", labels_file)[0] == 2 and labels_file.read_bytes() == before
    assert {path.name for path in node.iterdir()} == {"left.jsonl", "problems.jsonl"}
    monkeypatch.undo()


def test_a_file_is_closed_before_it_is_renamed(
    node: Path, labels_import: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows does not rename an open file."""
    labels_file = node / "left.jsonl"
    write_answers(labels_file, "z")
    replace, is_open = Path.replace, list[bool]()

    def record(path: Path, target: Path) -> Path:
        opened = []
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # another thread has closed it meanwhile
                opened.append(link.readlink())
        is_open.append(path in opened)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", record)
    assert labels_import(labels_file, "--unmatched", labels_file)[0] == 1 and is_open == [False]


def test_an_export_is_imported_again_and_problems_are_written(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate"))
    monkeypatch.setattr(label_import, "ROWS_PER_REQUEST", 2)
    project = Project.objects.get()
    save_rubric(project, owner, [{"key": "correct", "kind": "yes-no"}])
    run_row = builders.run(project)
    rows = [{"prompt": "p", "group": "g", "index": n, "response": text} for n, text in enumerate("abc")]
    index_file(run_row, lines(*rows), 1)
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

    written, problems_file = node / "written.jsonl", node / "left.jsonl"
    good = {"prompt": "p", "response": "a", "name": "correct", "value": False, "note": 1}
    rows = [good, {**good, "response": "z"}, {**good, "value": 7}]
    written.write_text("\n".join(map(json.dumps, rows)) + "\n\nno json\n[]\n", encoding="utf-8")
    status, printed, listed = run(written, "--unmatched", problems_file)
    assert status == 1 and printed.startswith("5 rows: 0 new, 1 changed, 0 unchanged, 1 without a sample, 3 not valid.")
    assert (
        "line 2, unmatched: No sample has this prompt and response." in listed
        and "line 5, invalid: is not JSON" in listed
    )
    assert "Fields that were not used: note." in listed
    problems = [json.loads(line) for line in problems_file.read_text().splitlines()]
    assert problems[0] == {**rows[1], "problem": "unmatched: No sample has this prompt and response."}
    assert [row.get("line") for row in problems] == [None, None, "no json", "[]"]
    # corrected rows are imported from the file that was written
    problems_file.write_text(json.dumps({**problems[0], "response": "b"}) + "\n", encoding="utf-8")
    status, printed, listed = run(problems_file, "--json")
    assert (status, json.loads(printed)["labels"]) == (0, {"new": 0, "changed": 1, "unchanged": 0})
    assert "problem" not in listed

    written.write_bytes(b"PAR1")
    assert run(written)[0] == 2 and run(node / "missing")[0] == 2
    assert "has no data/*.jsonl" in run(node)[2]
    assert "no run 'gone'" in run(data, "--run", "gone")[2]
