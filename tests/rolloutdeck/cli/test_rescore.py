"""`rolloutdeck rescore` against a real server: real processes call a function of the user."""

from __future__ import annotations

import itertools
import re
from argparse import Namespace
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rolloutdeck.cli.rescore.command import add_options_to_digest
from rollouts.models import Project, Rescore, Run, Sample
from rollouts.query import find_samples
from rollouts.samples import load_results
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)

FUNCTION = """
import os, time, pathlib

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("noise on standard output")
    with open(pathlib.Path(__file__).parent / "calls", "a") as calls:
        calls.write(solution_str + "\\n")
    if "hang" in solution_str:
        time.sleep(60)
    if "die" in solution_str:
        os._exit(3)
    if "raise" in solution_str:
        raise ValueError("no answer found")
    right = solution_str.endswith(str(ground_truth))
    return {"score": float(right), "acc": right, "pred": solution_str[-1:], "lang": extra_info["lang"], "x": [1]}

async def answer_later(solution_str, ground_truth):
    return 0.5

def score_batch(data_sources, solution_strs, ground_truths, extra_infos):
    return [{"score": len(text)} for text in solution_strs]

def no_score(solution_str):
    return {"acc": 1}

def wrong_signature(text):
    return 1.0
"""
TEXTS = ["so 4", "so 5", "hang", "die", "raise", "4"]


