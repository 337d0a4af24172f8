"""A server, a training, a watched folder and a person: everything that the faults disturb."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rolloutdeck.protocol import FLAG_LABELS
from tests.chaos.postgres import Postgres
from tests.chaos.proxy import Proxy
from tests.chaos.trainer import NAME, PROJECT, read_ledger
from tests.support.server import Product

WATCHED = "watched"
DISK_BYTES = "400m"
PLAN = "chaos"


class Clock:
    """The wall clock of the server's processes. `is_settable` is False without a C compiler."""

    def __init__(self, folder: Path) -> None:
        self.file, self.shared_object = folder / "clock", folder / "clock.so"
        self.file.write_bytes(struct.pack("l", 0))
        source = str(Path(__file__).with_name("clock.c"))
        command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(self.shared_object), source, "-ldl"]
        self.is_settable = bool(shutil.which("cc")) and subprocess.run(command).returncode == 0

    def set_offset(self, seconds: int) -> None:
        with self.file.open("r+b") as file:
            file.write(struct.pack("l", seconds))

    def build_environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.shared_object), "CHAOS_CLOCK": str(self.file)} if self.is_settable else {}


class ChaosProduct(Product):
    """The server on a small disk of its own, with a clock that can be set, and optionally on PostgreSQL."""

    def __init__(self, folder: Path, database_url: str) -> None:
        super().__init__()
        self.folder, self.database_url, self.clock = folder, database_url, Clock(folder)

    def up(self) -> None:
        self.data = self.folder / "disk" / "data"
        if self.database_url:
            self.environ["DATABASE_URL"] = self.database_url
        self.environ |= self.clock.build_environment()
        super().up()


