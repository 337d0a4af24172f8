"""Data folders of earlier versions open with this version, and nothing in them is lost.

`python -m scripts.record_data_folder` writes the folders, with a list of what is in them.
"""

from __future__ import annotations

import hashlib
import html
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.data_folder import METRIC, PROJECT, read_content, read_samples
from tests.support.server import Product

pytestmark = pytest.mark.slow
ARCHIVES = sorted((Path(__file__).parent / "data" / "versions").glob("*.tar.gz"))
# Runs whose samples have no text. 0.1.0 identified them by their order in the dump, so that two dumps had the same ids.
# Indexing them again changes the ids, and the flags move: see rollouts/indexing/renamed_samples.py.
RENAMED = {"0.1.0": ("verl-skip",)}


class Upgrade(NamedTuple):
    """A server of this version on the data folder of an earlier one, and the `content` that was recorded."""

    version: str
    product: Product
    content: dict[str, Any]


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def upgrade(request: pytest.FixtureRequest) -> Iterator[Upgrade]:
    archive: Path = request.param
    version = archive.name.removesuffix(".tar.gz")
    content = json.loads(archive.with_name(f"{version}.json").read_text())
    with Product(archive=archive) as product:
        yield Upgrade(version, product, content)


def find_differences(recorded: Any, current: Any, path: str = "") -> list[str]:
    """Where `current` lacks or changes what is in `recorded`. A new version may add fields."""
    if isinstance(recorded, dict) and isinstance(current, dict):
        missing = [f"{path}/{key} is missing" for key in recorded if key not in current]
        shared = [key for key in recorded if key in current]
        return missing + [
            line for key in shared for line in find_differences(recorded[key], current[key], f"{path}/{key}")
        ]
    if isinstance(recorded, list) and isinstance(current, list) and len(recorded) == len(current):
        pairs = enumerate(zip(recorded, current, strict=True))
        return [line for number, pair in pairs for line in find_differences(*pair, f"{path}/{number}")]
    return [] if recorded == current else [f"{path}: {current!r} was {recorded!r}"]


def list_sample_ids(content: dict[str, Any]) -> dict[str, list[str]]:
    return {name: sorted(run["samples"]) for name, run in content["runs"].items()}


def test_everything_in_the_recorded_folder_is_still_there(upgrade: Upgrade) -> None:
    current = read_content(upgrade.product)
    assert find_differences(upgrade.content, current) == []
    assert list_sample_ids(current) == list_sample_ids(upgrade.content)


def test_files_of_pins_have_the_same_bytes(upgrade: Upgrade) -> None:
    artifacts = [(run["id"], artifact) for run in upgrade.content["runs"].values() for artifact in run["artifacts"]]
    for uid, artifact in artifacts:
        for file in artifact["files"].values():
            body = upgrade.product.fetch(f"/api/v1/runs/{uid}/artifacts/{artifact['id']}/files/{file['sha256']}/")
            assert (hashlib.sha256(body).hexdigest(), len(body)) == (file["sha256"], file["bytes"])
    assert artifacts


def test_a_run_can_replay_the_plan(upgrade: Upgrade) -> None:
    run = upgrade.product.post("runs/", {"project": PROJECT, "name": "again", "attempt": "first"})
    plan = upgrade.product.post(f"runs/{run['id']}/replay-plan/", {"plan": "default", "bind": False})
    recorded = upgrade.content["plan"]["entries"]
    assert find_differences(recorded, plan["entries"]) == []


def test_pages_show_the_data(upgrade: Upgrade) -> None:
    session, content = upgrade.product.open_session(), upgrade.content
    run, flag = content["runs"]["verl"], content["flags"][-1]
    pk, texts = next(iter(run["texts"].items()))
    pages = {
        "/": content["runs"],
        f"/runs/{run['id']}/charts.json": [METRIC],
        f"/runs/{run['id']}/steps/1/": [pk for pk in run["samples"] if run["samples"][pk]["step"] == 1][:5],
        f"/samples/{pk}/": texts["response"].split()[:5],
        "/pins/": [pin["note"] for pin in content["pins"]],
        "/findings/": [finding["title"] for finding in content["findings"]],
        f"/findings/{content['findings'][0]['id']}/": [item["words"] for item in content["findings"][0]["exhibits"]],
        f"/samples/{flag['sample']}/": [flag["text"]],
        f"/settings/{PROJECT}/": [member["user"] for member in content["project"]["members"]],
    }
    missing = [
        (path, text) for path, texts in pages.items() for text in texts if text not in html.unescape(session.get(path))
    ]
    assert missing == []


def test_indexing_again_gives_the_same_sample_ids(upgrade: Upgrade) -> None:
    runs = {name: run["id"] for name, run in upgrade.content["runs"].items()}
    for uid in runs.values():
        assert upgrade.product.post(f"runs/{uid}/index/", {})["dumps"] > 0
    deadline = time.monotonic() + 300
    while any(set(upgrade.product.get(f"runs/{uid}/")["dumps"]) != {"indexed"} for uid in runs.values()):
        assert time.monotonic() < deadline, "the dumps were not indexed"
        time.sleep(0.2)
    current = {name: read_samples(upgrade.product, uid) for name, uid in runs.items()}
    renamed = {
        find_id(upgrade.content["runs"][name]["samples"], sample): pk
        for name in RENAMED.get(upgrade.version, ())
        for pk, sample in current[name].items()
    }
    recorded = list_sample_ids(upgrade.content)
    assert {name: sorted(samples) for name, samples in current.items()} == {
        name: sorted(renamed.get(pk, pk) for pk in ids) for name, ids in recorded.items()
    }
    content = read_content(upgrade.product)
    flags = [{**flag, "sample": renamed.get(flag["sample"], flag["sample"])} for flag in upgrade.content["flags"]]
    assert find_differences(flags, content["flags"]) == []
    for name in ("pins", "findings"):
        assert find_differences(upgrade.content[name], content[name]) == []


def find_id(samples: dict[str, Any], sample: dict[str, Any]) -> str:
    """The recorded id of the sample at the same place of its step."""
    place = ("split", "step", "group", "index")
    (pk,) = [pk for pk, recorded in samples.items() if all(recorded[name] == sample[name] for name in place)]
    return pk
