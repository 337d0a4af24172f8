"""All processes of one launch are one run whose rows are all visible; each test starts real processes.

The environments were recorded from the launchers: deepspeed 0.19.8 (`deepspeed --num_accelerators 3`), accelerate
1.15.0 (`accelerate launch --multi_gpu --num_processes 3`), Open MPI 5.0.11 and MPICH 5.0.2 (`mpirun -n 3`). That of
deepspeed on two machines follows `deepspeed/launcher/launch.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rolloutdeck.protocol import LAUNCH_KEY_PATTERN
from rollouts.indexing.indexer import index_dump
from rollouts.models import Attempt, Dump, Run, Sample
from tests.rolloutdeck.support.programs import ROOT

pytestmark = pytest.mark.django_db(transaction=True)
PROCESSES = 3

TORCH = {
    "RANK": "{rank}",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "{rank}",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
DEEPSPEED = {**TORCH, "CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "3"}
NODES = {**TORCH, "MASTER_ADDR": "10.0.0.1", "CROSS_RANK": "{rank}", "CROSS_SIZE": "3", "LOCAL_SIZE": "1"}
ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}
GROUP = {"GROUP_RANK": "0", "ROLE_RANK": "{rank}", "ROLE_WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}
ACCELERATE = {**TORCH, **ELASTIC, **GROUP, "GROUP_WORLD_SIZE": "1", "ACCELERATE_MIXED_PRECISION": "no"}
ACCELERATE_NODES = {
    **TORCH,
    **ELASTIC,
    **GROUP,
    "GROUP_WORLD_SIZE": "3",
    "GROUP_RANK": "{rank}",
    "LOCAL_WORLD_SIZE": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "{rank}", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}", "PMIX_RANK": "{rank}", "PMIX_NAMESPACE": "prterun-node7-15523@1",
}  # fmt: skip
MPICH = {"PMI_RANK": "{rank}", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "{rank}"}
LAUNCHERS = {
    "deepspeed": DEEPSPEED, "deepspeed on machines": NODES, "accelerate": ACCELERATE,
    "accelerate on machines": ACCELERATE_NODES, "open mpi": OPEN_MPI, "mpich": MPICH, "torch": TORCH,
    "rank and size": {"RANK": "{rank}", "WORLD_SIZE": "3"},
}  # fmt: skip

TRAIN = """
import sys, rolloutdeck
from rolloutdeck.client import status
status.INDEX_SECONDS = 0  # nothing indexes meanwhile
def train(number, **options):
    run = rolloutdeck.init(project="math", {name} **options)
    same, own = {{"prompt": "1+1=", "response": "2"}}, {{"prompt": "1+1=", "response": f"from {{number}}"}}
    run.log_samples([same, own, {{**own, "prompt": "2+2="}}], step=1)
    run.finish()
"""
NAMED, UNNAMED = TRAIN.format(name='name="grpo",'), TRAIN.format(name="")
ALLOWED = NAMED.replace('name="grpo"', 'name="grpo", resume="allow"')
# Sends its rows, then waits for a line.
WAIT_AFTER_SENDING = ALLOWED.replace(
    "    run.finish()\n",
    """    run._threads.writer.flush(30)
    run._threads.sender.wait_until_empty(30)
    print("sent", flush=True)
    sys.stdin.readline()
    run.finish()
""",
)
TRAIN_ONCE = "train(sys.argv[1])"
TRAIN_WITH_RANK = "train(sys.argv[1], rank=int(sys.argv[1]), world_size=3)"
# `mode` is fork, spawn or forkserver; `before` and `after` run in the parent.
CHILDREN = """
import multiprocessing
if __name__ == "__main__":
    context = multiprocessing.get_context("{mode}")
    {before}
    children = [context.Process(target=train, args=(rank,){options}) for rank in range(3)]
    [child.start() for child in children]
    {after}
    [child.join() for child in children]
    {end}
    sys.exit(max(child.exitcode for child in children))
