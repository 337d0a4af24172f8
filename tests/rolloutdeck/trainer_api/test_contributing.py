"""The page on adding a trainer: it is short, its examples work, and small modules are possible."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rolloutdeck.client import start
from rolloutdeck.trainer_api import registry
from rolloutdeck.trainers.common import session
from rolloutdeck.watch import scan
from rolloutdeck.watch.types import ScanOptions
from tests.rolloutdeck.support.fake_server import Receiver

ROOT = Path(__file__).parents[3]
SECTION = re.search(r"^## Add a trainer\n(.*?)^## ", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
assert SECTION
FILES_EXAMPLE, PLUGIN_EXAMPLE = re.findall(r"```python\n(.*?)```", SECTION[1], re.S)
MAX_PAGE_LINES, MAX_MODULE_LINES = 80, 60


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The trainer of the example, registered as the page describes."""
    module = ModuleType("rolloutdeck.trainers.acme")
    exec(FILES_EXAMPLE, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(registry, "WITHOUT_REPLAY", ("acme", *registry.WITHOUT_REPLAY))
    yield module


def test_the_page_fits_on_one_page_and_its_module_is_small() -> None:
    assert SECTION and len(SECTION[1].splitlines()) <= MAX_PAGE_LINES
    assert len(FILES_EXAMPLE.splitlines()) <= MAX_MODULE_LINES


def test_the_smallest_module_of_a_trainer_is_small() -> None:
    modules = [ROOT / "rolloutdeck/trainers" / f"{name}.py" for name in registry.WITHOUT_REPLAY]
    assert min(len(path.read_text().splitlines()) for path in modules if path.is_file()) <= MAX_MODULE_LINES


def test_watch_and_import_find_the_files_of_the_example(acme: ModuleType, tmp_path: Path) -> None:
    row = {"acme_version": 1, "prompt": "1+1=", "response": "2", "score": 1.0}
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "step_12.jsonl").write_text(json.dumps(row) + "\n")
    [file] = scan.scan_folders([tmp_path], ScanOptions()).files
    assert (file.kind.format, file.step, file.split) == ("table", 12, "train")
    assert file.kind in acme.FILES.kinds


def test_the_plug_in_of_the_example_records_a_step(
    connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("acme_plugin")
    exec(PLUGIN_EXAMPLE, vars(module))
    module.record_step(3, [{"prompt": "1+1=", "response": "2"}], {"reward": 0.5})
    module.record_step("no step", 5, None)  # raises nothing
    for run in start._runs:
        run.finish(timeout=30)
    session._sessions.clear()
    start._runs.clear()
    assert [json.loads(body) for body in connected_receiver.bodies()] == [{"prompt": "1+1=", "response": "2"}]
    assert [point["values"] for point in connected_receiver.points()] == [{"reward": 0.5}]
