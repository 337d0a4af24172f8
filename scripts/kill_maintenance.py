"""Kills backup, restore, fsck and retention at random moments, and checks that nothing is lost.

    python -m scripts.kill_maintenance --kills 200 --seed 7
    scripts/with_postgres.sh python -m scripts.kill_maintenance --kills 200

Each kill is a SIGKILL to a forked process. Every backup is whole, a restored folder has exactly the samples of the
backup, and no fsck finds a row without its file. The data are its own: it forgets the servers of the environment.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.real_servers import forget_real_servers

if TYPE_CHECKING:
    from rollouts.integrity import Problem

DUMPS, ROWS = 24, 6


class Maintenance:
    """A data folder with runs, a backup destination, and the moments of the kills."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.data, self.destination = folder, folder / "data", folder / "backups"
        self.chance = random.Random(seed)
        self.kills = self.samples = 0
        self.step = DUMPS

    def create_data(self) -> None:
        from rollouts.backup import apply_migrations
        from rollouts.models import Project, Run

        apply_migrations()
        project = Project.objects.create(slug="math")
        self.run = Run.objects.create(project=project, name="grpo", uid="uid-grpo")
        for step in range(DUMPS):
            self.add_step(step)

    def add_step(self, step: int) -> None:
        from tests.rollouts.support.push import generation, index_file, lines

        index_file(
            self.run, lines(*(generation(f"{step}+{row}?", str(step + row), step=step) for row in range(ROWS))), step
        )
        self.samples += ROWS

    def fork(self, work: Callable[[], object], kill_after: float | None) -> float:
        """Runs `work` in a process of its own and returns its seconds. Kills it after `kill_after` seconds, if it still
        runs."""
        from django.db import connections

        connections.close_all()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work()
                status = 0
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if kill_after is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.kills += 1
        else:
            assert status == 0, f"{work} failed with status {status}"
        return time.monotonic() - started

    def kill_repeatedly(self, work: Callable[[], object], kills: int, after: Callable[[], object]) -> None:
        """Kills `work` at moments between its start and its usual end, and calls `after` each time."""
        self.fork(work, None)  # the first one also fills caches
        after()
        seconds, goal, tries = self.fork(work, None), self.kills + kills, 0
        after()
        while self.kills < goal and tries < 20 * kills:
            tries += 1
            self.fork(work, self.chance.uniform(0, seconds))
            after()
        self.fork(work, None)
        after()

    def kill_backups(self, kills: int) -> None:
        from rollouts.backup import create_backup

        def check() -> None:
            check_backups(self.destination)
            self.step += 1
            self.add_step(self.step)

        self.kill_repeatedly(lambda: create_backup(self.destination, keep=3), kills, check)

    def kill_restores(self, kills: int) -> None:
        """Restores into new folders: a killed restore is continued until it ends."""
        from rollouts.backup import create_backup
        from rollouts.models import Sample

        self.fork(lambda: create_backup(self.destination), None)
        expected, number = set(Sample.objects.values_list("pk", flat=True)), 0

        def restore() -> None:
            use_data(self.folder / f"restored{number}", number)
            restore_here(self.destination)

        def check() -> None:
            nonlocal number
            restored = self.folder / f"restored{number}"
            if (restored / "raw").exists() and not (restored / "restore-incomplete").exists():
                self.fork(lambda: (use_data(restored, number), check_restored(expected)), None)
                number += 1
                create_database(number)

        create_database(number)
        self.kill_repeatedly(restore, kills, check)

    def kill_repairs(self, kills: int) -> None:
        from rollouts.integrity import CheckOptions, check_integrity, repair_problems

        def repair() -> None:
            repair_problems(check_integrity(CheckOptions(grace=0)).problems, grace=0)

        def damage() -> None:
            bodies = sorted((self.data / "bodies").rglob("*.parquet"))
            for path in self.chance.sample(bodies, 3):
                self.chance.choice((path.unlink, lambda path=path: path.write_bytes(path.read_bytes()[:-20])))()
            (self.data / "bodies" / f"orphan{self.chance.random()}.parquet").write_bytes(b"")
            (self.data / "raw" / "1" / f"orphan{self.chance.random()}.zst").write_bytes(b"")

        damage()
        self.kill_repeatedly(repair, kills, damage)
        self.fork(repair, None)  # of the last damage
        result = check_integrity(CheckOptions(grace=0))
        assert result.problems == [], result.problems[:5]
        check_readable(self.samples)

    def kill_retention(self, kills: int) -> None:
        """Kills passes of a policy, over a new run whenever a run is through."""
        from tests.rollouts.retention.killed_passes import kill_passes

        goal, number = self.kills + kills, 0
        while self.kills < goal:
            number += 1
            self.kills += kill_passes(goal - self.kills, self.chance, f"kept{number}")[0]