"""
INIT, FINISH = 'run = rolloutdeck.init(project="math", name="grpo")', "run.finish()"
LOG = '; run.log_samples([{"prompt": "1+1=", "response": "from the parent"}], step=1)'


@pytest.fixture(autouse=True)
def plain_environment(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROLLOUTDECK_ATTEMPT", "ROLLOUTDECK_RUN"):
        monkeypatch.delenv(name)


def start_process(program: str, rank: int, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    own = {name: value.format(rank=rank) for name, value in environ.items()}
    return subprocess.Popen([sys.executable, "-c", program, str(rank)], cwd=ROOT, env={**os.environ, **own})


def launch(environ: dict[str, str], program: str = NAMED + TRAIN_ONCE, ranks: range = range(PROCESSES)) -> None:
    processes = [start_process(program, rank, environ) for rank in ranks]
    assert [process.wait(60) for process in processes] == [0] * len(processes)


def run_file(folder: Path, program: str) -> None:
    """Runs a program from a file: spawn imports it in each child."""
    path = folder / "train.py"
    path.write_text(program)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, str(path)], cwd=folder, env=environ, timeout=600).returncode == 0


def count_visible_rows(run: Run) -> int:
    for dump in Dump.objects.filter(run=run, state=Dump.State.RECEIVED):
        index_dump(dump.pk)
    return Sample.objects.filter(step__run=run, step__superseded=False, visible=True).count()


@pytest.mark.parametrize("environ", LAUNCHERS.values(), ids=LAUNCHERS)
def test_the_processes_of_a_launcher_are_one_run_with_all_rows(environ: dict[str, str]) -> None:
    launch(environ)
    run = Run.objects.get()
    assert (run.name, run.attempts.count(), count_visible_rows(run)) == ("grpo", 1, 9)


def test_processes_that_give_their_rank_are_one_run_with_all_rows() -> None:
    launch({}, NAMED + TRAIN_WITH_RANK)
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run)) == (1, 9)


@pytest.mark.parametrize("environ", [DEEPSPEED, ACCELERATE, OPEN_MPI], ids=["deepspeed", "accelerate", "open mpi"])
def test_processes_of_a_run_without_a_name_are_one_run_too(environ: dict[str, str]) -> None:
    launch(environ, UNNAMED + TRAIN_ONCE)
    assert count_visible_rows(Run.objects.get()) == 9


# The parent calls `init` before or after it starts its children.
BEFORE, AFTER = {"before": INIT + LOG, "end": FINISH}, {"after": INIT + LOG, "end": FINISH}


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("fork", {}), ("spawn", {}), ("forkserver", {}),
        ("fork", BEFORE), ("spawn", BEFORE), ("forkserver", BEFORE),
        ("fork", AFTER), ("spawn", AFTER), ("forkserver", AFTER),
        ("spawn", {"options": ", kwargs={'rank': rank, 'world_size': 3}"}),
    ],
)  # fmt: skip
def test_children_of_multiprocessing_are_one_run(tmp_path: Path, mode: str, parts: dict[str, str]) -> None:
    program = CHILDREN.format(
        **{"mode": mode, "before": "pass", "after": "pass", "end": "pass", "options": "", **parts}
    )
    run_file(tmp_path, NAMED + program)
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run)) == (1, 9 + ("end" in parts))


def test_a_relaunch_is_a_new_attempt_that_supersedes_the_first() -> None:
    program = ALLOWED + TRAIN_ONCE
    launch(DEEPSPEED, program)
    launch(DEEPSPEED, program)
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run)) == (2, 9)
    assert Sample.objects.filter(step__run=run, visible=True).count() == 18


TRAIN_TWICE = """
train(sys.argv[1])
train(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, 1),
        ({"SLURM_JOB_ID": "9"}, 1),
        ({**ELASTIC, "TORCHELASTIC_RUN_ID": "abc"}, 1),
        (DEEPSPEED, 3),
        (ACCELERATE, 3),
    ],
    ids=["plain", "slurm", "torchrun", "deepspeed", "accelerate"],
)
def test_a_run_that_is_opened_again_after_its_end_is_a_new_attempt(environ: dict[str, str], ranks: int) -> None:
    launch(environ, ALLOWED + TRAIN_TWICE, range(ranks))
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run)) == (2, 3 * ranks)
    assert Sample.objects.filter(step__run=run, visible=True).count() == 6 * ranks


WAIT = "import sys, time; time.sleep(2 * (sys.argv[1] == '2'))"  # in the last rank
SLOW_START = f"{WAIT}\n{ALLOWED}"
SLOW_END = ALLOWED.replace("    run.finish()\n", f"    {WAIT}\n    run.finish()\n")


@pytest.mark.parametrize("program", [SLOW_START, SLOW_END], ids=["slow start", "slow end"])
@pytest.mark.parametrize("environ", [DEEPSPEED, ACCELERATE], ids=["deepspeed", "accelerate"])
def test_a_rank_that_is_slower_than_the_others_belongs_to_both_attempts(environ: dict[str, str], program: str) -> None:
    launch(environ, program + TRAIN_TWICE)
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run)) == (2, 9)


