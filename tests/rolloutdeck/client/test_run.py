"""A run of the client: what it logs arrives at the server, and nothing that it does raises an error."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pyarrow
import pytest

from rolloutdeck.client import process_identity, start
from rolloutdeck.client.run import Run
from rolloutdeck.lib import log
from tests.rolloutdeck.support.fake_server import Receiver, wait_until

Start = Callable[..., Run]
ROWS = [{"prompt": "1+1=", "response": "2", "score": 1.0}, {"prompt": "1+2=", "response": "vier", "score": 0.0}]


def read_sent_rows(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(line) for body in receiver.bodies() for line in body.splitlines()]


def test_what_a_trainer_logs_arrives_once_under_its_run_and_attempt(
    start: Start, connected_receiver: Receiver, tmp_path: Path
) -> None:
    dump = tmp_path / "12.jsonl"
    dump.write_bytes(b'{"input": "a", "output": "b", "score": 1}\n')
    run = start(config={"lr": 1e-6}, framework="tiny", resume="allow", tags=["a"])
    run.log({"critic/score/mean": 0.5}, step=12)
    run.log_samples(ROWS, step=12, split="eval")
    run.log_file(dump, step=12, format="verl-jsonl", source="rollouts/12.jsonl")
    run.finish()
    assert connected_receiver.posts[0][1]["config"] == {"lr": 1e-6}
    assert connected_receiver.run_headers[0] == ("math", "grpo", "allow")
    [point] = connected_receiver.points()
    assert (point["step"], point["values"]) == (12, {"critic/score/mean": 0.5})
    (uid, samples, rows), (_, file, shipped) = connected_receiver.dumps
    assert uid == run.uid and [json.loads(line) for line in rows.splitlines()] == ROWS
    assert samples.pop("source").startswith("call:")
    assert samples == {
        "attempt": "first",
        "split": "eval",
        "step": "12",
        "step_kind": "global_step",
        "format": "native",
    }
    assert (file["source"], file["format"], shipped) == ("rollouts/12.jsonl", "verl-jsonl", dump.read_bytes())
    assert connected_receiver.posts[-1][1] == {"attempt": "first", "outcome": "finished"}
    assert set(connected_receiver.tokens) == {"Bearer secret"}


def test_nothing_stays_on_disk_when_all_is_sent(start: Start, spool_root: Path) -> None:
    run = start()
    run.log_samples(ROWS, step=1)
    run.finish()
    assert list(spool_root.iterdir()) == []


def test_finishing_twice_sends_one_finish(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    run.finish("failed")
    run.finish()
    assert connected_receiver.posted("/finish/") == [{"attempt": "first", "outcome": "failed"}]


@pytest.mark.parametrize("timeout", [None, float("inf"), "30", "soon", float("nan")])
def test_finish_takes_any_limit_and_loses_nothing(start: Start, connected_receiver: Receiver, timeout: Any) -> None:
    run = start(exit_timeout=timeout)
    run.log_samples(ROWS * 500, step=1)
    assert run.status(timeout=timeout).logged == 1000
    run.finish(timeout=timeout)
    assert len(read_sent_rows(connected_receiver)) == 1000
    assert len(connected_receiver.posted("/finish/")) == 1


@pytest.mark.parametrize(
    ("code", "outcome"), [(None, "finished"), (0, "finished"), (1, "failed"), ("no data", "failed")]
)
def test_a_program_that_exits_within_its_run_has_finished_or_failed(
    start: Start, connected_receiver: Receiver, code: Any, outcome: str
) -> None:
    with pytest.raises(SystemExit), start() as run:
        run.log({"loss": 1.0}, step=1)
        sys.exit(code)
    assert connected_receiver.posted("/finish/") == [{"attempt": "first", "outcome": outcome}]


def test_an_error_of_a_notebook_before_the_run_is_no_error_of_the_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("a typo in a cell"), raising=False)
    run = start()
    assert not process_identity.has_failed(run._earlier_error)
    monkeypatch.setattr(sys, "last_value", ValueError("in the training"))
    assert process_identity.has_failed(run._earlier_error)


def test_invalid_values_do_not_lose_the_others(start: Start, connected_receiver: Receiver) -> None:
    run = start(tags="baseline")
    run.log({"loss": 0.5, "huge": 10**5000}, step=1)
    run.report_replay(step=3, outcome="hit", rows=numpy.int64(256))
    run.finish()
    assert connected_receiver.posts[0][1]["tags"] == ["baseline"]
    assert [point["values"] for point in connected_receiver.points()][:1] == [{"loss": 0.5, "huge": None}]
    assert [note["rows"] for note in connected_receiver.posted("/replays/")] == [256]


def test_metrics_that_wait_are_sent_together(start: Start, connected_receiver: Receiver) -> None:
    connected_receiver.mode = "500"
    run = start()
    for step in range(50):
        run.log({"loss": step / 2}, step=step)
        run._threads.writer.flush(5)
    connected_receiver.mode = "ok"
    run.finish()
    assert [point["values"]["loss"] for point in connected_receiver.points()] == [step / 2 for step in range(50)]
    assert len(connected_receiver.posted("/metrics/")) <= 2  # the last may have been written while the others were sent


def test_a_metric_that_is_not_a_number_is_null_and_text_is_left_out(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    values = {"a": float("nan"), "b": float("-inf"), "c": True, "d": "text", "e": {"f": 2}, "g": None, "h": [1, 2]}
    run.log(values, step=1)
    run.finish()
    assert connected_receiver.points()[0]["values"] == {"a": None, "b": None, "c": 1, "e/f": 2, "g": None}


def test_a_sample_keeps_nan_surrogates_unknown_keys_and_what_has_no_json_form(
    start: Start, connected_receiver: Receiver
) -> None:
    run = start()
    strange = {
        "prompt": "\ud800\u2028",
        "score": float("nan"),
        7: {"path": Path("/x")},
        "tags": {"only"},
        "raw": b"\xff",
    }
    run.log_samples(strange, step=1)
    run.finish()
    [row] = read_sent_rows(connected_receiver)
    assert row.pop("score") != row.get("score")
    assert row == {"prompt": "\ud800\u2028", "7": {"path": "/x"}, "tags": ["only"], "raw": "\\xff"}


def test_a_row_that_contains_itself_is_counted_and_the_others_arrive(
    start: Start, connected_receiver: Receiver
) -> None:
    run = start()
    endless: dict[str, Any] = {"prompt": "a"}
    endless["extra"] = [endless]
    run.log_samples([ROWS[0], endless, ROWS[1]], step=1)
    run.log_samples([endless], step=2)
    run.finish()
    assert read_sent_rows(connected_receiver) == ROWS
    assert connected_receiver.posted("/heartbeat/")[-1]["dropped"] == {
        run._threads.spool.name: {"samples: no JSON form": 2}
    }


class BrokenTensor:
    def tolist(self) -> list[float]:
        raise RuntimeError("a library's own mistake")


def test_a_row_with_an_object_that_raises_loses_no_other_row(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    run.log_samples([ROWS[0], {**ROWS[0], "extra": BrokenTensor()}, ROWS[1]], step=1)
    run.finish()
    assert read_sent_rows(connected_receiver) == ROWS
    assert run._threads.spool.dropped == {"samples: no JSON form": 1}


@dataclass(slots=True)
class Verdict:
    correct: bool


@dataclass(slots=True)
class PromptRow:
    prompt: str


@dataclass(slots=True)
class SlotsRow(PromptRow):
    response: str
    verdict: Verdict


def test_dataclasses_with_slots_keep_inherited_and_nested_fields(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    run.log_samples([SlotsRow("1+1=", "2", Verdict(correct=True))], step=1)
    run.finish()
    assert read_sent_rows(connected_receiver) == [{"prompt": "1+1=", "response": "2", "verdict": {"correct": True}}]


def test_arrays_and_tables_become_rows(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    run.log({"x": numpy.float32(0.5), "y": numpy.array([[3]]), "long": numpy.arange(3)}, step=numpy.int64(1))
    run.log_samples([{"response_ids": numpy.arange(3), "score": numpy.float32(0.5)}], step=1)
    run.log_samples(pyarrow.table({"prompt": [str(n) for n in range(150)]}), step=2)
    run.log_samples(polars.DataFrame({"prompt": ["p"], "score": [1.5]}), step=3.0)
    run.finish()
    assert connected_receiver.points()[0]["values"] == {"x": 0.5, "y": 3}
    rows = read_sent_rows(connected_receiver)
    assert rows[0] == {"response_ids": [0, 1, 2], "score": 0.5}
    assert rows[1:151] == [{"prompt": str(n)} for n in range(150)]
    assert rows[151] == {"prompt": "p", "score": 1.5}


def test_a_pandas_table_becomes_rows(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    run.log_samples(pandas.DataFrame({"prompt": ["a", "b"], "score": [1, 2]}), step=1)
    run.finish()
    assert read_sent_rows(connected_receiver) == [{"prompt": "a", "score": 1}, {"prompt": "b", "score": 2}]


def test_rows_changed_after_the_call_arrive_as_they_were(start: Start, connected_receiver: Receiver) -> None:
    run = start()
    rows = [dict(row) for row in ROWS]
    run.log_samples(rows, step=1)
    for row in rows:
        row["prompt"] = "changed"
    run.finish()
    assert read_sent_rows(connected_receiver) == ROWS


def test_each_invalid_call_logs_one_warning(
    start: Start, connected_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    run: Any = start()
    run.log("text", step=1)
    run.log({"a": 1})
    run.log({"a": 1}, step="twelve")
    run.log_samples(None, step=1)
    run.log_samples(ROWS, step=1, split="validation")
    run.log_file(None)
    run.log_file("/nowhere/1.jsonl", step=1)
    for _ in range(3):
        run.log_samples(ROWS, step=1.5)
    run.finish()
    assert connected_receiver.dumps == [] and connected_receiver.points() == []
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    *warnings, last = messages
    assert len(warnings) == 8
    assert any("train, eval" in line for line in warnings)
    assert "0 files sent, 9 calls failed, 1 file: can't be read" in last
    [dropped] = connected_receiver.posted("/heartbeat/")[-1]["dropped"].values()
    assert sum(dropped.values()) == 10


def test_files_that_the_server_refuses_are_named_with_the_reason_once(
    start: Start, connected_receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connected_receiver.mode, connected_receiver.only = "400", "refused"
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl").write_text("refused")
    run = start()
    for number in (1, 2):
        run.log_file(tmp_path / f"{number}.jsonl", step=number, source=f"{number}.jsonl")
    run.finish()
    message, *problems = caplog.records[-1].getMessage().splitlines()
    assert ": 0 files sent, 2 files: rejected by the server." in message
    assert len(problems) == 1 and problems[0].startswith("- 1.jsonl: ")


def test_one_waiting_file_is_counted_as_one(
    start: Start, connected_receiver: Receiver, spool_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connected_receiver.mode = "500"
    run = start(rank=1, world_size=2, exit_timeout=0.1)  # its end sends nothing more than its start
    run.at_exit()
    assert f"1 file waits in {spool_root}" in caplog.text and "Send it with: rolloutdeck sync" in caplog.text
    run.finished = True  # else the fixture waits for the writer, which has ended


def test_names_that_a_server_would_refuse_are_corrected(start: Start, connected_receiver: Receiver) -> None:
    run = start(project="My Maths!", name="a\nb" * 100, resume="must", framework="x" * 99, tags=["t" * 99] * 60)
    run.log({"n" * 400: 1, "new\nline": 2}, step=1)
    run.log_samples(ROWS, step=1, producer="p" * 99)
    run.finish()
    body = connected_receiver.posted("/runs/")[0]
    assert (body["project"], body["name"], body["resume"]) == ("my-maths", ("a?b" * 100)[:190], "")
    assert (len(body["framework"]), len(body["tags"]), len(body["tags"][0])) == (40, 50, 60)
    assert list(connected_receiver.points()[0]["values"]) == ["n" * 300, "new?line"]
    assert len(connected_receiver.dumps[0][1]["producer"]) == 80


def test_a_value_that_raises_loses_only_its_own_point(start: Start, connected_receiver: Receiver) -> None:
    class Broken:
        def item(self) -> float:
            raise KeyError("a library's own mistake")

    run = start()
    run.log({"a": 1}, step=1)
    run.log({"a": Broken()}, step=2)
    run.log({"a": 3}, step=3)
    run.log({"a": 4}, step=-1)
    run.finish()
    assert [point["step"] for point in connected_receiver.points()] == [1, 3]


def test_init_never_raises(connected_receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    endless: list[Any] = []
    endless.append(endless)
    init: Any = start.init
    run = init(project="math", nothing="of the kind")
    run.log({"a": 1}, step=1)
    run.finish()
    run = start.init(project="math", config={"a": endless})
    run.finish()
    assert [body["name"] for body in connected_receiver.posted("/runs/")] == [run.name]
    assert "config" not in connected_receiver.posted("/runs/")[0]


def test_without_a_server_data_is_kept_until_there_is_one(
    connected_receiver: Receiver,
    start: Start,
    spool_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delenv("ROLLOUTDECK_URL")
    run = start()
    run.log_samples(ROWS, step=1)
    assert "rolloutdeck up" in caplog.text
    wait_until(lambda: len(run._threads.spool.list_files()) == 2)
    monkeypatch.setenv("ROLLOUTDECK_URL", connected_receiver.url)
    wait_until(lambda: connected_receiver.dumps)


def test_a_process_without_logging_prints_the_url_of_its_run_on_stderr(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log.logger, "propagate", False)  # to the handlers of pytest
    run = start()
    run.log({"loss": 1.0}, step=1)
    run.finish()
    assert run.url and f" at {run.url}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "configure",
    [
        "logging.basicConfig(level=logging.WARNING)",
        "logging.getLogger().addHandler(logging.StreamHandler())",  # verl's: the root logger keeps its level WARNING
        "logging.basicConfig(level=logging.INFO); logging.getLogger().handlers[0].setLevel(logging.ERROR)",
        "logging.getLogger('rolloutdeck').addHandler(logging.NullHandler())",
        "logging.getLogger('rolloutdeck'); logging.config.dictConfig({'version': 1})",
        "logging.disable(logging.INFO)",
        "logging.basicConfig(level=logging.INFO)",
    ],
)
@pytest.mark.usefixtures("connected_receiver")
def test_the_url_and_the_last_line_are_shown_once_whatever_the_log_level(configure: str) -> None:
    program = (
        f"import logging, logging.config, rolloutdeck\n{configure}\nrun = rolloutdeck.init(project='math')\n"
        "run.log_samples([{'prompt': 'q', 'response': 'a'}], step=1)\nrun.finish()\nprint(run.url)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert ended.stderr.count(f"at {ended.stdout.strip()}\n") == 1
    assert ended.stderr.count(": 1 row sent") == 1


def test_nothing_is_printed_if_the_logger_is_silenced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log.logger, "level", logging.WARNING)
    log.log_or_print("Run %s", "grpo")
    assert capsys.readouterr().err == ""


def test_a_message_to_a_closed_stderr_is_lost_without_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(log.logger, "propagate", False)
    with (tmp_path / "closed").open("w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
    log.log_or_print("Run %s", "grpo")


def test_importing_the_client_loads_only_the_standard_library() -> None:
    program = (
        "import sys, rolloutdeck; rolloutdeck.init; rolloutdeck.Run\n"
        "import rolloutdeck.client.upload.sync\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"rolloutdeck", "__main__"}
