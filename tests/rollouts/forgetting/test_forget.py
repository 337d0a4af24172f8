"""A forgotten prompt is nowhere on the server, does not come back, and nothing else is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.protocol import compute_prompt_key
from rollouts import queues
from rollouts.errors import StorageUnavailableError
from rollouts.forgetting import find_traces, forget_prompt
from rollouts.indexing import reindex_run
from rollouts.indexing.indexer import index_dump
from rollouts.integrity import CheckOptions, check_integrity, repair_problems
from rollouts.models import (
    Artifact,
    AuditEntry,
    Dump,
    EvidenceItem,
    ForgottenPrompt,
    ItemDecision,
    Label,
    Project,
    Run,
    Sample,
    SavedView,
    SharedLink,
    Step,
    ViewedSample,
)
from rollouts.samples import load_bodies, load_results
from tests.rollouts.forgetting.canary import CANARY, KEY, build_body, find_canary, store_canary
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import generation, index_file, lines
from tests.support.stored import body_path, list_stored, raw_path

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run_with_canary(project: Project, run: Run, owner: User, data_dir: Path) -> Run:
    store_canary(project, run, owner)
    make_files_old()
    return run


def make_files_old() -> None:
    """An upload of the same bytes may be in progress for a minute."""
    for path in list_stored("raw/"):
        path.set_age(1e6)


def load_texts(run: Run) -> dict[str, set[str]]:
    rows = list(Sample.objects.current_and_visible().filter(step__run=run).select_related("step"))
    texts: dict[str, set[str]] = {}
    for found in load_bodies(rows).values():
        texts.setdefault(found.prompt, set()).add(found.response)
    return texts


def test_a_step_comes_back_when_all_of_a_later_attempt_is_forgotten(project: Project, run: Run) -> None:
    index_file(run, lines(generation("kept", "a")), 1, attempt="one")
    index_file(run, lines(generation("secret words of a person", "b")), 1, attempt="two")
    make_files_old()
    assert not Step.objects.current().filter(run=run, attempt__key="one").exists()
    forget_prompt(project, compute_prompt_key("secret words of a person"))
    assert Step.objects.current().filter(run=run, attempt__key="one").exists()


def test_the_text_is_nowhere_and_other_prompts_remain(project: Project, run_with_canary: Run) -> None:
    before = load_texts(run_with_canary)
    assert find_canary()
    result = forget_prompt(project, KEY, user="root")
    assert result.is_complete and result.found.counts["samples"] == 14
    assert find_canary() == []
    others = {prompt: texts for prompt, texts in before.items() if "Zebedee" not in prompt}
    assert load_texts(run_with_canary) == others and len(others) == 14
    problems = check_integrity(CheckOptions(grace=0)).problems
    assert [problem for problem in problems if problem.problem != "orphan"] == []


def test_rows_and_statistics_are_those_of_the_other_samples(project: Project, run_with_canary: Run) -> None:
    forget_prompt(project, KEY)
    step = Step.objects.get(run=run_with_canary, step=3)
    assert (step.samples, step.groups, step.flags) == (4, 2, 0)
    assert not Sample.objects.filter(prompt_key=KEY).exists()
    assert not Label.objects.exists() and not ViewedSample.objects.exists()
    rescore, results = run_with_canary.rescores.get(), load_results(step, run_with_canary.rescores.get())
    assert len(results) == rescore.results == 4 and not any(result.rationale for result in results.values())
    dumps = Dump.objects.filter(run=run_with_canary, step__in=[1, 2, 3, 4])
    assert {(dump.rows, dump.left_out["forgotten"]) for dump in dumps} == {(4, 2)}


def test_evidence_links_and_views_with_the_text_are_removed_and_others_stay(
    project: Project, run_with_canary: Run
) -> None:
    forget_prompt(project, KEY)
    sample, query = EvidenceItem.objects.order_by("place")
    assert sample.shown["forgotten"] and "response" not in sample.shown
    assert {row["prompt_key"] for row in query.shown["rows"]} == {
        compute_prompt_key(f"{word} 4") for word in ("plain", "other")
    }
    assert list(SharedLink.objects.exclude(content=b"").values_list("title", flat=True)) == ["innocent"]
    assert not SavedView.objects.exists()
    entry = AuditEntry.objects.get(verb="prompt.forget")
    assert entry.subject == KEY and "Zebedee" not in repr(entry.detail)


def test_texts_in_review_queues_are_reported(project: Project, run_with_canary: Run, owner: User) -> None:
    settings = {"name": "check", "runs": [run_with_canary], "q": f"step:20 -{CANARY.split()[0]}"}
    queue = queues.create_queue(project, owner, settings)
    queue.name = CANARY[:80]
    queue.save()
    item = queue.items.get()
    answer = {"correction": {"value": CANARY}}
    queues.save_draft(item, owner, answer)
    ItemDecision.objects.create(item=item, name="note", value="calm", reason=CANARY, user=owner)
    queue.items.update(gold={"note": CANARY})
    notes = set(find_traces(project, KEY).evidence.notes)
    assert notes >= {
        f"draft of an answer to review item: {item.pk}", f"decision about review item: {item.pk}",
        f"known answers to review item: {item.pk}", f"review queue: {queue.pk}",
    }  # fmt: skip


def test_a_dry_run_counts_and_changes_nothing(project: Project, run_with_canary: Run) -> None:
    places = find_canary()
    counts = find_traces(project, KEY).counts
    assert counts["samples"] == 14 and counts["steps"] == 6 and counts["runs"] == 1
    assert counts["artifacts"] == 1 and counts["evidence items"] == 2
    assert counts["shared links"] == 1 and counts["saved views"] == 2
    assert find_canary() == places and not ForgottenPrompt.objects.exists()


def test_a_forgotten_prompt_is_left_out_when_its_dump_is_sent_again(
    project: Project, run_with_canary: Run, data_dir: Path
) -> None:
    forget_prompt(project, KEY)
    same = index_file(run_with_canary, build_body(3), 3)  # the receipt of the first time
    assert same.rows == 4
    other = index_file(run_with_canary, build_body(3), 3, source="elsewhere.jsonl")
    assert other.rows == 4 and other.left_out == {"forgotten": 2} and other.is_final
    only = index_file(run_with_canary, lines(generation(CANARY, "hm", step=9)), 9)
    assert only.rows == 0 and only.segment is None and not Sample.objects.filter(dump=only).exists()
    several = index_file(run_with_canary, build_body(11) + build_body(12), None, source="several.jsonl")
    assert several.left_out == {"forgotten": 4} and several.raw_dropped_at
    make_files_old()
    from rollouts.retention import delete_orphan_raw_files

    assert delete_orphan_raw_files() == 3
    assert find_canary() == []


def test_re_index_and_repair_do_not_restore_a_forgotten_prompt(
    project: Project, run_with_canary: Run, data_dir: Path
) -> None:
    forget_prompt(project, KEY)
    reindex_run(run_with_canary)
    for dump in Dump.objects.filter(run=run_with_canary, state=Dump.State.RECEIVED):
        index_dump(dump.pk)
    for path in list_stored("bodies/"):
        path.write_bytes(b"damaged")
    repair_problems(check_integrity(CheckOptions(grace=0)).problems, 0)
    assert not Sample.objects.filter(prompt_key=KEY).exists() and find_canary() == []


def test_an_artifact_of_the_step_stays_gone(project: Project, run_with_canary: Run) -> None:
    forget_prompt(project, KEY)
    old = Artifact.objects.get()
    assert old.state == Artifact.State.GONE and not old.blobs.exists()
    files = {"batch.json": b'{"text": "rewritten"}'}
    assert register_artifact(run_with_canary, 1, files).state == Artifact.State.GONE
    with pytest.raises(Exception, match="forgotten"):
        upload_files(Artifact.objects.get(pk=old.pk), files)
    assert register_artifact(run_with_canary, 99, {"batch.json": b"{}"}).state == Artifact.State.WAITING


def test_a_forgotten_prompt_is_kept_in_other_projects(project: Project, run_with_canary: Run) -> None:
    from tests.support import builders

    foreign = builders.run(builders.project("other"), "grpo")
    forget_prompt(project, KEY)
    assert index_file(foreign, build_body(1), 1).rows == 6


def test_turns_of_a_trajectory_are_forgotten_and_other_prompts_with_the_text_are_kept(
    project: Project, run: Run, data_dir: Path
) -> None:
    later = f"{CANARY} In the hall. Are you sure?"
    rows = [
        {"prompt": CANARY, "response": "In the hall.", "trajectory": "t", "turn": 1},
        {"prompt": later, "response": "Yes.", "trajectory": "t", "turn": 2},
        {"prompt": "plain", "response": "yes", "trajectory": "u", "turn": 1},
    ]
    index_file(run, lines(*rows), 1, format="native")
    quoting = f"Somebody asked: {CANARY}"
    index_file(
        run, lines({"prompt": quoting, "response": "Who?"}, {"prompt": "calm", "response": "yes"}), 2, format="native"
    )
    make_files_old()
    report = find_traces(project, KEY)
    assert report.counts["samples"] == 2 and sum(map(len, report.bodies.others.values())) == 1
    assert forget_prompt(project, KEY).is_complete
    assert set(load_texts(run)) == {"plain", "calm", quoting}
    again = index_file(run, lines(*rows), 1, format="native", source="again")
    assert again.rows == 1, "the later turn is left out too"


def test_containing_removes_other_prompts_with_the_text(project: Project, run: Run, data_dir: Path) -> None:
    quoting = f"Somebody asked: {CANARY}"
    rows = [{"prompt": quoting, "response": "Who?"}, {"prompt": "calm", "response": "yes"}]
    index_file(run, lines(*rows), 2, format="native")
    index_file(run, lines({"prompt": CANARY, "response": "In the hall."}), 1, format="native")
    make_files_old()
    assert forget_prompt(project, KEY, containing=True).is_complete
    assert set(load_texts(run)) == {"calm"} and find_canary() == []
    assert index_file(run, lines(*rows), 2, format="native", source="again").rows == 1


def test_forgetting_waits_for_raw_files_that_an_upload_may_use(
    project: Project, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = index_file(run, build_body(1), 1)
    path = raw_path(project.pk, dump.sha256)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        path.set_age(1e6)

    monkeypatch.setattr(time, "sleep", sleep)
    assert forget_prompt(project, KEY).is_complete
    assert waits and not path.exists()


def test_a_damaged_body_of_the_step_is_named_in_the_error(project: Project, run: Run) -> None:
    index_file(run, build_body(1), 1)
    other = index_file(run, lines(generation("calm", "yes", step=1)), 1, source="other")
    make_files_old()
    assert other.segment
    body_path(other.segment.path).write_bytes(b"damaged")
    with pytest.raises(StorageUnavailableError, match=f"dump {other.pk} is damaged"):
        forget_prompt(project, KEY)


class KilledError(BaseException):
    pass


@pytest.mark.parametrize(
    "moment",
    [
        "forget.remove_evidence", "rows.rebuild_step", "rows.remove_unused_rows", "files.delete_unused_raw_files",
        "forget.erase_database_pages",
    ],
)  # fmt: skip
def test_a_killed_command_continues(
    project: Project, run_with_canary: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    import importlib

    before = {prompt for prompt in load_texts(run_with_canary) if "Zebedee" not in prompt}
    module_name, _, name = moment.partition(".")
    module: Any = importlib.import_module(f"rollouts.forgetting.{module_name}")

    def kill(*args: Any, **kwargs: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(module, name, kill)
        with pytest.raises(KilledError):
            forget_prompt(project, KEY)
    assert ForgottenPrompt.objects.get().finished_at is None
    assert forget_prompt(project, KEY).is_complete
    assert find_canary() == [] and set(load_texts(run_with_canary)) == before
    assert ForgottenPrompt.objects.get().finished_at
