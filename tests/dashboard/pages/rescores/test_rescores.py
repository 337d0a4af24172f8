"""Re-scores on pages and in the API: columns, the comparison, the queue of disagreements, and who sees them."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts import queues
from rollouts.labels import save_rubric
from rollouts.models import AuditEntry, Project, Queue, Rescore, Run, Sample
from rollouts.query import find_samples
from rollouts.samples import export_jsonl
from tests.dashboard.support.api_client import ApiClient
from tests.rollouts.support.query_rows import push
from tests.support import builders


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    rows = [{"response": f"answer {n}", "score": float(n < 4), "group": str(n)} for n in range(8)]
    push(run, [{**row, "data_source": "gsm8k" if n % 2 else "zh"} for n, row in enumerate(rows)])
    return run


@pytest.fixture
def rescore(run: Run, owner: User) -> Rescore:
    """Of the four correct samples one is wrong now, and of the wrong ones one is correct. Another one failed."""
    api = ApiClient.with_token(owner, "read", "annotate")
    body = {"run": run.uid, "name": "score.v2", "source": "my.py:f", "digest": "1"}
    created = api("POST", "rescores/", body)
    assert created.status_code == 201 and api("POST", "rescores/", body).status_code == 200
    samples = Sample.objects.order_by("ordinal").values_list("pk", flat=True)
    values = [1, 1, 1, 0, 1, 0, 0, None]
    results = [{"sample": pk, "value": value, "parts": {"note": "<b>x</b>"}, "rationale": "because <i>"}
               if value is not None else {"sample": pk, "error": "boom <script>"}
               for pk, value in zip(samples, values, strict=True)]  # fmt: skip
    path = f"rescores/{created.json()['id']}/"
    assert api("POST", f"{path}results/", {"results": results}).json() == {"stored": 8}
    return Rescore.objects.get()


def test_the_api_lists_pending_samples_stores_results_and_compares_them(
    run: Run, rescore: Rescore, owner: User
) -> None:
    api = ApiClient.with_token(owner, "read", "annotate")
    path = f"rescores/{rescore.pk}/"
    pending = api("GET", f"{path}pending/?retry=true&q=score>=0&limit=5").json()
    assert [row["response"] for row in pending["samples"]] == ["answer 7"] and pending["cursor"] is None
    assert "response_ids" not in pending["samples"][0] and pending["done"] == 7
    found = api("GET", f"{path}comparison/").json()
    total = {name: found["total"][name] for name in ("count", "agreed", "gained", "lost", "changed")}
    assert total == {"count": 7, "agreed": 5, "gained": 1, "lost": 1, "changed": 2} and found["missing"] == 1
    assert [source["source"] for source in found["sources"]] == ["zh", "gsm8k"] and len(found["examples"]) == 2
    (error,) = api("GET", f"{path}results/?step=1&errors=true").json()["results"]
    assert error["error"] == "boom <script>"
    rows = api("GET", f"samples/?run={run.uid}&ordering=-rescore:score.v2").json()["results"]
    assert [row["rescores"] for row in rows[:1]] == [{"score.v2": 1.0}] and rows[-1]["rescores"] == {}
    exported = [json.loads(line) for line in b"".join(export_jsonl(find_samples(run).samples, owner)).splitlines()]
    assert sum(row["rescores"].get("score.v2", 0) for row in exported) == 4
    for bad in ({}, {"results": []}, {"results": [{"sample": "x"}]}, {"results": [{"sample": "x", "value": "1"}]}):
        assert api("POST", f"{path}results/", bad).status_code == 400
    unknown = {"results": [{"sample": "unknown", "value": 1}]}
    assert api("POST", f"{path}results/", unknown).json() == {"stored": 0}
    assert api("GET", f"{path}pending/?cursor=x").status_code == 400
    for name in ("score", "data_source", "step"):
        body = {"run": run.uid, "name": name, "source": "f", "digest": "1"}
        assert api("POST", "rescores/", body).status_code in (400, 409)


def test_pages_of_pending_samples_keep_the_latest_step_of_the_first_page(run: Run, owner: User) -> None:
    api = ApiClient.with_token(owner, "read", "annotate")
    body = {"run": run.uid, "name": "score.v2", "source": "my.py:f", "digest": "1"}
    path = f"rescores/{api('POST', 'rescores/', body).json()['id']}/pending/?step=latest&limit=5"
    first = api("GET", path).json()
    push(run, [{"response": f"later {n}", "score": 1.0, "group": str(n)} for n in range(8)], step=2)
    second = api("GET", f"{path}&cursor={first['cursor']}").json()
    assert [row["step"] for row in (*first["samples"], *second["samples"])] == [1] * 8 and second["cursor"] is None
    assert [row["step"] for row in api("GET", path).json()["samples"]] == [2] * 5


def test_a_rescore_with_the_same_verdicts_has_no_link_to_disagreements(run: Run, owner: User, client: Client) -> None:
    api = ApiClient.with_token(owner, "read", "annotate")
    body = {"run": run.uid, "name": "score.v2", "source": "my.py:f", "digest": "1"}
    pk = api("POST", "rescores/", body).json()["id"]
    results = [{"sample": sample.pk, "value": sample.score} for sample in Sample.objects.order_by("ordinal")[:7]]
    assert api("POST", f"rescores/{pk}/results/", {"results": results}).json() == {"stored": 7}
    client.force_login(owner)
    page = client.get(f"/runs/{run.uid}/rescores/{pk}/").content.decode()
    assert "7 results, 0 errors; 1 samples of these steps have no value" in page and "100.0 %" in page
    assert "disagrees%3A" not in page


def test_pages_show_columns_results_and_the_comparison(run: Run, rescore: Rescore, owner: User) -> None:
    client = Client()
    client.force_login(owner)

    def get_page(path: str) -> str:
        response = client.get(path)
        assert response.status_code == 200, path
        return response.content.decode()

    table = get_page(f"/runs/{run.uid}/steps/1/")
    assert re.search(r"sort=rescore:score.v2[^>]*>v2<", table) and table.count('<td class="num c-part">1.00</td>') == 4
    assert '<td class="num c-part">' not in get_page(f"/runs/{run.uid}/steps/1/?parts=-")
    ordered = re.findall(r'<tr id="r-(\w+)"', get_page(f"/runs/{run.uid}/steps/1/?sort=-rescore:score.v2"))
    assert ordered == [sample.pk for sample in find_samples(run, ordering="-rescore:score.v2").samples]
    pane = get_page(f"/samples/{Sample.objects.get(tail='answer 0').pk}/")
    assert "because &lt;i&gt;" in pane and "&lt;b&gt;x&lt;/b&gt;" in pane
    assert "boom &lt;script&gt;" in get_page(f"/samples/{Sample.objects.get(tail='answer 7').pk}/")
    assert "my.py:f" in get_page(f"/runs/{run.uid}/rescores/")

    page = get_page(f"/runs/{run.uid}/rescores/{rescore.pk}/")
    assert "71.4 %" in page and page.count('class="clip"') >= 2
    assert f"/runs/{run.uid}/steps/all/?q=disagrees%3Ascore.v2&amp;split=train" in page
    (link,) = re.findall(r'href="(/queues/new/[^"]+)"', page)
    asked = parse_qs(urlsplit(html.unescape(link)).query)
    assert asked["q"] == ["disagrees:score.v2"] and "2" in get_page(html.unescape(link))
    queue = queues.create_queue(run.project, owner, {"name": "check", "runs": [run], "q": asked["q"][0]})
    assert queue.items.count() == 2
    empty = builders.run(run.project, "new run", uid="second-run")
    assert "rolloutdeck rescore --fn my_reward.py:compute_score" in get_page(f"/runs/{empty.uid}/rescores/")
    assert "--run &#x27;new run&#x27;" in get_page(f"/runs/{empty.uid}/rescores/")


def test_the_command_of_a_judge_asks_the_rubric_only_if_there_is_one(run: Run, owner: User, client: Client) -> None:
    client.force_login(owner)
    path = f"/runs/{run.uid}/rescores/"
    assert "--model NAME --prompt judge.txt" in client.get(path).content.decode()
    save_rubric(run.project, owner, [{"key": "correct", "title": "Right?", "kind": "yes-no"}])
    assert "--model NAME --rubric --project" in client.get(path).content.decode()


def test_links_of_a_rescore_lead_to_the_split_of_its_numbers(run: Run, rescore: Rescore, owner: User) -> None:
    """A page of all steps shows one split."""
    push(run, [{"response": "eval answer", "score": 1.0}], split="eval")
    sample = Sample.objects.get(step__split="eval")
    api = ApiClient.with_token(owner, "read", "annotate")
    api("POST", f"rescores/{rescore.pk}/results/", {"results": [{"sample": sample.pk, "value": 0}]})
    client = Client()
    client.force_login(owner)
    for query, splits in (("", ["train", "eval"]), ("?split=eval", ["eval"]), ("?split=train", ["train"])):
        page = client.get(f"/runs/{run.uid}/rescores/{rescore.pk}/{query}").content.decode()
        assert re.findall(r"q=disagrees%3Ascore.v2&amp;split=(\w+)", page) == splits
        assert re.findall(r"q=score.v2%21%3Dscore&amp;split=(\w+)", page) == splits


def test_only_its_author_and_maintainers_delete_a_rescore(run: Run, rescore: Rescore, owner: User) -> None:
    path = f"/runs/{run.uid}/rescores/{rescore.pk}/"
    ann = builders.member(run.project, "ann", "annotator")
    api = ApiClient.with_token(ann, "read", "annotate")
    assert api("DELETE", f"rescores/{rescore.pk}/").status_code == 403
    client = Client()
    client.force_login(ann)
    assert "rescore-delete" not in client.get(path).content.decode()
    assert client.post(f"{path}delete/").status_code == 403
    client.force_login(builders.member(run.project, "mia", "maintainer"))
    assert client.post(f"{path}delete/").status_code == 303 and not Rescore.objects.exists()
    assert AuditEntry.objects.get(verb="rescore.delete").detail["results"] == 7
    old_link = client.get(f"/runs/{run.uid}/steps/1/?sort=rescore:score.v2&q=answer")
    assert old_link.status_code == 200, "a link to a deleted column still opens"
    assert "c-part" not in old_link.content.decode().split("<tbody")[1]


def test_a_reviewer_of_a_blind_queue_sees_no_rescores(run: Run, rescore: Rescore, owner: User) -> None:
    ann = builders.member(run.project, "ann", "annotator")
    queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "is_blind": True})
    client = Client()
    client.force_login(ann)
    api = ApiClient.with_token(ann, "read", "annotate")

    def get_page(path: str) -> str:
        return client.get(path).content.decode()

    sample = Sample.objects.get(tail="answer 0").pk
    secret = ("because", "score.v2", 'c-part">')
    for path in (f"/runs/{run.uid}/steps/1/", f"/samples/{sample}/"):
        assert not any(text in get_page(path).split("<main")[1] for text in secret), path
    sorted_page = get_page(f"/runs/{run.uid}/steps/1/?sort=rescore:score.v2")  # the URL itself names the column
    assert 'c-part">' not in sorted_page and "sort: score, lowest first" in " ".join(sorted_page.split())
    assert "re-scores are hidden" in get_page(f"/runs/{run.uid}/rescores/")
    assert client.get(f"/runs/{run.uid}/rescores/{rescore.pk}/").status_code == 404
    assert "re-scores are hidden" in get_page(f"/runs/{run.uid}/steps/1/?q=score.v2>0")
    for path in ("samples/?q=score.v2>0&", "samples/?q=disagrees:score.v2&", "samples/?ordering=rescore:score.v2&"):
        assert api("GET", f"{path}run={run.uid}").status_code == 400
    assert api("GET", f"runs/{run.uid}/query-curve/?q=score.v2>0").status_code == 400
    assert api("GET", f"samples/?run={run.uid}").json()["results"][0]["rescores"] == {}
    assert api("GET", f"samples/{sample}/").json()["rescores"] == {}
    assert "score.v2" not in str(api("GET", f"completions/?run={run.uid}&q=score").json())
    assert api("GET", f"rescores/?run={run.uid}").json()["count"] == 0
    assert api("GET", f"rescores/{rescore.pk}/comparison/").status_code == 404
    assert b"score.v2" not in b"".join(export_jsonl(find_samples(run).samples, ann))
    curve = "samples/rescores/score.v2"
    assert curve not in api("GET", f"runs/{run.uid}/metrics/").json()["names"]
    assert curve not in api("GET", f"runs/{run.uid}/metrics/?name={curve}").json()["series"]
    assert curve not in get_page(f"/runs/{run.uid}/charts.json")
    search = client.get("/search/?project=math&q=score.v2<0.5")
    assert search.status_code == 200 and "re-scores are hidden" in search.content.decode()
    finding = api("POST", "findings/", {"project": "math", "title": "x"}).json()["id"]
    for names in ([curve], ["query:share|train||score.v2<0.5"]):
        added = api("POST", f"findings/{finding}/exhibits/", {"run": run.uid, "names": names})
        assert added.status_code in (400, 404), added.content
    etag = client.get(f"/samples/{sample}/").headers["ETag"]
    Queue.objects.update(closed_at=rescore.created_at)
    seen = client.get(f"/samples/{sample}/", headers={"If-None-Match": etag})
    assert seen.status_code == 200 and "because" in seen.content.decode(), "not the page of before"
    assert curve in api("GET", f"runs/{run.uid}/metrics/").json()["names"]


def test_hidden_rescores_are_not_a_key_that_a_run_lacks(run: Run, rescore: Rescore, owner: User) -> None:
    """Another run has logged a number of the same name, so the export of the project finds it."""
    ann = builders.member(run.project, "ann", "annotator")
    queues.create_queue(run.project, owner, {"name": "blind", "runs": [run], "is_blind": True})
    push(builders.run(run.project, "logged"), [{"response": "x", "score": 1.0, "score.v2": 1.0}])
    path = f"exports/datasets/?project={run.project.slug}&layout=samples&q=score.v2>=0"
    assert ApiClient.with_token(owner, "read")("GET", path).status_code == 200
    refused = ApiClient.with_token(ann, "read")("GET", path)
    assert refused.status_code == 400 and "blind queue" in refused.json()["error"]["message"]
