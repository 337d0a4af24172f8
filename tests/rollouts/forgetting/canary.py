"""Stores a text in every place that can have it, and searches all stored bytes for it."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import zstandard
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection

from rolloutdeck.protocol import compute_prompt_key
from rollouts.findings import add_query_evidence, add_sample_evidence, create_finding
from rollouts.maintenance import compact_body_files
from rollouts.models import Dump, Project, Run, Sample, SavedView, SharedLink, ViewedSample
from rollouts.rescores import create_rescore, save_results
from rollouts.samples import RescoreResult
from rollouts.sharing import create_shared_link
from rollouts.storage import checkout_file, list_files
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import generation, index_file, lines, push
from tests.support import builders

CANARY = "Where does Zebedee-4711 keep his blue umbrella?"
KEY = compute_prompt_key(CANARY)
CHAT = f"<|im_start|>user\n{CANARY}<|im_end|>\n<|im_start|>assistant\n"
RESPONSE = "Zebedee-4711 says: in the hall, behind the coats, next to the lamp."
NEEDLES = (CANARY, "Zebedee-4711")


def build_body(step: int, prompt: str = CANARY, source: str = "") -> bytes:
    """A dump of three prompts, two responses each."""
    texts = [(f"plain {step}", "yes"), (prompt, RESPONSE), (f"other {step}", "no")]
    return lines(*(generation(text, f"{answer} {k}", float(k), step) for text, answer in texts for k in range(2)))


def store_canary(project: Project, run: Run, owner: User) -> None:
    """Steps 1 to 4 in one shared body file; step 2 sent twice; a file of two steps; an artifact; findings; links."""
    for step in range(1, 5):
        index_file(run, build_body(step), step)
    index_file(run, lines(generation("calm 20", "calm", 1.0, 20)), 20)  # shares their body file and stays in it
    index_file(run, build_body(2, CHAT), 2)  # the same source again: the first dump is superseded
    assert compact_body_files(run.pk, "train")
    index_file(run, build_body(5) + build_body(6), None, source="both.jsonl")
    index_file(run, lines(generation("calm", "calm", 1.0, 8)) + b'{"input": "' + CANARY.encode() + b'", "outp\n', 8)
    push_failed_dump(run)
    files = {"batch.json": json.dumps({"text": CANARY}).encode()}
    upload_files(register_artifact(run, 1, files), files)
    sample = Sample.objects.filter(step__run=run, prompt_key=KEY, step__step=3).first()
    assert sample
    builders.flag(sample.pk, owner, reason="other", text="Zebedee-4711 again")
    ViewedSample.objects.create(sample=sample.pk, run=run, user=owner)
    judge, _created = create_rescore(run, owner, name="score.judge", kind="judge", source="model", digest="1")
    ids = Sample.objects.filter(step=sample.step_id).values_list("pk", flat=True)
    save_results(judge, {pk: RescoreResult(1.0, rationale=CANARY * (pk == sample.pk)) for pk in ids})
    finding = create_finding(project, owner, title="Umbrellas")
    add_sample_evidence(finding, sample, owner)
    add_query_evidence(finding, run, owner, split="train", step=4)
    html = f"<p>{CANARY.replace('blue', '<b>blue</b>')}</p>"
    create_shared_link(project, owner, kind="finding", title="shared", html=html, days=7)
    create_shared_link(project, owner, kind="chart", title="innocent", html="<p>calm</p>", days=7)
    params = f"q={CANARY.replace(' ', '+')}"
    SavedView.objects.create(owner=owner, project=project, page="step", name="own", params=params)
    SavedView.objects.create(owner=owner, page="runs", name="all", params=params)


def push_failed_dump(run: Run) -> Dump:
    """A dump that no format reads."""
    dump = push(run, b"\x01 no format \n" + CANARY.encode() + b"\n", 7)
    Dump.objects.filter(pk=dump.pk).update(state=Dump.State.FAILED)
    return dump


def find_canary(needles: tuple[str, ...] = NEEDLES) -> list[str]:
    """Returns the places that have the text: stored files, and the database."""
    contents = [*iterate_contents(Path(settings.DATA_DIR)), *iterate_objects()]
    places = [name for name, content in contents if contains_any(content, needles)]
    return [*places, *find_in_database(needles)]


def iterate_objects() -> Iterator[tuple[str, bytes]]:
    for file in list_files() if settings.STORAGE_URL else ():
        with checkout_file(file.key) as path:
            data = path.read_bytes()
        yield file.key, data
        yield f"{file.key} (plain)", decompress(Path(file.key), data)


def contains_any(content: bytes, needles: tuple[str, ...]) -> bool:
    return any(needle.encode() in content for needle in needles)


def iterate_contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            yield path.relative_to(folder).as_posix(), data
            yield f"{path.name} (plain)", decompress(path, data)


def decompress(path: Path, data: bytes) -> bytes:
    if path.suffix == ".zst":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)).read()
    if path.suffix == ".parquet" and data.startswith(b"PAR1"):
        return repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b""


def find_in_database(needles: tuple[str, ...]) -> list[str]:
    """Searches every column of every table, in the content of shared links, and in the bytes of SQLite's files."""
    places = []
    tables = connection.introspection.table_names()
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
            places += [f"table {table}" for row in cursor.fetchall() if contains_any(repr(row).encode(), needles)]
    places += ["link" for link in SharedLink.objects.exclude(content=b"") if contains_any(link.html.encode(), needles)]
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        for path in (Path(name), Path(f"{name}-wal")):
            if path.exists() and contains_any(path.read_bytes(), needles):
                places.append(path.name)
    return places