def test_an_attempt_that_the_user_has_set_stays_the_same() -> None:
    launch({"ROLLOUTDECK_ATTEMPT": "mine"}, ALLOWED + TRAIN_TWICE, range(1))
    assert [attempt.key for attempt in Run.objects.get().attempts.all()] == ["mine"]


@pytest.mark.parametrize("mode", ["fork", "spawn"])
def test_children_share_the_attempt_of_the_run_that_was_opened_again(tmp_path: Path, mode: str) -> None:
    program = CHILDREN.format(mode=mode, before=f"{INIT}; {FINISH}; {INIT + LOG}", after="pass", end=FINISH, options="")
    run_file(tmp_path, (ALLOWED + program).replace('name="grpo")', 'name="grpo", resume="allow")'))
    run = Run.objects.get()
    first, second = run.attempts.order_by("number")
    assert count_visible_rows(run) == 10
    assert set(Sample.objects.values_list("step__attempt", flat=True)) == {second.pk}


def start_waiting(count: int) -> list[subprocess.Popen[str]]:
    """Starts processes as a loop of a shell does, without ranks. They have sent their rows, and wait for a line."""
    options = {
        "cwd": ROOT,
        "text": True,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    command = [sys.executable, "-c", WAIT_AFTER_SENDING + TRAIN_ONCE]
    processes = [subprocess.Popen([*command, str(number)], **options) for number in range(count)]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == "sent\n"
    return processes


def test_processes_of_an_unknown_launch_show_all_rows_and_a_warning(client: Client, owner: User) -> None:
    processes = start_waiting(PROCESSES)
    messages = [process.communicate("\n", timeout=600)[1] for process in processes]
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run), run.outcome) == (3, 9, "finished")
    warnings = sorted(text.count("as a separate attempt") for text in messages)
    assert warnings[1:] == [1, 1]  # the first too, if another one opens the run before the server has answered it
    client.force_login(owner)
    assert "3 processes reported as separate attempts" in client.get(f"/runs/{run.uid}/").content.decode()


def test_a_restart_of_a_killed_process_supersedes_it_at_once() -> None:
    killed = start_waiting(1)[0]
    killed.kill()
    killed.communicate()
    assert count_visible_rows(Run.objects.get()) == 3
    [restarted] = start_waiting(1)
    _, message = restarted.communicate("\n", timeout=600)
    run = Run.objects.get()
    assert (run.attempts.count(), count_visible_rows(run)) == (2, 3)
    assert Sample.objects.filter(step__superseded=False).first().step.attempt.number == 2
    assert "separate attempt" not in message


def test_a_relaunch_without_resume_is_a_new_run() -> None:
    launch(DEEPSPEED)
    launch(DEEPSPEED)
    runs = Run.objects.order_by("pk")
    assert [run.name for run in runs] == ["grpo", "grpo-2"]
    assert [count_visible_rows(run) for run in runs] == [9, 9]


def test_two_launches_at_the_same_time_are_two_runs() -> None:
    second = {**DEEPSPEED, "MASTER_PORT": "29501"}
    processes = [
        start_process(NAMED + TRAIN_ONCE, rank, environ) for rank in range(PROCESSES) for environ in (DEEPSPEED, second)
    ]
    assert [process.wait(60) for process in processes] == [0] * 6
    runs = Run.objects.order_by("pk")
    assert [run.name for run in runs] == ["grpo", "grpo-2"]
    assert [count_visible_rows(run) for run in runs] == [9, 9]


def test_the_end_of_rank_0_ends_the_run_and_that_of_another_does_not() -> None:
    program = NAMED.replace("    run.finish()\n", "    run.exit_timeout = 20\n") + TRAIN_ONCE
    launch(OPEN_MPI, program, range(1, PROCESSES))
    assert Run.objects.get().outcome == ""
    launch(OPEN_MPI, program, range(1))
    assert Run.objects.get().outcome == "finished"
    assert Attempt.objects.count() == 1


def test_the_key_of_an_attempt_contains_the_rank() -> None:
    launch(DEEPSPEED, ranks=range(2, 3))
    match = LAUNCH_KEY_PATTERN.match(Attempt.objects.get().key)
    assert match and match["rank"] == "2"
