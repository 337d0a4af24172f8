"""The page of the context: what was run, what differs, and what was not recorded."""

from __future__ import annotations

import html
import shlex
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.ingest import record_context
from rollouts.maintenance import measure_run
from rollouts.metrics import append_points
from rollouts.models import Project, Run
from rollouts.samples import MetricPoint
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.fixture
def runs(project: Project) -> list[Run]:
    common = {"actor": {"lr": 1e-6, "clip": 0.2, "n": 8}, "prompt": "x" * 500, "key": "<b>"}
    first = builders.run(project, "one", config={**common, "reward": "any"})
    second = builders.run(
        project, "two", config={**common, "actor": {"lr": "1e-06", "clip": 0.3, "n": 8}, "reward": "last"}
    )
    return [first, second]


def record_facts(run: Run, **more: Any) -> None:
    facts = {
        "host": "node-14", "python": "3.12.1", "command": ["python", "-m", "train", "lr=1e-6"], "gpus": {"H100": 8},
        "git": {"commit": "a41c9e2" + "0" * 33, "branch": "main", "changed": 3},
        "packages": {"torch": "2.7.1", "numpy": "2.0.0"},
    }  # fmt: skip
    record_context(run, attempt="a", facts=facts | more)


def open_page(client: Client, run: Run, query: str = "") -> str:
    response = client.get(f"/runs/{run.uid}/context/{query}")
    assert response.status_code == 200
    return collapse_spaces(response.content.decode())


def test_command_code_and_versions_are_shown_with_those_of_the_other_run(runs: list[Run], reader: Client) -> None:
    first, second = runs
    record_facts(first)
    record_facts(second, packages={"torch": "2.6.0", "numpy": "2.0.0"})
    page = open_page(reader, first, f"?against={second.uid}")
    for text in ("python -m train lr=1e-6", "a41c9e200000 main 3 files changed", "node-14, 8 × H100", "2.7.1", "2.6.0"):
        assert text in page, text
    assert page.count("2.0.0") == 1  # the same in both


def test_a_long_command_is_one_line_that_a_shell_accepts(runs: list[Run], reader: Client) -> None:
    words = ["python", "-m", "train", "prompt=two words", *[f"actor.key_{n}={n}" for n in range(20)]]
    record_facts(runs[0], command=words)
    page = reader.get(f"/runs/{runs[0].uid}/context/").content.decode()
    command = html.unescape(page.split('<pre tabindex="0">')[1].split("</pre>")[0])
    assert "\n" not in command and shlex.split(command) == words


def test_equal_keys_are_folded_and_differing_ones_are_marked(runs: list[Run], reader: Client) -> None:
    first, second = runs
    page = open_page(reader, first, f"?against={second.uid}")
    assert "differs<b>2</b>" in page.replace(" <b>", "<b>")
    assert '<span class="changed">0.3' in page and '<span class="changed">last' in page
    assert "2 keys, the same" in page
    only = open_page(reader, first, f"?against={second.uid}&show=differs")
    assert "actor.clip" in only and "actor.n" not in only


def test_keys_and_values_are_searched(runs: list[Run], reader: Client) -> None:
    page = open_page(reader, runs[0], "?q=CLIP")
    assert "actor.clip" in page and "actor.n" not in page
    assert "actor.clip" in open_page(reader, runs[0], "?q=0.2")
    assert "No key or value contains “nothing”." in open_page(reader, runs[0], "?q=nothing")


def test_long_values_are_cut_and_open_in_place(runs: list[Run], reader: Client) -> None:
    page = open_page(reader, runs[0])
    assert f"<summary>{'x' * 120}…</summary>" in page and f"<span>{'x' * 380}</span>" in page
    assert "<b></td>" not in page and "&lt;b&gt;" in page


def test_old_runs_say_that_nothing_was_recorded(project: Project, reader: Client) -> None:
    page = open_page(reader, builders.run(project, "old"))
    assert page.count("not recorded") >= 2
    assert "No configuration was sent." in page
    assert "Not measured yet." in page


def test_the_configuration_is_served_as_text(runs: list[Run], reader: Client) -> None:
    yaml = reader.get(f"/runs/{runs[0].uid}/context/config.yaml")
    assert yaml["Content-Type"].startswith("text/plain")
    text = yaml.content.decode()  # PostgreSQL does not store the order of keys
    assert text.index("actor:\n") < text.index("  lr: 1e-06\n")
    assert "actor.lr=1e-06\n" in reader.get(f"/runs/{runs[0].uid}/context/overrides.txt").content.decode()


def test_a_run_of_another_project_is_not_compared(runs: list[Run], reader: Client) -> None:
    hidden = builders.run(builders.project("secret"), "hidden-run", uid="u-7", config={"reward": "hidden-value"})
    page = open_page(reader, runs[0], f"?against={hidden.uid}")
    assert "hidden-run" not in page and "hidden-value" not in page


def test_strangers_get_404(runs: list[Run], client: Client, stranger: User) -> None:
    client.force_login(stranger)
    for end in ("", "config.yaml", "overrides.txt"):
        assert client.get(f"/runs/{runs[0].uid}/context/{end}").status_code == 404


def test_owners_see_who_acted_on_the_run(runs: list[Run], client: Client, project: Project, mate: User) -> None:
    from rollouts.runs import archive_runs

    owner = builders.member(project, "olga", "owner")
    archive_runs([runs[0]], owner)
    client.force_login(owner)
    assert "archived a run" in open_page(client, runs[0])
    client.force_login(mate)
    assert "archived a run" not in open_page(client, runs[0])


def test_measured_bytes_are_shown_by_kind(runs: list[Run], reader: Client) -> None:
    index_file(runs[0], lines({"prompt": "q", "response": "r"}), 1, format="native")
    append_points(runs[0], runs[0].attempts.get(), [MetricPoint(1, {"loss": 0.5})])
    usage = measure_run(Run.objects.get(pk=runs[0].pk))
    assert usage.raw > 0 and usage.bodies > 0 and usage.index > 0
    assert usage.metrics > 0, "points that are not compacted yet are counted too"
    page = open_page(reader, runs[0])
    assert "sample bodies" in page and "Not measured yet." not in page
