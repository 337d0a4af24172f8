"""`rolloutdeck forget` as an administrator runs it: real commands, a kill in the middle of the backups, images."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rollouts.forgetting.canary import NEEDLES, contains_any, iterate_contents

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
SEED = """
import django
django.setup()
from rollouts.backup import apply_migrations
apply_migrations()
from rollouts.models import Sample
from tests.rollouts.forgetting.canary import CANARY
from tests.rollouts.support.push import generation, index_file, lines
from tests.support import builders
from tests.support.images import IMAGES, data_url
run = builders.run(builders.project("math"))
part = {"type": "image_url", "image_url": {"url": data_url(IMAGES["png"])}}
prompt = [{"role": "user", "content": [part, {"type": "text", "text": CANARY}]}]
row = {"prompt": prompt, "response": "Zebedee-4711", "score": 1, "group": "a", "index": 0}
index_file(run, lines(row), 1, format="native")
index_file(run, lines(generation("calm", "calm", 1.0, 2)), 2)
print(Sample.objects.get(step__step=1).prompt_key)
"""


@pytest.fixture
def server_environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "ROLLOUTDECK_DATA": str(tmp_path / "data"), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, "the command ended before it was killed"
        time.sleep(0.002)


def test_a_prompt_with_an_image_is_forgotten_in_a_server_and_its_backups(
    tmp_path: Path, server_environment: dict[str, str]
) -> None:
    data, backups, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"

    def start_process(*words: str) -> subprocess.Popen[str]:
        pipe, environment = subprocess.PIPE, server_environment
        return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)

    def run_command(*words: str) -> tuple[int, str]:
        process = start_process(sys.executable, "-m", "rolloutdeck", *words)
        texts = process.communicate(timeout=600)
        return process.returncode, "".join(texts)

    seed_process = start_process(sys.executable, "-c", SEED)
    output, errors = seed_process.communicate(timeout=600)
    assert seed_process.returncode == 0, errors
    data_option = ("--data", str(data))
    forget = ("forget", "--project", "math", "--prompt", output.split()[-1], *data_option)
    assert run_command("backup", str(backups), *data_option)[0] == 0
    images = [path for folder in (data, backups) for path in folder.rglob("images/**/*") if path.is_file()]
    assert len(images) >= 2

    status, text = run_command(*forget, "--apply", "--backups", str(tmp_path / "nowhere"))
    assert status and "There is no folder" in text and images[0].exists()

    killed_process = start_process(sys.executable, "-m", "rolloutdeck", *forget, "--apply", "--backups", str(backups))
    wait_until(lambda: bool(list(backups.glob("*/database-*.sqlite3"))), killed_process)
    killed_process.kill()
    killed_process.communicate()
    status, text = run_command(*forget, "--apply", "--backups", str(backups))
    assert status == 0 and "Backups changed" in text, text
    for folder in (data, backups):
        assert [name for name, content in iterate_contents(folder) if contains_any(content, NEEDLES)] == []
    assert [path for path in images if path.exists()] == []

    status, text = run_command("restore", str(backups), "--data", str(restored))
    assert status == 0, text
    with sqlite3.connect(restored / "db.sqlite3") as database:
        assert database.execute("SELECT count(*) FROM rollouts_sample").fetchone() == (1,)

    (path,) = backups.glob("*/manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"engine": "postgresql"}))
    status, text = run_command(*forget, "--apply", "--backups", str(backups))
    assert status and "--remove-backups removes them" in text and path.exists()
    status, text = run_command(*forget, "--apply", "--backups", str(backups), "--remove-backups")
    assert status == 0 and "Backups removed" in text and not path.exists()
    assert [path for path in (backups / "files").rglob("*") if path.is_file()] == []
