"""`rolloutdeck judge` against a real server and a local endpoint that counts its calls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rolloutdeck.cli.rescore import judge, transfer
from rolloutdeck.cli.rescore.instructions import TemplateInstructions, build_rubric_instructions, read_object
from rolloutdeck.lib import ServerClient, ServerResponse, ServerUnreachableError
from rollouts.labels import save_rubric
from rollouts.models import Label, Project, Rescore, Run, Sample
from rollouts.query import find_samples
from rollouts.rescores import list_results
from tests.rollouts.support.query_rows import push
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)

SAMPLES = 24
QUESTIONS: list[dict[str, Any]] = [
    {"key": "correct", "title": "Is it correct?", "kind": "yes-no", "required": True},
    {"key": "quality", "title": "How good is it?", "kind": "rating"},
]


class Endpoint:
    """Answers chat completions. `calls` counts them by sample, `answered` those that got an answer."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.refuse: list[int] = []  # statuses of the next calls
        self.seconds = 0.0
        self.text = '{"correct": %s, "quality": 4, "rationale": "checked"}'
        self.message: dict[str, Any] = {}  # fields that replace those of the answer
        self.finish_reason = "stop"
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with endpoint.lock:
                    status = endpoint.refuse.pop() if endpoint.refuse else 200
                    sample = re.findall(r"response (\d+)", body["messages"][-1]["content"])[0]
                    endpoint.calls[sample] += status == 200
                    endpoint.requests.append(body)
                    endpoint.keys.add(self.headers.get("Authorization", ""))
                time.sleep(endpoint.seconds)
                text = endpoint.text % str(int(sample) % 2 == 0).lower() if "%s" in endpoint.text else endpoint.text
                message = {"content": text, **endpoint.message}
                choice = {"message": message, "finish_reason": endpoint.finish_reason}
                data = json.dumps({"choices": [choice]}).encode()
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
                with endpoint.lock:
                    endpoint.answered[sample] += status == 200

            def log_message(self, *args: Any) -> None:
                """Prints nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    running = Endpoint()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def run(node: Path, owner: User, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate"))
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    project = Project.objects.get()
    save_rubric(project, owner, QUESTIONS, "Check the arithmetic.")
    run = builders.run(project)
    push(run, [{"response": f"response {n}", "score": float(n % 3 == 0), "group": str(n)} for n in range(SAMPLES)])
    return run


def build_words(endpoint: Endpoint, *more: str) -> list[str]:
    words = ["judge", "--endpoint", endpoint.url, "--model", "tiny-judge", "--key-env", "JUDGE_KEY"]
    return [*words, "--concurrency", "4", *more]


def test_answers_are_labels_of_the_model_and_numbers(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.refuse = [429, 503, 500]
    assert main(build_words(endpoint, "--rubric")) == 0
    out = capsys.readouterr()
    assert "score.judge: 24 results, 0 errors" in out.err and set(endpoint.calls.values()) == {1}
    assert endpoint.keys == {"Bearer s3cret"}
    request = endpoint.requests[-1]
    assert request["model"] == "tiny-judge" and "Check the arithmetic." in request["messages"][0]["content"]
    labels = Label.objects.filter(source="model", author="tiny-judge")
    assert Counter(labels.values_list("name", flat=True)) == {"correct": SAMPLES, "quality": SAMPLES}
    label = labels.filter(name="correct").first()
    assert label and label.rationale == "checked"
    assert find_samples(run, q="score.judge=1 label.correct=yes").total == SAMPLES // 2
    assert find_samples(run, q="disagrees:score.judge").total == 12

    assert main(build_words(endpoint, "--rubric")) == 0 and set(endpoint.calls.values()) == {1}
    assert main(build_words(endpoint, "--rubric", "quality")) == 2, "other questions are another judge"
    assert "another version" in capsys.readouterr().err


def test_a_judge_that_is_killed_half_way_calls_no_sample_twice(run: Run, endpoint: Endpoint, node: Path) -> None:
    endpoint.seconds = 0.15
    command = [sys.executable, "-m", "rolloutdeck", *build_words(endpoint, "--rubric")]
    for answers in (6, 14):
        process = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE)
        while endpoint.answered.total() < answers and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    endpoint.seconds = 0.0
    assert main(build_words(endpoint, "--rubric")) in (0, 1)
    assert set(endpoint.calls.values()) == {1}, "no sample was sent twice"
    rescore = Rescore.objects.get()
    errors = list_results(rescore, step=1, only_errors=True)
    assert all("no answer was stored" in result.error for _sample, result in errors)
    assert 1 <= len(errors) <= 8, "the calls that ran when it was killed, whether they arrived or not"
    assert (rescore.results, rescore.errors) == (SAMPLES - len(errors), len(errors))

    assert main(build_words(endpoint, "--rubric", "--retry")) == 0
    rescore.refresh_from_db()
    assert (rescore.results, rescore.errors) == (SAMPLES, 0)
    assert len(endpoint.calls) == SAMPLES and endpoint.calls.total() <= SAMPLES + len(errors)


@pytest.mark.parametrize("times", [1, 2])
def test_a_judge_that_is_interrupted_waits_for_its_calls_until_the_second_time(
    run: Run, endpoint: Endpoint, node: Path, times: int
) -> None:
    endpoint.seconds = 2.0 if times == 1 else 60.0
    command = [sys.executable, "-m", "rolloutdeck", *build_words(endpoint, "--rubric")]
    process = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    while len(endpoint.requests) < 4:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "Waiting for 4 calls; press Ctrl-C again to leave them.\n"
    if times == 2:
        process.send_signal(signal.SIGINT)
    assert "Stopped. " in process.communicate(timeout=600)[1]
    assert Rescore.objects.get().results == endpoint.answered.total() == 4 * (2 - times)


def test_errors_of_the_endpoint_and_of_the_model(
    run: Run, endpoint: Endpoint, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "ask.txt").write_text("Rate {response} of {prompt} as JSON with score")
    words = build_words(endpoint, "--prompt", str(node / "ask.txt"), "--name", "score.mine", "--limit", "3")
    endpoint.refuse = [401] * 4
    assert main(words) == 2 and "No call can work: the endpoint answered 401" in capsys.readouterr().err
    endpoint.text, endpoint.refuse = "I like it", [400]
    assert main(words) == 1
    shown = capsys.readouterr().err
    assert "2 × the model answered no score: I like it" in shown and "1 × the endpoint answered 400" in shown
    endpoint.text = '<think>{"score": 1}</think>\n```json\n{"score": 0.25, "rationale": "fair"}\n```'
    assert main([*words, "--retry"]) == 0
    assert find_samples(run, q="score.mine=0.25").total == 3 and not Label.objects.exists()
    endpoint.server.shutdown()
    endpoint.server.server_close()
    assert main([*words, "--limit", "6", "--tries", "1"]) == 2 and "does not answer" in capsys.readouterr().err


def test_answers_that_the_server_would_refuse_do_not_stop_the_others(
    run: Run, endpoint: Endpoint, owner: User, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each batch has one of them."""
    notes = {"key": "notes", "title": "Notes", "kind": "text"}
    save_rubric(run.project, owner, [*QUESTIONS, notes, {**notes, "key": "more"}], "")
    endpoint.text = '{"correct": %s, "notes": "", "more": "a\\u0000b", "rationale": "\\ud800so\\u0000"}'
    assert main(build_words(endpoint, "--rubric")) == 0
    labels = Label.objects.filter(source="model")
    assert set(labels.values_list("name", "value", "rationale")) == {
        ("correct", True, "so"), ("correct", False, "so"), ("more", "ab", "so")}  # fmt: skip
    (node / "ask.txt").write_text("Rate {response} as JSON with score")
    words = build_words(endpoint, "--prompt", str(node / "ask.txt"), "--limit", "2", "--name")
    for name, score in (("score.inf", "Infinity"), ("score.big", "1e120"), ("score.huge", "1" * 400)):
        endpoint.text = f'{{"score": {score}}}'
        assert main([*words, name]) == 1
        assert f"{name}: 0 results, 2 errors" in (err := capsys.readouterr().err) and "answered no score" in err


