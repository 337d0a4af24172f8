"""The page of steps whose prompts differ, the usual case in training, and the same figures in the API."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.compare import compare as compare_module
from rollouts.models import Project, Run
from rollouts.samples import TEXT_PROPERTY_BITS
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.html import collapse_spaces

HOSTILE = '<script>alert(1)</script>\u202e"@,&'


@pytest.fixture
def run(project: Project) -> Run:
    """Two steps with one prompt in common. Each source gains 0.2; the easy one shrinks from 30 prompts to 10."""
    run = builders.run(project)
    for step, easy, hard in ((1, 30, 10), (2, 10, 30)):
        sources = {"easy": (easy, 0.5 + 0.2 * step), "hard": (hard, -0.1 + 0.2 * step), HOSTILE: (2, 0.0)}
        rows = [
            {"prompt": "shared" if source == "easy" and n == 0 else f"{step} {source} {n}", "response": "x" * 40 * step}
            | {"score": round(mean, 2), "data_source": source, "rewards": {"acc": float(mean > 0.5)}}
            for source, (count, mean) in sources.items()
            for n in range(count)
        ]
        index_file(run, lines(*rows), step)
    run.refresh_from_db()
    return run


def get_page(client: Client, run: Run, more: str = "", steps: str = "1,2") -> str:
    of = ",".join(f"{run.uid}@{step}" for step in steps.split(","))
    response = client.get(f"/compare/?of={of}&split=train{more}")
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def test_steps_with_other_prompts_open_on_all_samples_with_the_same_mix(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    text = html.unescape(collapse_spaces(get_page(client, run)))
    assert "Different prompts." in text and "1 of 83 prompts is on all sides" in text
    assert "B has fewer easy samples (24 instead of 71 %)." in text
    assert "The score of B differs by −0.095" in text and "with the mix of sources of A by +0.19" in text
    assert "Difference, same mix of sources" in text and "Paired prompts: 1 of 83" in text
    assert "with fewer than 10 prompts on a side" in text
    for name in ("mean score", "mean length (chars)", "part: acc", "other sources"):
        assert name in text, name
    whole = html.unescape(collapse_spaces(get_page(client, run, "&as=all")))
    assert "Difference, all samples" in whole and "all sides weighted" not in whole
    paired = html.unescape(collapse_spaces(get_page(client, run, "&as=paired")))
    assert "Difference, " not in paired and "Statistics by data source" in paired


def test_a_step_reduced_by_the_retention_policy_is_not_called_a_random_selection(
    run: Run, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.force_login(mate)
    step = run.steps.get(step=2)
    step.rows.filter(prompt_key__gt=step.rows.order_by("prompt_key")[20].prompt_key).delete()
    run.steps.filter(step=2).update(dropped=step.samples - 21)
    text = html.unescape(collapse_spaces(get_page(client, run)))
    assert "B: the retention policy kept 21 of 42 samples, which is no random selection." in text
    assert "samples are counted, those of randomly chosen prompts" not in text


def test_an_equal_mix_of_sources_is_not_called_different(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    for step, count in ((6, 200), (7, 201)):
        rows = [
            {"prompt": f"{step} {source} {n}", "response": "x", "score": float(n % step == 0), "data_source": source}
            for source, samples in (("easy", count), ("hard", 200))
            for n in range(samples)
        ]
        index_file(run, lines(*rows), step)
    assert "Different prompts." in (text := collapse_spaces(get_page(client, run, steps="6,7")))
    assert "instead of 50 %" not in text and "with the mix of sources" not in text


def test_steps_with_at_least_thirty_pairs_open_on_the_pairs(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    for step in (3, 4):
        rows = [{"prompt": f"p{n if n < 30 else (step, n)}", "response": "x", "score": 1.0} for n in range(34)]
        index_file(run, lines(*rows), step)
    index_file(run, lines(*({"prompt": f"p{n if n < 29 else -n}", "response": "x", "score": 0} for n in range(34))), 5)
    assert "Statistics by data source" in get_page(client, run, steps="3,4")
    assert "Difference, all samples" in get_page(client, run, steps="3,5")
    assert "Statistics by data source" in get_page(client, run, "&as=paired", steps="3,5")
    assert 'data-key="m"' not in get_page(client, run, steps="3,5"), "one source has no mix"


def test_a_bar_opens_exactly_its_samples(run: Run, client: Client, mate: User) -> None:
    check_bars(client, run, mate, "&as=all&by=source")


def test_a_bar_opens_exactly_its_samples_for_odd_edges_and_turns(run: Run, client: Client, mate: User) -> None:
    """Tenths of single precision, lengths between 2.5 characters, trajectories of two turns, and one without text."""
    for step in (6, 7):
        rows = [
            {"prompt": f"{step} {n} {turn}", "response": "x" * (10 + n), "score": float(np.float32(n % 10 / 10))}
            | {"trajectory": f"t{n}", "turn": turn, "group": f"g{n}"}
            for n in range(28)
            for turn in (1, 2)
        ]
        index_file(run, lines(*rows), step)
    step_6 = run.steps.get(step=6)
    step_6.rows.filter(ordinal__in=(24, 25)).update(chars=0, facets=TEXT_PROPERTY_BITS["no-text"])
    run.steps.filter(pk=step_6.pk).update(facets=step_6.facets | {"no-text": 2})
    run.refresh_from_db()
    check_bars(client, run, mate, "&as=all&by=length", steps="6,7")


def check_bars(client: Client, run: Run, mate: User, more: str, steps: str = "1,2") -> None:
    client.force_login(mate)
    rendered = get_page(client, run, more, steps)
    marks = re.findall(r'<a id="m-\d+-\d+" href="([^"]+)"[^>]*aria-label="([^"]+)"', rendered)
    assert len(marks) > 10
    api = ApiClient.with_token(mate, "read")
    for link, text in marks:
        address = urlsplit(html.unescape(link))
        asked = parse_qs(address.query)
        query = urlencode({"run": run.uid, "step": address.path.split("/")[-2], "q": asked["q"][0], "split": "train"})
        count = re.search(r", ([\d,]+) samples", html.unescape(text))
        assert count and int(count[1]) == api("GET", f"samples/?{query}").json()["count"], (text, link)
        assert client.get(html.unescape(link)).status_code == 200


def test_charts_can_be_shown_as_tables(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    rendered = get_page(client, run, "&table=1")
    assert "<svg viewBox" not in rendered.split('class="distributions"')[1].split("</section>")[0]
    assert rendered.count('<th scope="row" class="mono nowrap">') > 6
    assert 'data-key="t" aria-current="true"' in rendered


def test_three_sides_are_lines_in_three_colours(run: Run, client: Client, mate: User) -> None:
    index_file(run, lines(*({"prompt": f"3 {n}", "response": "x", "score": 0.25 * (n % 3)} for n in range(9))), 3)
    client.force_login(mate)
    rendered = get_page(client, run, "&as=all", steps="1,2,3")
    assert rendered.count("<polyline") >= 6
    assert len(set(re.findall(r'<b class="letter (c\d)">', rendered))) == 3


def test_steps_too_large_for_pairs_are_compared_by_all_samples(
    run: Run, client: Client, mate: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "MAX_SAMPLES", 50)
    client.force_login(mate)
    rendered = get_page(client, run)
    assert "You can compare at most 50 at once" in rendered and "mean score" in rendered
    data = ApiClient.with_token(mate, "read")("GET", f"compare/?of={run.uid}@1,{run.uid}@2").json()
    assert "at most 50" in data["pairs_skipped"] and data["count"] == 0 and data["all_samples"]["figures"]


def test_hostile_sources_are_escaped(run: Run, client: Client, mate: User) -> None:
    client.force_login(mate)
    rendered = get_page(client, run) + get_page(client, run, "&as=all&table=1")
    assert "<script>alert" not in rendered and "&lt;script&gt;" in rendered


@pytest.mark.parametrize("odd", ["as=x", "as=mix&by=%00", "table=2", "by=score", "as=" + "y" * 3000])
def test_invalid_parameters_are_read_as_the_default(run: Run, client: Client, mate: User, odd: str) -> None:
    client.force_login(mate)
    assert "Different prompts." in get_page(client, run, f"&{odd}")


def test_the_api_gives_the_same_figures(run: Run, mate: User) -> None:
    data = ApiClient.with_token(mate, "read")("GET", f"compare/?of={run.uid}@1,{run.uid}@2&split=train").json()
    everything = data["all_samples"]
    score = next(row for row in everything["figures"] if row["name"] == "score")
    assert score["same_mix"][1]["change"] == pytest.approx(0.19, abs=0.01)
    assert score["all"][1]["interval"][0] < score["all"][1]["change"] < score["all"][1]["interval"][1]
    assert everything["samples"] == [42, 42] == everything["counted"] and everything["other_sources"] == [HOSTILE]
    assert [row["data_source"] for row in everything["sources"]] == ["easy", "hard", None]
    chart = everything["distributions"]["all"][0]
    assert chart["name"] == "score" and [sum(counts) for counts in chart["counts"]] == [42, 42]
    assert data["pairs_skipped"] is None and data["count"] == 1
