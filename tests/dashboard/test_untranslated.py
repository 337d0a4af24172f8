"""Every word of every page is marked for translation, and no page caches text in another language."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.findings import findings
from rollouts.metrics import series
from rollouts.models import Pin, Project, Run, Sample
from rollouts.pins import pins
from rollouts.replay import bindings, outcomes, plans
from rollouts.samples.record import MetricPoint
from tests.dashboard.pages.pins.support import create_remote_artifact
from tests.dashboard.support.untranslated import OPEN_MARK, find_untranslated, mark_translations
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

CALL = (
    '<tool_call>\n{"name": "算", "arguments": {"甲": 1}}\n</tool_call>\nuser\n<tool_response>\n四\n</tool_response>\n'
)
# Names of people, trainers and the query language: they are the same in every language.
NAMES = (
    r"\b(?:rolloutdeck|Rolloutdeck|Switch to English|OpenAPI|English|new-project|Parquet|UTC|verl|torch|tiny|"
    r"node7|olga|train|eval|math|later|empty|files|default|viewer|annotator|maintainer|owner|read|annotate|"
    r"ingest|admin|grpo|KL|pass@\d|maj@n|"
    r'id)\b|score>0\.5 status:running,failed lr=1e-6 -tag:old|"double check"|<tool_call>.*</tool_response>|'
    r"[\w./-]*[/_][\w./-]*|[\w.]+[:=<>][\w.:=<>-]*|\b[0-9a-z]{12,}\b|\b[0-9.]+(?:k|M|e)\b"
)
ALLOWED = re.compile(NAMES)

PATHS = """
/ /?show=bin /?show=archived /?name=zz /?group=config.甲
/runs/grpo/ /runs/grpo/?runs=later /runs/empty/ /runs/later/
/runs/grpo/steps/latest/ /runs/grpo/steps/latest/?split=eval /runs/grpo/steps/2/?sel={one} /runs/grpo/steps/99/
/runs/grpo/steps/2/?q=is:nothing /runs/grpo/steps/2/?q=( /runs/grpo/steps/2/?q=n:99 /runs/grpo/steps/all/?q=is:wrong
/runs/empty/steps/latest/ /runs/later/steps/3/ /runs/grpo/groups/2/组0/?whole=all /runs/grpo/groups/latest/组1/
/runs/grpo/prompts/{key}/ /runs/grpo/prompts/{unscored}/ /samples/{one}/ /samples/{one}/?view=math
/samples/{one}/?view=diff /samples/{one}/?view=json /samples/{talk}/?view=turns /samples/{cut}/ /samples/{blank}/
/samples/{tokens}/?view=tokens /samples/{tokens}/?view=tokens&as=table
/compare/ /compare/?of=grpo@1,grpo@2&split=train /compare/?of=grpo@1,grpo@99 /compare/?of=grpo@1,later@1&sel={key}
/review/ /review/?queue=random /review/?queue=pinned /review/?queue=flagged&run=empty /live/ /pins/ /findings/
/findings/{finding}/ /findings/{finding}/export/ /findings/add/?sample={one}&step=2&q=score<0.5
/settings/ /settings/math/ /nowhere/ /runs/nobody/
"""


def build_row(step: int, n: int, score: float, **more: Any) -> dict[str, Any]:
    values = {"prompt": f"问 {n // 4}", "response": f"答 {n} 于 {step}。\n#### {n}", "score": score, "index": n}
    return {
        **values,
        "group": f"组{n // 4}",
        "data_source": "数学",
        "ground_truth": "1",
        "extra": {"格式": n / 7},
        **more,
    }


@pytest.fixture
def run(project: Project, owner: User) -> Run:
    """Two steps with groups, turns, tokens, a cut answer and a repetition; flags, pins, a plan, a finding, metrics."""
    run = builders.run(project, "grpo", uid="grpo", tags=["旧"], config={"甲": 1})
    for step in (1, 2):
        odd = [
            build_row(step, 9, 0.5, response=CALL, group="组9", prompt="system\n短。\nuser\n问\nassistant\n"),
            build_row(step, 10, 0.0, response="重复。\n" * 40, truncated=True, group="组10"),
            build_row(step, 11, None, response="", group="组11"),
            build_row(step, 12, 1.0, group="组12", response_ids=[1, 2, 3], response_logprobs=[-0.1, -2.0, -0.3]),
        ]
        rows = [build_row(step, n, (n + step) % 3 / 2) for n in range(8)]
        index_file(run, lines(*rows, *odd), step, format="native")
        index_file(run, lines(*rows), step, format="native", split="eval", source=f"eval/{step}.jsonl")
        create_remote_artifact(run, step)
    points = [
        MetricPoint(step, {"critic/score": step / 9, "critic/kl": 0.1, "常": 1.0}, "global_step", 60.0 * step)
        for step in range(1, 5)
    ]
    series.append_points(run, builders.attempt(run), points)
    run.refresh_from_db()
    return run


@pytest.fixture
def pin(run: Run, owner: User) -> Pin:
    return pins.pin_step(run, 2, owner, note="一")[0]


@pytest.fixture
def replaying_run(project: Project, pin: Pin, owner: User) -> Run:
    """A run with a plan: one step was replayed, one had nothing to replay, one was refused."""
    run = builders.run(project, "later", uid="later", config={"甲": 2})
    plans.save_plan(project, "default", owner, if_match=0, action="cache", entries=[(pin, 1)])
    bindings.bind_run(run)
    for step, outcome in ((1, "hit"), (2, "miss"), (3, "refused")):
        index_file(run, lines(build_row(step, 0, 0.5), build_row(step, 1, 1.0)), step, format="native")
        outcomes.record_replay_outcome(run, "files", step, outcome, pin=pin.pk, reason="少了" if step == 3 else "")
    return run


@pytest.fixture
def paths(run: Run, replaying_run: Run, owner: User, project: Project) -> list[str]:
    """Every page in its states."""
    builders.run(project, "empty", uid="empty")
    samples_of_step_2 = {
        item.index: item for item in Sample.objects.filter(step__run=run, step__step=2, step__split="train")
    }
    first = samples_of_step_2[1]
    builders.flag(first.pk, owner, reason=project.reasons[0]["key"], text="坏")
    finding = findings.create_finding(project, owner, title="循环", note="**多**")
    names = {
        "finding": finding.pk,
        "one": first.pk,
        "key": first.prompt_key,
        "unscored": samples_of_step_2[11].prompt_key,
    }
    odd = {
        "talk": samples_of_step_2[9].pk,
        "cut": samples_of_step_2[10].pk,
        "blank": samples_of_step_2[11].pk,
        "tokens": samples_of_step_2[12].pk,
    }
    return [path.format(**names, **odd) for path in PATHS.split()]


@pytest.mark.one_database
def test_every_word_of_every_page_is_marked_for_translation(client: Client, owner: User, paths: list[str]) -> None:
    """Each page is requested in Chinese, then in English; the cached parts of a step serve both."""
    client.force_login(owner)
    result: dict[str, str] = {}
    for path in paths:
        client.cookies["language"] = "zh-hans"
        with mark_translations():
            rest = find_untranslated(client.get(path).content.decode(), ALLOWED)
        result = {**dict.fromkeys(rest, path), **result}
        del client.cookies["language"]
        assert OPEN_MARK not in client.get(path).content.decode(), path
    assert not result, "\n".join(f"{message!r} at {path}" for message, path in result.items())
