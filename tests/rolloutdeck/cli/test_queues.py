"""`rolloutdeck queues` against a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rollouts.labels import save_rubric
from rollouts.models import Membership, Project, Queue
from rollouts.queues import claim_next, submit_answers
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_queue_is_created_shown_answered_and_closed(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", builders.token(owner, "read", "annotate", "admin"))
    project = Project.objects.get()
    save_rubric(project, owner, [{"key": "correct", "title": "Right?", "kind": "yes-no", "required": True}])
    run = builders.run(project, "grpo")
    index_file(run, lines(*({"prompt": "p", "response": str(n), "score": n} for n in range(6))), 1)

    def queues(*words: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        return main(["queues", *map(str, words)]), *capsys.readouterr()

    assert "No queue. Create one" in queues("list")[2]
    create = ("create", "first check", "--project", project.slug, "--run", "grpo", "--q", "score>0", "--reviewers", 2)
    drawn = queues(*create, "--selection", "random", "--count", 4, "--dry-run")
    assert drawn[0] == 0 and drawn[1].startswith("Would draw 4 items of 5 that match.")
    drawn = queues(*create, "--selection", "random", "--count", 4, "--dry-run", "--json")
    assert drawn[0] == 0 and json.loads(drawn[1])["items"] == 4
    for option in ("--count", "--reviewers", "--minutes"):
        assert queues(*create, option, 0)[0] == 2, "0 is not the default"
    assert Queue.objects.count() == 0
    status, printed, _ = queues(*create, "--selection", "random", "--count", 4)
    queue = Queue.objects.get()
    first, second = printed.splitlines()
    assert status == 0 and first.split(None, 1)[1] == "first check, 0 of 8 answers, 0 of 4 items complete"
    assert second.startswith("Review it at http") and second.endswith(f"/queues/{queue.pk}/review/")

    mate = builders.member(project, "mina", "annotator")
    for person, answer in ((owner, True), (mate, False)):
        slot = claim_next(queue, person)
        assert slot is not None
        submit_answers(slot.item, person, {"correct": {"value": answer}})
    shown = queues("show", "first check")[1]
    assert "2 of 8 answers, 1 of 4 items complete" in shown and "  mina: 1 answer, " in shown
    answered = [json.loads(line) for line in queues("answers", queue.pk)[1].splitlines()]
    assert [item["answers"] for item in answered if item["answers"]] == [{"correct": {"olga": True, "mina": False}}]
    assert len(answered) == 4
    agreement = queues("agreement", queue.pk)[1].splitlines()
    assert agreement[0] == "1 of 4 items have answers of two people."
    assert agreement[-1] == "1 item with different answers, 1 to decide"
    assert queues("close", "first check")[2] == "Closed the queue first check.\n"
    assert queues("list")[1] == "" and "first check" in queues("list", "--state", "closed")[1]
    assert queues("reopen", queue.pk)[2] == "Opened the queue first check.\n"
    status, _, error = queues("show", "other")
    assert status == 2 and "There is no queue 'other'" in error
    other = builders.project("code")
    Membership.objects.create(project=other, user=owner, role="owner")
    Queue.objects.create(project=other, name="first check")
    monkeypatch.delenv("ROLLOUTDECK_PROJECT", raising=False)
    assert "Several queues have the name or the id 'first check'" in queues("show", "first check")[2]
    assert "2 of 8 answers" in queues("show", "first check", "--project", project.slug)[1]
    monkeypatch.setenv("ROLLOUTDECK_PROJECT", "code")
    assert "0 of 0 answers" in queues("show", "first check")[1]
    assert "There is no queue 'other' in code" in queues("show", "other")[2]
    assert "2 of 8 answers" in queues("show", queue.pk)[1], "an id is found in all projects"
    year = Queue.objects.create(project=other, name="2026")
    assert f"{year.pk:>5}  2026" in queues("show", "2026")[1], "a name may be a number"
    Queue.objects.create(project=other, name=str(queue.pk))
    assert f"Several queues have the name or the id '{queue.pk}' in code" in queues("show", queue.pk)[2]
