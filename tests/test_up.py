"""`rolloutdeck up` with real processes: start, restarts, refused options, shutdown."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import pytest

from rolloutdeck.lib.local_servers import _describe_machine
from rolloutdeck.up.paths import create_data_folders, find_network_type
from rolloutdeck.up.processes import ServerProgram, build_watched_run_name, write_supervisor_config
from tests.support.server import Product, free_port


def wait_until(condition: Callable[[], object], seconds: float = 200) -> None:
    """Waits until the condition is true. The limit is only for a broken run."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def is_answering(product: Product) -> bool:
    try:
        with urllib.request.urlopen(f"{product.url}/healthz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def list_commands(product: Product) -> dict[int, str]:
    """Command lines of the living processes below `up`."""
    result = {}
    for pid in product.pids()[1:]:
        try:
            result[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return result


def find_pid(product: Product, part: str) -> int:
    return min((pid for pid, line in list_commands(product).items() if part in line), default=0)


def has_ended(pid: int) -> bool:
    """Whether the process has ended. A zombie, which its parent has not waited for, counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def run_up(*words: object, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
    clean.pop("DATABASE_URL", None)
    return subprocess.run(
        [sys.executable, "-m", "rolloutdeck", "up", *map(str, words)],
        env={**clean, "HOME": str(home), **env},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def product() -> Iterator[Product]:
    with Product() as running:
        yield running


@pytest.mark.slow
def test_up_answers_says_how_to_sign_in_and_writes_a_private_local_token(product: Product) -> None:
    message = (product.home / "up.log").read_text()
    local = product.home / ".rolloutdeck" / "local.json"
    assert is_answering(product)
    assert f"{product.url}/sign-in/link/?t=" in message
    recorded = {"url": product.url, "token": product.token, "data": str(product.data), **_describe_machine()}
    assert json.loads(local.read_text()) == recorded
    assert stat.S_IMODE(local.stat().st_mode) == 0o600
    assert product.get("runs/")["results"] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", ["redis-server", "celery", "dashboard.web_process"])
def test_a_killed_child_comes_back(product: Product, part: str) -> None:
    before = find_pid(product, part)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: find_pid(product, part) not in (0, before))
    wait_until(lambda: is_answering(product))


@pytest.mark.slow
def test_killed_parts_of_the_worker_come_back_and_end_with_it(product: Product) -> None:
    def list_worker_pids() -> list[int]:
        # The worker's own process is first. Process ids begin again at 32,768, so their order says nothing.
        return [pid for pid, line in list_commands(product).items() if "celery" in line]

    wait_until(lambda: len(list_worker_pids()) == 4)
    worker, *parts = list_worker_pids()  # two processes of the pool and the scheduler
    for part in parts:
        os.kill(part, signal.SIGKILL)
    wait_until(lambda: all(has_ended(pid) for pid in parts) and len(list_worker_pids()) == 4)
    pids = list_worker_pids()
    assert pids[0] == worker
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: all(has_ended(pid) for pid in pids))


ORPHAN = """
import os, sys, time
from rolloutdeck.up.child import end_with_parent
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print("adopted", flush=True)
end_with_parent(parent)
print("lives on", flush=True)
"""


def test_a_child_ends_even_if_its_parent_ended_before_the_child_could_watch_it() -> None:
    child = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=600)
    assert child.stdout == "adopted\n"


@pytest.mark.slow
def test_a_killed_supervisor_comes_back_with_everything(product: Product) -> None:
    everything = product.pids()[1:]
    os.kill(find_pid(product, "rolloutdeck.up.supervisord"), signal.SIGKILL)
    wait_until(lambda: all(has_ended(pid) for pid in everything))
    wait_until(lambda: is_answering(product))
    assert "The supervisor ended unexpectedly" in (product.home / "up.log").read_text()


@pytest.mark.slow
def test_a_second_server_on_the_same_data_is_refused(product: Product) -> None:
    refused = run_up("--data", product.data, "--port", free_port(), home=product.home)
    assert refused.returncode == 2
    assert "already runs on" in refused.stderr and str(product.process.pid) in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_demo_logs_metrics_training_and_validation_samples(product: Product) -> None:
    run = run_demo(product, "--warm-up", "2")

    def list_counts(split: str) -> list[tuple[int, int, int]]:
        steps = product.get(f"runs/{run['id']}/steps/?split={split}")["results"]
        return sorted((step["step"], step["samples"], step["groups"]) for step in steps)

    wait_until(lambda: list_counts("train") == [(1, 256, 32), (2, 256, 32)] and list_counts("eval") == [(0, 128, 32)])
    wait_until(lambda: "critic/score/mean" in product.get(f"runs/{run['id']}/metrics/")["names"])


def run_demo(product: Product, *words: str, name: str = "tiny-grpo") -> Any:
    """Trains two steps of the demo, and returns the run."""
    run_example(product, "tiny_grpo.py", "--steps", "2", "--name", name, *words)
    (run,) = [run for run in product.get("runs/")["results"] if run["name"] == name]
    return run


def run_example(product: Product, name: str, *words: str, **variables: str) -> str:
    """Returns what the example prints."""
    pytest.importorskip("torch")
    root = Path(__file__).parent.parent
    env = {**product.environ, **variables, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(root / "examples" / name), *words]
    result = subprocess.run(command, env=env, check=True, timeout=600, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return result.stdout.decode()


@pytest.mark.slow
def test_the_demo_fills_a_project_and_replays_its_pinned_step(product: Product) -> None:
    def list_responses(run: str, step: int) -> list[Any]:
        result = product.fetch(f"/api/v1/exports/samples/?run={run}&split=train&step={step}")
        rows = [json.loads(line) for line in result.splitlines()]
        return sorted((row["group"], row["index"], row["response"]) for row in rows)

    def list_outcomes(run: str) -> list[Any]:
        result = product.get(f"runs/{run}/replays/")["results"]
        return [(item["step"], item["outcome"], item["rows"]) for item in result]

    known = {run["id"] for run in product.get("runs/")["results"]}
    run_example(product, "tiny_demo.py", "--steps", "4", "--pin", "2", "--warm-up", "3")
    new = [run for run in product.get("runs/")["results"] if run["id"] not in known]
    # The server numbers runs whose name another run has.
    runs = {re.sub(r"-\d+$", "", run["name"]): run["id"] for run in new}
    assert sorted(runs) == ["tiny-grpo", "tiny-grpo-any", "tiny-grpo-replay"]
    first, again = runs["tiny-grpo"], runs["tiny-grpo-replay"]
    wait_until(lambda: list_outcomes(again) == [(2, "hit", 256)])
    wait_until(lambda: len(list_responses(again, 2)) == 256)
    assert list_responses(again, 2) == list_responses(first, 2) and list_responses(again, 3) != list_responses(first, 3)
    assert len(product.get(f"flags/?run={first}")["results"]) == 3 and list_outcomes(runs["tiny-grpo-any"]) == []
    finding = product.get("findings/")["results"][0]
    assert len(product.get(f"findings/{finding['id']}/")["exhibits"]) == 3
    (row,) = product.get(f"samples/?run={again}&split=train&step=2&q=len%3E2")["results"][:1]
    texts = product.get(f"samples/{row['id']}/tokens/")["texts"]
    assert "".join(texts).startswith(product.get(f"samples/{row['id']}/")["response"])

    # The sequence of the README: pin steps with the form of Pins, then start the example again.
    name = next(run["name"] for run in new if run["id"] == first)
    pin_steps(product, name, 1, 3)
    printed = run_example(product, "tiny_grpo.py", "--steps", "4", "--name", "again", "--warm-up", "3")
    assert "Replay plan default: 3 pinned steps." in printed
    assert re.findall(r"Step (\d) replays step (\d) of", printed) == [("1", "1"), ("2", "2"), ("3", "3")]


@pytest.mark.slow
def test_the_example_follows_the_rules_of_the_project(product: Product) -> None:
    """The sequence of docs/labels-to-training.md: flag a sample, set a rule, train again with the variables set."""
    first = run_demo(product, "--warm-up", "2", name="before-rules")
    wait_until(lambda: product.get(f"runs/{first['id']}/steps/?split=train&step=2")["results"])
    (row,) = product.get(f"samples/?run={first['id']}&split=train&step=2")["results"][:1]
    product.post("flags/", {"sample": row["id"], "label": "bad", "reason": "other"})
    rule = {"key": "flagged", "query": "is:flagged", "action": "mask", "target": "prompt"}
    base = product.get("projects/demo/guidance/")["version"]
    product.post("projects/demo/guidance/", {"base_version": base, "rules": [rule]}, "PUT")

    # The rules of an earlier run are in a file, so that a fast training does not begin without them.
    code = "import rolloutdeck; run = rolloutdeck.init('demo', 'rules'); assert run.guidance().wait(200)"
    subprocess.run([sys.executable, "-c", code], env=product.environ, check=True, timeout=600)
    variables = {"ROLLOUTDECK_RUN": "after-rules", "ROLLOUTDECK_GUIDANCE": "on"}
    printed = run_example(product, "tiny_grpo.py", "--steps", "2", "--warm-up", "2", **variables)
    assert "after-rules step 0: evaluation only" in printed and "after-rules step 2: score 0." in printed
    (second,) = [run for run in product.get("runs/")["results"] if run["name"] == "after-rules"]
    wait_until(lambda: product.get(f"runs/{second['id']}/steps/?split=train&step=2")["results"])
    query = f"samples/?run={second['id']}&split=train&step=2&q=is:guided+group:{row['group']}"
    guided = product.get(query)["results"]
    assert len(guided) == 8  # all responses to the prompt
    for sample in guided:
        assert product.get(f"samples/{sample['id']}/")["extras"]["guidance"] == "flagged"
        assert set(product.get(f"samples/{sample['id']}/tokens/")["advantages"]) == {0.0}


def pin_steps(product: Product, run: str, first: int, last: int) -> None:
    """Opens Pins without naming a plan, and sends the form of a range as a browser does: hidden and filled fields."""
    browser = build_opener(HTTPCookieProcessor())
    link = product.sign_in_link()
    send_form(browser, link, browser.open(link).read().decode(), "/sign-in/")
    page = browser.open(f"{product.url}/pins/?project=demo").read().decode()
    (uid,) = re.findall(rf'<option value="([^"]*)"[^>]*>{re.escape(run)} ', page)
    result = send_form(browser, f"{product.url}/pins/", page, "/pins/range/", run=uid, first=str(first), last=str(last))
    assert f"{last - first + 1} steps are in the plan." in result


def send_form(browser: OpenerDirector, url: str, page: str, action: str, **values: str) -> str:
    """Sends the form whose `action` contains this, with the values of its inputs; returns the next page."""
    form = next(form for form in re.findall(r"<form.*?</form>", page, re.DOTALL) if action in form.split(">")[0])
    inputs = [dict(re.findall(r'([\w-]+)="([^"]*)"', field)) for field in re.findall(r"<input[^>]*>", form)]
    target = re.findall(r'action="([^"]*)"', form)[0]
    data = {field["name"]: field.get("value", "") for field in inputs if "name" in field} | values
    request = Request(urljoin(url, target), urlencode(data).encode(), {"Referer": url})
    return str(browser.open(request).read().decode())


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_and_a_killed_server_can_be_started_again() -> None:
    with Product() as product:
        first, token = product.pids(), product.token
        os.kill(product.process.pid, signal.SIGKILL)
        product.process.wait()
        (product.home / ".rolloutdeck" / "local.json").unlink()
        again = subprocess.Popen(
            [sys.executable, "-m", "rolloutdeck", "up", "--data", str(product.data), "--port", str(product.port)],
            env=product.environ,
            stdout=product.log,
            stderr=product.log,
        )
        product.process = again
        assert product.wait_for_token() == token
        assert all(has_ended(pid) for pid in first)
        second = product.pids()
        again.send_signal(signal.SIGINT)
        assert again.wait(40) == 0
        assert all(has_ended(pid) for pid in second)


def test_a_port_in_use_is_refused_and_the_option_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run_up("--data", tmp_path / "data", "--port", port, home=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"Port {port} on 127.0.0.1 is in use. Choose another with --port.\n"


def test_a_host_for_all_networks_is_refused_without_a_public_url(tmp_path: Path) -> None:
    refused = run_up("--data", tmp_path / "data", "--host", "0.0.0.0", home=tmp_path)
    assert refused.returncode == 2
    assert "ROLLOUTDECK_PUBLIC_URL" in refused.stderr and refused.stderr.count("\n") == 1


def test_a_data_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    refused = run_up("--data", tmp_path / "data", "--port", free_port(), home=tmp_path)
    assert refused.returncode == 2
    assert "--data" in refused.stderr and "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/home/ada/data", ""), ("/mnt/team/data", "nfs4"), ("/mnt/with space/x", "fuse.sshfs"), ("/mnt/team/local", "")],
)
def test_a_network_file_system_is_known_from_the_mount_table(tmp_path: Path, path: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 20 0:40 / /mnt/team rw shared:1 - nfs4 filer:/team rw\n"
        "31 30 8:2 / /mnt/team/local rw - xfs /dev/sdb1 rw\n"
        "32 20 0:41 / /mnt/with\\040space rw - fuse.sshfs ada@host: rw\n"
    )
    assert find_network_type(Path(path), table) == kind


def test_a_long_data_path_gets_a_short_private_socket_folder(tmp_path: Path) -> None:
    positions = create_data_folders(tmp_path / ("long" * 25))
    assert len(str(positions.sockets / "redis.sock")) < 100
    assert stat.S_IMODE(positions.sockets.stat().st_mode) == 0o700
    positions.sockets.rmdir()


def test_a_path_with_special_characters_is_not_in_the_configuration_of_the_supervisor(tmp_path: Path) -> None:
    positions = create_data_folders(tmp_path / "50% ; of # it")
    text = write_supervisor_config(positions, [ServerProgram("web", ["x"], positions.data, 10)]).read_text()
    assert "50%" not in text
    positions.sockets.rmdir()


def test_a_run_is_named_after_its_watched_folders() -> None:
    assert build_watched_run_name([Path("/runs/qwen/rollouts")]) == "qwen"
    assert build_watched_run_name([Path("/runs/qwen/rollouts"), Path("/runs/qwen/val")]) == "qwen"
    assert build_watched_run_name([Path("/runs/qwen")]) == "qwen"