def test_a_sample_that_is_deleted_meanwhile_does_not_stop_the_others(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = judge.LabelUploader.store
    gone: list[str] = []

    def delete_first(uploader: judge.LabelUploader, batch: list[dict[str, Any]]) -> int:
        if not gone:
            gone.append(batch[0]["sample"])
            Sample.objects.filter(pk=gone[0]).delete()
        return store(uploader, batch)

    monkeypatch.setattr(judge.LabelUploader, "store", delete_first)
    assert main(build_words(endpoint, "--rubric")) == 0
    assert Label.objects.filter(source="model", name="correct").count() == SAMPLES - 1
    assert Rescore.objects.get().results == SAMPLES - 1 and endpoint.calls.total() == SAMPLES


def test_a_judge_whose_labels_would_be_refused_makes_no_call(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*build_words(endpoint, "--rubric"), "--model", "x" * 151]) == 2
    assert "has 151 characters" in capsys.readouterr().err
    Project.objects.get().rubrics.all().delete()
    assert main(build_words(endpoint, "--rubric")) == 2
    assert "The project has no rubric." in capsys.readouterr().err
    assert not endpoint.calls and not Rescore.objects.exists()


def test_a_call_without_a_connection_counts_as_not_sent(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    words = build_words(endpoint, "--rubric")
    address = endpoint.url.replace("http://", "https://")
    assert main([address if word == endpoint.url else word for word in words] + ["--tries", "1"]) == 2
    assert "The endpoint does not answer" in capsys.readouterr().err and Rescore.objects.get().errors == 0
    assert main(words) == 0 and set(endpoint.calls.values()) == {1}


@pytest.mark.parametrize("content", ["Is the answer right?", '["a"]\n{}', "one\ntwo"])
def test_a_file_that_is_no_journal_is_refused_and_not_changed(
    run: Run, endpoint: Endpoint, node: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = node / "notes.txt"
    path.write_text(content)
    assert main(build_words(endpoint, "--rubric", "--journal", str(path))) == 2
    assert f"{path} is not the journal of a judge" in capsys.readouterr().err
    assert path.read_text() == content and not endpoint.calls


def test_a_journal_belongs_to_one_judge(
    run: Run, endpoint: Endpoint, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = node / "calls.jsonl"
    words = build_words(endpoint, "--rubric", "--journal", str(path))
    assert main(words) == 0
    for number, other in enumerate((["--model", "big-judge"], ["--rubric", "correct"], ["--body", '{"seed": 2}'])):
        assert main([*words, *other, "--name", f"score.other{number}"]) == 2
        err = capsys.readouterr().err
        assert f"The journal {path} has answers of another judge (model tiny-judge, --name score.judge)" in err
    assert main([*words, "--name", "score.same"]) == 0, "the same judge, and its answers are paid"
    assert endpoint.calls.total() == SAMPLES and find_samples(run, q="score.same=1").total == SAMPLES // 2

    before = path.read_bytes() + b'{"event": "sent", "sam'  # a kill cut the last line
    path.write_bytes(before)
    assert main([*words, "--body", '{"seed": 2}', "--replace"]) == 2
    assert "--name score.judge); its prompt, rubric or --body differs. Use" in capsys.readouterr().err
    assert path.read_bytes() == before and find_samples(run, q="score.judge=1").total == SAMPLES // 2
    assert main([*words, "--name", "score.same"]) == 0, "a cut line is no call"

    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))  # as earlier versions wrote it
    assert main([*words, "--name", "score.old"]) == 0 and endpoint.calls.total() == SAMPLES
    assert main([*words, "--model", "big-judge", "--name", "score.other0"]) == 2


def test_a_journal_without_a_call_belongs_to_the_next_judge(run: Run, endpoint: Endpoint, node: Path) -> None:
    words = build_words(endpoint, "--rubric", "--limit", "1")
    assert main(words) == 0
    for body in ('{"seed": 2}', '{"seed": 3}'):  # the server refuses the name
        assert main([*words, "--journal", str(node / "calls.jsonl"), "--body", body]) == 2
    assert main([*words, "--journal", str(node / "calls.jsonl"), "--name", "score.other"]) == 0


def test_results_are_not_replaced_if_the_journal_can_t_be_written(
    run: Run,
    endpoint: Endpoint,
    node: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(build_words(endpoint, "--rubric", "--limit", "2")) == 0
    (node / "file").touch()
    monkeypatch.setattr(judge, "FOLDER", node / "file" / "judge")
    assert main(build_words(endpoint, "--rubric", "quality", "--replace")) == 2
    shown = capsys.readouterr().err
    assert f"No journal can be written in {node}/file/judge: " in shown and "with --journal." in shown
    assert Rescore.objects.get().results == endpoint.calls.total() == 2


class FailingServer:
    """Requests to the server that fail: the next `count` that post to `path`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.count, self.status = "", 0, 0
        send = ServerClient.request

        def request(client: ServerClient, method: str, path: str, **options: Any) -> ServerResponse:
            if self.count and path.endswith(self.path):
                self.count -= 1
                if not self.status:
                    raise ServerUnreachableError("connection refused")
                return ServerResponse(self.status, {}, b'{"error": {"message": "no"}}', self.status < 500)
            return send(client, method, path, **options)

        monkeypatch.setattr(ServerClient, "request", request)
        monkeypatch.setattr(transfer, "BATCH_RESULTS", 1)
        monkeypatch.setattr(transfer, "MAX_PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize("path", ["labels/", "results/", "pending/"])
@pytest.mark.parametrize("status", [0, 429, 502])
def test_a_server_that_is_restarted_is_waited_for(
    run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, path: str, status: int
) -> None:
    server = FailingServer(monkeypatch)
    server.path, server.count, server.status = path, 3, status
    assert main(build_words(endpoint, "--rubric")) == 0 and server.count == 0
    assert Label.objects.filter(source="model").count() == 2 * SAMPLES and set(endpoint.calls.values()) == {1}


def test_calls_that_run_when_the_server_refuses_are_not_lost(
    run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FailingServer(monkeypatch)
    server.path, server.count, server.status = "labels/", 1, 400
    endpoint.seconds = 0.3
    assert main(build_words(endpoint, "--rubric")) == 2
    shown = capsys.readouterr().err
    assert "Waiting for 3 calls; press Ctrl-C to leave them.\n" in shown
    assert 0 < endpoint.answered.total() == endpoint.calls.total() < SAMPLES
    assert main(build_words(endpoint, "--rubric")) == 0
    assert set(endpoint.calls.values()) == {1} and Rescore.objects.get().errors == 0


def test_after_a_refused_call_the_command_says_that_it_waits_for_the_others(
    run: Run, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    endpoint.refuse, endpoint.seconds = [401], 0.3
    assert main(build_words(endpoint, "--rubric")) == 2
    shown = capsys.readouterr().err
    assert re.search(r"(^|\r\x1b\[K)Waiting for 3 calls; press Ctrl-C to leave them\.\n", shown)


def test_a_response_without_a_text_is_not_judged(
    run: Run, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    push(run, [{"response_ids": [n, 2], "score": 0.0} for n in range(3)], step=2, kind="token-table")
    assert main(build_words(endpoint, "--rubric")) == 1 and endpoint.calls.total() == SAMPLES
    assert "3 × only token ids of the response were recorded" in capsys.readouterr().err
    assert main(build_words(endpoint, "--rubric", "--retry")) == 1 and endpoint.calls.total() == SAMPLES


def test_an_answer_that_was_cut_off_is_an_error_that_names_the_option(
    run: Run, endpoint: Endpoint, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (node / "ask.txt").write_text("Rate {response} as JSON with score")
    words = build_words(endpoint, "--prompt", str(node / "ask.txt"), "--limit", "3", "--journal", str(node / "calls"))
    endpoint.text, endpoint.finish_reason = 'First {"score": 0}, but then', "length"
    assert main(words) == 1
    assert (
        "3 × the model's answer is cut off: it needs more --max-tokens, with another --name" in capsys.readouterr().err
    )
    Rescore.objects.all().delete()
    assert main(words) == 1 and endpoint.calls.total() == 3, "the journal knows that it was cut off"
    endpoint.message = {"content": None, "reasoning_content": "First"}
    assert main([*words, "--retry"]) == 1 and "it needs more --max-tokens" in capsys.readouterr().err
    endpoint.message, endpoint.finish_reason = {}, "stop"
    endpoint.text = 'First {"score": 0}</think>{"score": 1}'
    assert main([*words, "--retry"]) == 0
    assert find_samples(run, q="score.judge=1").total == 3


def test_what_a_model_answers_is_checked_against_the_questions() -> None:
    rubric = {"questions": [*QUESTIONS, {"key": "kind", "title": "Kind", "kind": "choice", "options": [
        {"key": "good", "title": "Good"}, {"key": "bad", "title": "Bad"}]}]}  # fmt: skip
    rubric["questions"][1] |= {"minimum": 1, "maximum": 5}
    instructions = build_rubric_instructions(rubric, "", "kind", "")
    verdict = instructions.read('Sure: {"correct": "Yes", "quality": "5", "kind": "GOOD"}')
    assert (verdict.value, verdict.answers) == (1.0, {"correct": True, "quality": 5, "kind": "good"})
    several = {"key": "wrong", "title": "What?", "kind": "choices", "options": [{"key": "sign", "title": "Sign"}]}
    optional = build_rubric_instructions({"questions": [*rubric["questions"], several]}, "", "kind", "")
    assert optional.read('{"correct": true, "quality": 2, "kind": "bad", "wrong": []}').answers.keys() == {
        "correct", "quality", "kind"}  # fmt: skip
    for text in ("[1]", "{}", '{"correct": true, "kind": "other"}', '{"correct": 1, "kind": "bad", "quality": 6}'):
        with pytest.raises(Exception, match="the model"):
            instructions.read(text)
    assert TemplateInstructions("").read("7").value == 7.0 and read_object("no") is None
    template = TemplateInstructions("{response} then {prompt} {other}")
    assert template.build_messages({"response": "{prompt}", "prompt": "p"})[0]["content"] == "{prompt} then p {other}"