@pytest.fixture
def run(node: Path, owner: User, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate"))
    (node / "my.py").write_text(FUNCTION, encoding="utf-8")
    run = builders.run(Project.objects.get())
    rows = [
        {"response": text, "score": 0.0, "ground_truth": "4", "data_source": f"s{number % 2}", "extras": {"lang": "en"}}
        | {"group": str(number), "lang": "en"}
        for number, text in enumerate(TEXTS)
    ]
    push(run, rows)
    return run


def test_each_call_has_a_time_limit_and_finished_samples_are_not_scored_again(
    run: Run, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["rescore", "--fn", f"{node / 'my.py'}:compute_score", "--workers", "2", "--timeout", "1.5"]
    assert main([*words, "--limit", "2"]) == 0
    assert main(words) == 1
    out, shown = capsys.readouterr()
    assert "noise" not in out
    error = "ValueError: no answer found (my.py, line 13)"
    for part in ("2 were done before", "longer than 1.5 s", "exit status 3", error):
        assert part in shown, shown
    rescore = Rescore.objects.get()
    assert (rescore.name, rescore.source, rescore.results, rescore.errors) == ("score.v2", "my.py:compute_score", 3, 3)
    assert [sample.tail for sample in find_samples(run, q="score.v2=1", ordering="order").samples] == ["so 4", "4"]
    assert [sample.tail for sample in find_samples(run, q="score.v2.acc=0").samples] == ["so 5"]
    first = Sample.objects.get(tail="so 5")
    assert load_results(first.step, rescore)[first.pk].parts == {"acc": 0.0, "pred": "5", "lang": "en"}
    total = re.search(r"^all +3 +0\.000 +0\.667 +33\.3% +2 +0", out, re.MULTILINE)
    assert total and re.search(r"^s0 +1 ", out, re.MULTILINE), out

    calls = (node / "calls").read_text().split("\n")
    assert sorted(filter(None, calls)) == sorted(TEXTS), "each sample once"
    assert main(words) == 0, "errors stay, and are no failure of this command"
    assert "3 earlier errors stay; --retry" in capsys.readouterr().err
    assert (node / "calls").read_text().split("\n") == calls
    (node / "my.py").write_text(FUNCTION.replace("float(right)", "2.0 * right").replace("sleep(60)", "sleep(0)"))
    assert main(words) == 2 and "another version: my.py:compute_score" in capsys.readouterr().err
    assert main([*words, "--replace"]) == 1
    assert [sample.tail for sample in find_samples(run, q="score.v2=2", ordering="order").samples] == ["so 4", "4"]


def test_a_changed_module_of_the_same_folder_is_another_version(
    run: Run, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "uses.py").write_text("import helper\n\ndef score(solution_str):\n    return helper.VALUE\n")
    (node / "helper.py").write_text("VALUE = 1.0\n")
    words = ["rescore", "--fn", f"{node / 'uses.py'}:score", "--workers", "1", "--q", "so", "--name", "s.help"]
    assert main(words) == 0
    assert main([*words, "--replace"]) == 0
    assert "2 were done before" in (err := capsys.readouterr().err) and "so they stay" in err
    (node / "helper.py").write_text("VALUE = 0.0  # another size than before\n")
    assert main(words) == 2 and capsys.readouterr().err.startswith("s.help has 2 results of another version")
    assert main([*words, "--replace"]) == 0
    assert find_samples(run, q="s.help=0").total == 2
    assert main([*words, "--json-ground-truth"]) == 2, "the function gets other arguments"
    err = capsys.readouterr().err
    assert "s.help has 2 results of another version" in err and "includes --data-source and --json-ground-truth." in err


def test_options_that_change_the_arguments_are_a_part_of_the_version() -> None:
    digests = {
        add_options_to_digest("0" * 64, Namespace(data_source=source, json_ground_truth=is_json))
        for source, is_json in itertools.product(("", "gsm8k", "math"), (False, True))
    }
    assert len(digests) == 6 and {len(digest) for digest in digests} == {64}  # the server's limit
    without = Namespace(data_source="", json_ground_truth=False)
    assert add_options_to_digest("0" * 64, without) == "0" * 64, "as in earlier versions"


@pytest.mark.parametrize(("name", "error"), [("answer_later", 2), ("score_batch", 2), ("by_source", 0)])
def test_a_response_without_a_text_is_not_scored(
    run: Run, node: Path, capsys: pytest.CaptureFixture[str], name: str, error: int
) -> None:
    (node / "my.py").write_text(FUNCTION + "\ndef by_source(data_source, extra_info):\n    return 1\n")
    push(run, [{"response_ids": [n, 2], "score": 0.0} for n in range(2)], split="eval", kind="token-table")
    push(run, [{"response": text, "score": 1.0} for text in ("", "4", "four")], split="eval", step=2)
    words = ["rescore", "--fn", f"{node / 'my.py'}:{name}", "--workers", "1", "--split", "eval", "--name", "v"]
    assert main(words) == bool(error)
    rescore = Rescore.objects.get()
    assert (rescore.results, rescore.errors) == (5 - error, error)
    if error:
        assert f"{error} × only token ids of the response were recorded" in capsys.readouterr().err


def test_values_that_the_server_would_refuse_are_cut_or_an_error_of_their_sample(
    run: Run, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "odd.py").write_text(
        "def score(solution_str, extra_info):\n"
        "    kind = extra_info['kind']\n"
        "    if kind != 'parts':\n"
        "        return {'big': -1e100, 'huge': 10**400}[kind]\n"
        "    parts = {f'part {n}': n for n in range(20)}\n"
        "    return {'score': 1, 'log': 'x' * 100_000, 'none': '', 'top': 1e120, 'n' * 50: 'a\\0b', **parts}\n"
    )
    push(run, [{"response": kind, "kind": kind} for kind in ("big", "huge")], step=2)
    push(run, [{"response": f"parts {n}", "kind": "parts"} for n in range(198)], step=2, source="parts")
    assert main(["rescore", "--fn", f"{node / 'odd.py'}:score", "--workers", "1", "--step", "2"]) == 1
    rescore = Rescore.objects.get()
    assert (rescore.results, rescore.errors) == (198, 2)
    assert "which is not below 1e+100" in capsys.readouterr().err
    sample = Sample.objects.get(tail="parts 7")
    parts = load_results(sample.step, rescore)[sample.pk].parts
    assert parts == {"log": "x" * 200, "n" * 40: "ab"} | {f"part {n}": float(n) for n in range(10)}


@pytest.mark.parametrize(("name", "values"), [("answer_later", [0.5, 0.5]), ("score_batch", [4.0, 4.0])])
def test_async_functions_and_lists_of_samples(run: Run, node: Path, name: str, values: list[float]) -> None:
    words = ["rescore", "--fn", f"{node / 'my.py'}:{name}", "--workers", "1", "--q", "so", "--name", "other.v1"]
    assert main(words) == 0
    rescore = Rescore.objects.get()
    assert [row.rescores[rescore.key] for row in find_samples(run, q="other.v1>=0").samples] == values


def test_a_function_that_cannot_be_used_says_why(run: Run, node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def read_error(fn: str, *words: str) -> str:
        assert main(["rescore", "--fn", f"{node / fn}", "--workers", "1", *words]) == 2
        return capsys.readouterr().err

    (node / "broken.py").write_text("import nothing_like_this")
    assert "No module named 'nothing_like_this'" in read_error("broken.py:f")
    assert "has no function missing. It has: answer_later, compute_score" in read_error("my.py:missing")
    assert "must take (data_source, solution_str" in read_error("my.py:wrong_signature")
    assert "The trainer logged lang" in read_error("my.py:no_score", "--name", "lang")
    assert "No sample here has the key `typo`" in read_error("my.py:no_score", "--q", "typo=1")
    assert main(["rescore", "--fn", f"{node / 'my.py'}:no_score", "--q", "so"]) == 1
    assert "2 × it returned a dict without `score`: acc" in capsys.readouterr().err
