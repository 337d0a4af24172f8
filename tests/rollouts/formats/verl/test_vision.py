"""A vision dump of verl's rollout skip: its samples and images are read, and no trainer gets the file."""

from __future__ import annotations

import io

import pytest

from rolloutdeck import safe_pickle
from rollouts.formats import DumpContext
from rollouts.formats.verl import batch as verl_batch
from rollouts.indexing import index_dump
from rollouts.models import Dump, Run, Sample
from rollouts.pins import artifact_check, artifacts
from rollouts.samples import Record, list_images, load_bodies
from tests.conftest import DATA
from tests.rollouts.support.artifacts import encode_meta, register_artifact, upload_files

BATCH = DATA / "verl_vision/vision_demo/GBS4_N2_in8_out6/3/gen_batch.dp"
V1_BATCH = DATA / "verl_vision/tq/GBS2_N2_in8_out6/3/0/tq_batch.pt"


def test_tensors_and_images_in_columns_are_one_reason_each_not_one_per_row() -> None:
    report = safe_pickle.check_file_safety(BATCH)
    assert report.readable and not report.loadable and len(report.reasons) == 4
    assert report.reasons[0].startswith("torch.storage._load_from_bytes at ")
    assert report.reasons[0].endswith("(loading an older torch stream would execute code from it) (8 times).")
    assert all("PIL." in reason for reason in report.reasons[1:])


def test_a_row_has_its_messages_with_images_as_data_urls() -> None:
    form = verl_batch.FORMATS[0]
    items = [*form.read(io.BytesIO(), DumpContext("gen_batch.dp", path=BATCH))]
    rows = [item for item in items if isinstance(item, Record)]
    parts = [row.messages[0]["content"][0] for row in rows if row.messages]
    starts = [part.get("bytes", part.get("image"))[:16] for part in parts]
    assert starts == [*["data:image/png;b"] * 4, *["/data/images/2.p"] * 2, *["data:image/jpeg;"] * 2]
    assert [part.get("path") for part in parts[::2]] == ["0.png", None, None, "3.jpeg"]
    assert rows[0].prompt == "user\n<image>What is in picture 0?\nassistant\n" and rows[1].score == 1.0


def test_a_batch_of_v1_has_its_images_and_names_pillow_as_the_only_reason() -> None:
    report = safe_pickle.check_file_safety(V1_BATCH)
    assert report.readable and not report.loadable and len(report.reasons) == 1 and "PIL." in report.reasons[0]
    items = [*verl_batch.FORMATS[1].read(io.BytesIO(), DumpContext("tq_batch.pt", path=V1_BATCH))]
    rows = [item for item in items if isinstance(item, Record)]
    parts = [row.messages[0]["content"][0] for row in rows if row.messages]
    keys = ["bytes", "bytes", "image", "image"]
    assert [part[key][:16] for part, key in zip(parts, keys, strict=True)] == ["data:image/png;b"] * 4
    assert [(row.index, row.turn, row.score) for row in rows] == [(0, 0, 0.0), (1, 0, 1.0)] * 2
    assert all(row.response_ids and row.extras["extra_info"] == {"split": "train"} for row in rows)


@pytest.mark.django_db
def test_an_unsafe_dump_that_can_be_read_is_indexed_and_served_to_no_trainer(run: Run) -> None:
    files = {"gen_batch.dp": BATCH.read_bytes(), "meta.json": encode_meta(3)}
    artifact = upload_files(register_artifact(run, 3, files), files)
    for dump in artifact_check.check_artifact(artifact.pk):
        index_dump(dump)
    artifact.refresh_from_db()
    assert artifact.state == "unsafe" and artifact.message.endswith(" Its samples are shown.")
    assert "not safe to load" in artifacts.explain_unavailability(artifact)
    assert Dump.objects.get().state == "indexed"
    bodies = load_bodies(Sample.objects.order_by("ordinal"))
    images = [list_images(body) for body in bodies.values()]
    assert len(images) == 8
    kinds = [(image.kind, image.width, image.height) for image in (own[0] for own in images)]
    assert kinds[::2] == [("png", 28, 28), ("png", 28, 28), ("", 0, 0), ("jpeg", 28, 28)]
    assert images[4][0].location == "/data/images/2.png"