class World:
    """`with World(rng) as world:` starts all of it. `finish` ends the disturbance and waits for the clients."""

    def __init__(
        self,
        rng: random.Random,
        *,
        postgres: Postgres | None = None,
        has_small_disk: bool = True,
        max_pins: int | None = None,
        step_seconds: float = 0.2,
    ) -> None:
        """`has_small_disk`: the server has a disk of its own that the faults can fill. An hour of use fills it too.
        `max_pins`: the person pins so many steps, and then only flags samples. `step_seconds`: between two steps of
        the trainer."""
        self.rng, self.postgres, self.has_small_disk = rng, postgres, has_small_disk
        self.max_pins, self.step_seconds = max_pins, step_seconds

    def __enter__(self) -> World:
        self.folder = Path(tempfile.mkdtemp(prefix="rd-chaos-"))
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.disk)]
        self.has_own_disk = self.has_small_disk and subprocess.run(mount, capture_output=True).returncode == 0
        self.product = ChaosProduct(self.folder, self.postgres.url if self.postgres else "")
        self.product.__enter__()
        self.proxy = Proxy(self.product.port, self.rng)
        self.ledger, self.stop_file = self.folder / "live" / "ledger", self.folder / "stop"
        self.ledger.parent.mkdir()
        self.dumps = self.folder / WATCHED
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self.next_dump_step = 1
        self.flags: dict[str, int] = {}
        self.labels: dict[str, tuple[str, str]] = {}  # of a flag, by its text: sample and label
        self.pins: dict[int, int] = {}
        self.unconfirmed: set[str] = set()
        for name in ("trainer", "watch"):
            self.start(name)
        self.is_over = threading.Event()
        self.person = threading.Thread(target=self._annotate, daemon=True)
        self.person.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.is_over.set()
        for program in self.programs.values():
            with suppress(ProcessLookupError):
                program.send_signal(signal.SIGCONT)
                program.kill()
            program.wait(10)
        self.proxy.close()
        if error is not None:
            kept = Path(tempfile.gettempdir()) / "rolloutdeck-chaos-logs"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.product.data / "logs", kept, dirs_exist_ok=True)
            print(f"The server's logs are in {kept}", file=sys.stderr)
        self.product.__exit__(kind, error, at)
        if self.has_own_disk:
            subprocess.run(["umount", "-l", self.disk], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Starts `trainer`, `watch` or `sync`; also after a kill. Their requests pass the proxy."""
        env = {key: value for key, value in self.product.environ.items() if key != "LD_PRELOAD"}
        env |= {"ROLLOUTDECK_URL": f"http://127.0.0.1:{self.proxy.port}", "ROLLOUTDECK_TOKEN": self.product.token}
        env["PYTHONPATH"] = str(Path(__file__).parents[2])
        commands = {
            "trainer": ["tests.chaos.trainer", str(self.ledger), str(self.stop_file), str(self.step_seconds)],
            "watch": ["rolloutdeck", "watch", str(self.dumps), "--project", PROJECT, "--run", WATCHED],
            "sync": ["rolloutdeck", "sync", str(self.ledger.parent / ".rolloutdeck-spool")],
        }
        self.dumps.mkdir(exist_ok=True)
        command = [sys.executable, "-m", *commands[name]]
        program = subprocess.Popen(command, env=env, stdout=self.product.log, stderr=self.product.log)
        self.programs[name] = program
        return program

    def write_dump(self) -> None:
        """Writes the dump of the next step into the watched folder, slowly, as a trainer does."""
        from tests.support.writer import rows, write_slowly

        folder = self.dumps / "rollout"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in rows(self.next_dump_step, 32)]
        write_slowly(folder / f"{self.next_dump_step}.jsonl", lines, 0.01)
        self.next_dump_step += 1

    def _annotate(self) -> None:
        """Flags samples and pins steps all the time, and remembers what the server has confirmed."""
        steps: set[int] = set()
        while not self.is_over.wait(1):
            with suppress(OSError, ValueError, KeyError, IndexError, StopIteration):  # no answer, or not yet indexed
                runs = self.product.get(f"runs/?project={PROJECT}")["results"]
                run = next(run["id"] for run in runs if run["name"] == NAME)
                step = self.rng.choice(sorted({*read_ledger(self.ledger)} - steps))
                sample = self.rng.choice(self.product.get(f"samples/?run={run}&split=train&step={step}")["results"])
                steps.add(step)
                text = f"flag of step {step}"
                self.unconfirmed.add(text)
                flag = {"sample": sample["id"], "text": text, "label": self.rng.choice(FLAG_LABELS)}
                self.labels[text] = (flag["sample"], flag["label"])
                self.flags[text] = self.product.post("flags/", flag)["id"]
                if len(self.pins) == self.max_pins:
                    continue
                pin = {"run": run, "step": step, "target_step": step, "plan": PLAN, "note": f"pin of step {step}"}
                self.pins[step] = self.product.post("pins/", pin)["id"]

    def wait_for_start(self, seconds: float = 400) -> None:
        """Waits until samples are recorded, a sample is flagged and a step is pinned."""
        deadline = time.monotonic() + seconds
        while not (self.flags and self.pins):
            assert time.monotonic() < deadline, "nothing was recorded, or the person could not annotate"
            time.sleep(0.2)

    def finish(self, seconds: float = 600) -> None:
        """Ends the disturbance and lets the clients send everything, as a user does: with `sync` after the training."""
        self.product.clock.set_offset(0)
        self.proxy.is_down, self.proxy.cut_chance = False, 0.0
        self.is_over.set()
        self.person.join(130)
        for name, program in self.programs.items():
            if program.poll() is not None:
                self.start(name)
        self.stop_file.touch()
        self.programs["trainer"].wait(seconds)
        deadline = time.monotonic() + seconds
        while self.start("sync").wait(seconds):
            assert time.monotonic() < deadline, "rolloutdeck sync did not send the rest"
            time.sleep(2)

    def find_pids(self, part: str) -> list[int]:
        """Processes of the server whose command contains `part`."""
        found = []
        for pid in self.product.pids()[1:]:
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if part in command and ("supervisord" not in command or part == "supervisord"):
                    found.append(pid)
        return found

    def count_free_bytes(self) -> int:
        return shutil.disk_usage(self.disk).free

    def get(self, path: str) -> Any:
        """The API's answer; asks again while the server starts."""
        deadline = time.monotonic() + 200
        while True:
            try:
                return self.product.get(path)
            except urllib.error.HTTPError as error:
                if error.code < 500 or time.monotonic() > deadline:
                    raise
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(1)


def send_signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
