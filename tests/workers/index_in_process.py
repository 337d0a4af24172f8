"""Indexes a file as a worker process does, with its memory limit, in a new data folder.

python -m tests.workers.index_in_process DATA_FOLDER FILE...: prints the results and the memory as JSON.
"""

import json
import os
import sys
from pathlib import Path


def main(data: str, *paths: str) -> None:
    os.environ |= {"ROLLOUTDECK_DATA": data, "DJANGO_SETTINGS_MODULE": "dashboard.settings", "DATABASE_URL": ""}
    import django

    django.setup()
    from rollouts.backup import apply_migrations
    from rollouts.models import Dump
    from tests.rollouts.support.push import push
    from tests.support import builders
    from workers import memory, tasks

    apply_migrations()
    run = builders.run(builders.project("math"))
    dumps = [push(run, Path(path).read_bytes(), step) for step, path in enumerate(paths)]
    memory.limit_process_memory()
    results = []
    for dump in dumps:
        before = read_status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # starts the peak again
        tasks.index_dump(dump.pk)
        tasks.index_dump(dump.pk)  # a second message changes nothing
        dump = Dump.objects.get(pk=dump.pk)
        results.append(
            {
                "state": dump.state, "rows": dump.rows, "problems": dump.problems, "message": dump.message,
                "tries": dump.tries, "memory": read_status("VmHWM") - before,
            }
        )  # fmt: skip
    print(json.dumps(results))


def read_status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