def check_files() -> None:
    """Rows miss no file, and removing the orphans leaves nothing that a second check finds."""
    from rollouts.integrity import CheckOptions, check_integrity, repair_problems

    repair_problems(find_orphans(), grace=0)
    result = check_integrity(CheckOptions(grace=0))
    assert result.problems == [], result.problems[:5]


def find_orphans() -> list[Problem]:
    """Returns what killed processes may leave: files without a row. Anything else is a loss."""
    from rollouts.integrity import CheckOptions, check_integrity

    problems = check_integrity(CheckOptions(grace=0)).problems
    lost = [problem for problem in problems if problem.problem != "orphan"]
    assert lost == [], lost[:5]
    return problems


def check_backups(destination: Path) -> None:
    """There is a finished backup, and each has all of its files with the hash of its manifest."""
    from rollouts.backup import iterate_backups
    from rollouts.backup.manifest import compute_sha256

    backups = list(iterate_backups(destination))
    assert backups, "no finished backup"
    for manifest in backups:
        assert compute_sha256(destination / manifest.name / manifest.database) == manifest.database_sha256
        for name, (size, digest) in manifest.files.items():
            path = destination / "files" / name
            assert path.stat().st_size == size and compute_sha256(path) == digest, name
        assert manifest.missing == []


def use_data(data: Path, number: int) -> None:
    """Makes this forked process a server of another data folder and database."""
    from django.conf import settings
    from django.db import connection

    settings.DATA_DIR = data
    name = str(data / "db.sqlite3") if connection.vendor == "sqlite" else f"restored{number}"
    connection.settings_dict["NAME"] = name


def create_database(number: int) -> None:
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE restored{number} TEMPLATE template0")


def restore_here(destination: Path) -> None:
    from django.conf import settings

    from rolloutdeck.up import begin_restore
    from rollouts.backup import restore_backup

    if (settings.DATA_DIR / "raw").exists() and not (settings.DATA_DIR / "restore-incomplete").exists():
        return  # the last one has ended before its kill
    begin_restore(settings.DATA_DIR)
    assert restore_backup(destination).damaged == []


def check_restored(expected: set[str]) -> None:
    """This folder and database have exactly the samples of the backup, and their files."""
    from rollouts.models import Sample

    assert set(Sample.objects.values_list("pk", flat=True)) == expected
    find_orphans()
    check_readable(len(expected))


def check_readable(count: int) -> None:
    """All samples are there, and the text of each can be read."""
    from rollouts.models import Sample
    from rollouts.samples import load_bodies

    samples = list(Sample.objects.filter(step__run__uid="uid-grpo"))
    assert len(samples) == count, f"{len(samples)} samples instead of {count}"
    bodies = load_bodies(samples)
    assert bodies.keys() == {sample.pk for sample in samples}
    assert all(body.response for body in bodies.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd-kill-") as name:
        folder = Path(name)
        forget_real_servers(os.environ)
        os.environ["ROLLOUTDECK_DATA"] = str(folder / "data")
        os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
        os.environ["REDIS_URL"] = f"unix://{folder}/no-redis.sock"
        import logging

        import django

        django.setup()
        logging.disable(logging.ERROR)
        maintenance = Maintenance(folder, args.seed)
        maintenance.create_data()
        parts = (
            maintenance.kill_backups, maintenance.kill_restores, maintenance.kill_repairs, maintenance.kill_retention,
        )  # fmt: skip
        for index, part in enumerate(parts):
            part(args.kills * (index + 1) // len(parts) - args.kills * index // len(parts))
            check_files()
            check_readable(maintenance.samples)
            print(f"{part.__name__}: {maintenance.kills} kills so far, nothing lost", flush=True)


if __name__ == "__main__":
    main()
