"""Links for people without an account: what they show, who creates them, and that they open nothing else."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from rollouts.findings import add_sample_evidence, create_finding
from rollouts.metrics import append_points
from rollouts.models import AuditEntry, Finding, Membership, Project, Run, Sample, SharedLink
from rollouts.samples.record import MetricPoint
from rollouts.sharing import delete_expired_content
from tests.rollouts.support.push import index_file, lines
from tests.support import builders

HOSTILE = '<script>alert(1)</script>\u202e"'


@pytest.fixture
def owner(project: Project) -> User:
    return builders.member(project, "olga-owner", "owner")


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project, "grpo-a")
    for step in (1, 2):
        rows = [
            {
                "prompt": f"{step} ask {n}",
                "response": f"secret text {step} {n}",
                "score": n / 20 + step / 10,
                "data_source": "gsm",
            }
            for n in range(20)
        ]
        index_file(run, lines(*rows), step)
    builders.run(project, "other-run-name")
    run.refresh_from_db()
    return run


@pytest.fixture
def finding(project: Project, run: Run, owner: User) -> Finding:
    finding = create_finding(project, owner, title=f"Grader is fooled {HOSTILE}", note="See [it](http://127.0.0.1/x).")
    sample = Sample.objects.filter(step__step=1).first()
    add_sample_evidence(finding, sample, owner, words="by hand")
    return finding


def create_link(client: Client, **params: Any) -> str:
    """The path of a new link."""
    response = client.post("/share/", params)
    assert response.status_code == 200, response.content.decode()[:2000]
    assert response.headers["Cache-Control"] == "no-store"
    found = re.search(r"<pre>http://[^/<]+(/shared/[\w-]{40,}/)</pre>", response.content.decode())
    assert found, "the page shows the link"
    return found[1]


def get_all_params(finding: Finding, run: Run) -> dict[str, dict[str, Any]]:
    return {
        "finding": {"finding": finding.pk},
        "comparison": {"of": f"{run.uid}@1,{run.uid}@2", "split": "train"},
        "chart": {"run": run.uid, "metric": "samples/score_mean"},
    }


@pytest.fixture
def metric(run: Run) -> str:
    from rollouts.metrics import list_metric_names

    return sorted(list_metric_names(run))[0]


@pytest.mark.parametrize("kind", ["finding", "comparison", "chart"])
def test_a_link_shows_its_object_without_account_scripts_or_further_links(
    kind: str, finding: Finding, run: Run, owner: User, client: Client, metric: str
) -> None:
    client.force_login(owner)
    params = get_all_params(finding, run) | {"chart": {"run": run.uid, "metric": metric}}
    path = create_link(client, **params[kind])
    response = Client().get(path)
    text = response.content.decode()
    shown = {"finding": "secret text 1", "comparison": "mean score", "chart": metric}[kind]
    assert response.status_code == 200 and html.escape(shown) in text and "grpo-a" in text
    assert "<script" not in text.replace("&lt;script", "") and not re.search(r"<(a|form|iframe|object|link)[\s>]", text)
    for secret in (
        "olga-owner",
        "other-run-name",
        run.uid,
        run.project.slug + "<",
        "/runs/",
        "/samples/",
        "127.0.0.1/shared",
    ):
        assert secret not in text, secret
    if kind == "comparison":
        assert "secret text" not in text and "ask 1" not in text
    headers = response.headers
    assert headers["X-Robots-Tag"] == "noindex, nofollow, noarchive" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store" and "sandbox" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"] and "Set-Cookie" not in headers


def test_a_link_shows_the_state_at_its_creation(finding: Finding, run: Run, owner: User, client: Client) -> None:
    client.force_login(owner)
    path = create_link(client, finding=finding.pk)
    Finding.objects.filter(pk=finding.pk).update(title="Changed later", note="new secret")
    text = Client().get(path).content.decode()
    assert "Grader is fooled" in text and "Changed later" not in text and "new secret" not in text


def test_wrong_expired_and_revoked_links_are_the_same_404(finding: Finding, owner: User, client: Client) -> None:
    client.force_login(owner)
    expired, revoked = create_link(client, finding=finding.pk), create_link(client, finding=finding.pk, days=1)
    first, second = SharedLink.objects.order_by("pk")
    SharedLink.objects.filter(pk=first.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.post(f"/settings/{finding.project.slug}/links/{second.pk}/revoke/").status_code == 302
    wrong = "/shared/" + "x" * 43 + "/"
    paths = (expired, revoked, wrong, "/shared/%00/")
    answers = [caller.get(path) for caller in (Client(), client) for path in paths]
    assert {answer.status_code for answer in answers} == {404} and len({answer.content for answer in answers}) == 1
    headers = [dict(answer.headers) for answer in answers]
    for of_caller in (headers[: len(paths)], headers[len(paths) :]):
        assert all(own == of_caller[0] for own in of_caller)
    # Only whether the caller sent a session cookie makes a difference, as on every page.
    varies = [set(own.pop("Vary").split(", ")) for own in (headers[0], headers[-1])]
    assert varies[1] - varies[0] <= {"Cookie"} and varies[0] <= varies[1] <= {"Accept-Language", "Cookie"}
    assert headers[0] == headers[-1]
    assert answers[0].headers["X-Robots-Tag"] and answers[0].headers["Referrer-Policy"] == "no-referrer"
    second.refresh_from_db()
    assert bytes(second.content) == b""
    assert delete_expired_content() == 1 and delete_expired_content() == 0


def list_paths(patterns: list[Any], prefix: str = "") -> list[str]:
    found = []
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            found += list_paths(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            found.append("/" + route)
    return found


def test_every_other_url_answers_the_visitor_of_a_link_like_an_anonymous_user(
    finding: Finding, run: Run, owner: User, client: Client
) -> None:
    """The visitor has the cookies of the link, and sends its secret in every place where credentials can be."""
    client.force_login(owner)
    path = create_link(client, finding=finding.pk)
    secret = path.split("/")[2]
    sample = Sample.objects.first()
    item = finding.exhibits.get()
    values = {
        "uid": run.uid, "pk": "1", "slug": run.project.slug, "step": "1", "group": "g", "secret": "x" * 43,
        "key": sample.prompt_key, "digest": "0" * 64, "sha256": "0" * 64,
        "exhibit_pk": str(item.pk), "language": "en", "name": "x",
    }  # fmt: skip
    routes = list_paths(get_resolver().url_patterns)
    filled = {re.sub(r"<(?:\w+:)?(\w+)>", lambda hole: values.get(hole[1], "1"), route) for route in routes}
    filled |= {
        f"/samples/{sample.pk}/",
        f"/findings/{finding.pk}/",
        f"/findings/{finding.pk}/export/",
        f"/api/v1/samples/{sample.pk}/",
    }
    paths = sorted(url for url in filled if not re.search(r"[\\^$()]", url))
    assert len(paths) > 80
    visitor = Client()
    assert visitor.get(path).status_code == 200
    opened = 0
    for url in paths:
        for credentials in (
            {},
            {"Authorization": f"Bearer {secret}"},
            {"Cookie": f"sessionid={secret}; secret={secret}"},
        ):
            visitor_response = visitor.get(url, headers=credentials)
            nobody = {name: value.replace(secret, "n" * 43) for name, value in credentials.items()}
            anonymous_response = Client().get(url, headers=nobody)
            ends = [
                (answer.status_code, answer.headers.get("Location"))
                for answer in (visitor_response, anonymous_response)
            ]
            assert ends[0] == ends[1], (url, credentials)
            if visitor_response.status_code == 200 and not visitor_response.streaming:
                text = visitor_response.content.decode(errors="replace")
                opened += 1
                assert "secret text" not in text and "grpo-a" not in text and "olga-owner" not in text, url
    assert opened, "public pages, such as the sign-in, open"


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options"])
def test_a_link_is_read_only(method: str, finding: Finding, owner: User, client: Client) -> None:
    client.force_login(owner)
    path = create_link(client, finding=finding.pk)
    assert getattr(Client(), method)(path).status_code == 405
    assert Client().head(path).status_code == 200


@pytest.mark.parametrize("role", ["viewer", "annotator", "maintainer"])
def test_only_owners_create_and_revoke(role: str, finding: Finding, run: Run, owner: User, client: Client) -> None:
    client.force_login(owner)
    create_link(client, finding=finding.pk)
    link = SharedLink.objects.get()
    other = Client()
    other.force_login(builders.member(finding.project, f"a-{role}", role))
    assert other.post("/share/", {"finding": finding.pk}).status_code == 403
    assert other.get(f"/share/?finding={finding.pk}").status_code == 403
    assert other.get(f"/share/?run={run.uid}").status_code == 403
    assert other.get(f"/share/?of={run.uid}@1,{run.uid}@2").status_code == 403
    assert other.post(f"/settings/{finding.project.slug}/links/{link.pk}/revoke/").status_code == 403
    assert "shared-links" not in other.get(f"/settings/{finding.project.slug}/").content.decode()
    assert "share outside" not in other.get(f"/findings/{finding.pk}/").content.decode()
    assert SharedLink.objects.count() == 1 and SharedLink.objects.get().is_valid


def test_owners_of_another_project_cannot_share_or_revoke(
    finding: Finding, run: Run, owner: User, client: Client
) -> None:
    client.force_login(owner)
    create_link(client, finding=finding.pk)
    link = SharedLink.objects.get()
    other_project = builders.project("mine")
    stranger = Client()
    stranger.force_login(builders.member(other_project, "otto", "owner"))
    assert stranger.post("/share/", {"finding": finding.pk}).status_code == 404
    assert stranger.post("/share/", {"run": run.uid, "metric": "x"}).status_code == 404
    assert stranger.post("/share/", {"of": f"{run.uid}@1,{run.uid}@2"}).status_code in (400, 404)
    assert stranger.post(f"/settings/{other_project.slug}/links/{link.pk}/revoke/").status_code == 404
    assert stranger.post(f"/settings/{finding.project.slug}/links/{link.pk}/revoke/").status_code == 404
    assert SharedLink.objects.get().is_valid


def test_a_comparison_of_two_projects_is_not_shared(run: Run, owner: User, client: Client) -> None:
    second = builders.project("second")
    Membership.objects.create(project=second, user=owner, role="owner")
    other = builders.run(second, "elsewhere")
    index_file(other, lines({"prompt": "p", "response": "x", "score": 1}), 1)
    client.force_login(owner)
    response = client.post("/share/", {"of": f"{run.uid}@1,{other.uid}@1", "split": "train"})
    assert response.status_code == 400 and "one project" in response.content.decode()


def test_the_database_has_no_secret_and_the_log_has_every_event(finding: Finding, owner: User, client: Client) -> None:
    client.force_login(owner)
    path = create_link(client, finding=finding.pk, days=30)
    secret = path.split("/")[2]
    link = SharedLink.objects.get()
    assert secret not in str(vars(link)) and len(link.digest) == 64
    assert timedelta(days=29) < link.expires_at - timezone.now() <= timedelta(days=30)
    for _visit in range(3):
        Client().get(path)
    client.post(f"/settings/{finding.project.slug}/links/{link.pk}/revoke/")
    client.post(f"/settings/{finding.project.slug}/links/{link.pk}/revoke/")
    entries = AuditEntry.objects.filter(verb__startswith="share.").order_by("pk")
    assert [(entry.verb, entry.user) for entry in entries] == [
        ("share.create", owner), ("share.use", None), ("share.revoke", owner),
    ]  # fmt: skip
    assert secret not in str([entry.detail for entry in entries])


def test_the_settings_list_links_with_creator_expiry_and_use(finding: Finding, owner: User, client: Client) -> None:
    client.force_login(owner)
    page = client.get(f"/settings/{finding.project.slug}/").content.decode()
    assert "No links. Owners create one" in page
    path = create_link(client, finding=finding.pk)
    section = client.get(f"/settings/{finding.project.slug}/").content.decode().split('id="shared-links"')[1]
    assert "olga-owner" in section and "never" in section and "Revoke" in section and "<script>alert" not in section
    Client().get(path)
    section = client.get(f"/settings/{finding.project.slug}/").content.decode().split('id="shared-links"')[1]
    assert "never" not in section.split("</section>")[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "Choose what to share"),
        ({"finding": "x"}, "finding"),
        ({"days": "5", "finding": "{pk}"}, "must be one of: 1, 7, 30, 90"),
        ({"days": "x", "finding": "{pk}"}, "days"),
        ({"run": "{uid}", "metric": "no/such"}, "has no metric"),
        ({"of": "{uid}@1"}, "at least two steps"),
        ({"of": "{uid}@1,{uid}@99"}, "has no train step 99"),
    ],
)
def test_a_mistake_is_explained(
    params: dict[str, str], message: str, finding: Finding, run: Run, owner: User, client: Client
) -> None:
    client.force_login(owner)
    filled = {name: value.format(pk=finding.pk, uid=run.uid) for name, value in params.items()}
    response = client.post("/share/", filled)
    assert response.status_code in (400, 404) and message in html.unescape(response.content.decode())
    assert SharedLink.objects.count() == 0


def test_removed_findings_are_not_shared(finding: Finding, owner: User, client: Client) -> None:
    Finding.objects.filter(pk=finding.pk).update(removed_at=timezone.now())
    client.force_login(owner)
    assert client.post("/share/", {"finding": finding.pk}).status_code == 404


def test_a_chart_is_chosen_from_the_metrics_of_the_run(run: Run, owner: User, client: Client, metric: str) -> None:
    client.force_login(owner)
    assert f'href="/share/?run={run.uid}"' in client.get(f"/runs/{run.uid}/").content.decode()
    page = client.get(f"/share/?run={run.uid}").content.decode()
    assert f'<option value="{metric}">{metric}</option>' in page and 'method="get"' in page
    assert client.post("/share/", {"run": run.uid}).status_code == 200 and SharedLink.objects.count() == 0


def test_guesses_are_limited_and_valid_links_still_open(finding: Finding, owner: User, client: Client) -> None:
    client.force_login(owner)
    path = create_link(client, finding=finding.pk)
    guesser = Client()
    codes = [guesser.get(f"/shared/{n:043d}/").status_code for n in range(65)]
    assert codes[:60] == [404] * 60 and codes[-1] == 429
    assert guesser.get(path).status_code == 200


def test_hostile_texts_are_escaped(project: Project, run: Run, owner: User, client: Client) -> None:
    index_file(run, lines({"prompt": HOSTILE, "response": HOSTILE, "score": 1, "ground_truth": HOSTILE}), 9)
    finding = create_finding(project, owner, title=HOSTILE, note=HOSTILE)
    add_sample_evidence(finding, Sample.objects.get(step__step=9), owner, words=HOSTILE)
    client.force_login(owner)
    text = Client().get(create_link(client, finding=finding.pk)).content.decode()
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_points_are_shown_without_noise_of_single_precision(run: Run, owner: User, client: Client) -> None:
    from dashboard.pages.findings.presenter import shorten_float32

    assert shorten_float32(0.10000000149011612) == 0.1 and shorten_float32(1 / 3) == 1 / 3
    assert shorten_float32(None) is None and shorten_float32(1e30) == 1e30


def test_several_charts_of_runs_and_groups_are_shared_with_scale_and_zoom(
    project: Project, run: Run, client: Client, owner: User
) -> None:
    client.force_login(owner)
    seeds = [builders.run(project, f"seed-{n}", tags=["seeds"]) for n in range(2)]
    for n, current_run in enumerate([run, *seeds]):
        points = [MetricPoint(step, {"loss": 10.0 ** (n - step), "lr": -1.0}) for step in range(1, 7)]
        append_points(current_run, builders.attempt(current_run), points)
    query = "query:share|train||score>0.4"
    params = {
        "run": run.uid, "metric": ["loss", query], "groups": "tag:seeds", "runs": seeds[0].uid, "log": "1",
        "zoom": "2..5",
    }  # fmt: skip
    form = html.unescape(client.get("/share/", params).content.decode())
    assert f'<input type="hidden" name="metric" value="{query}">' in form
    page = html.unescape(client.get(create_link(client, **params)).content.decode())
    assert page.count('<svg class="curves"') == 2 and "share of score>0.4" in page
    assert "seeds, mean of 2" in page and '<polygon class="band line-' in page
    assert "Logarithmic scale." in page and "Steps 2 to 5." in page
    steps = re.findall(r'<text x="[^"]*" y="200"[^>]*>\s*(\d+)</text>', page.partition('<svg class="curves"')[2])
    assert steps[:2] == ["2", "5"]
    other = builders.project("other")
    Membership.objects.create(project=other, user=owner, role="owner")
    foreign = builders.run(other, "foreign")
    for wrong in ({"runs": foreign.uid}, {"zoom": "5..2"}, {"metric": "query:share|train||"}):
        response = client.post("/share/", {**params, **wrong})
        assert response.status_code == 400, wrong
    empty = builders.run(project, "empty", tags=["new"])
    response = client.post("/share/", {"run": empty.uid, "metric": query, "groups": "tag:new"})
    assert response.status_code == 400 and "new has no metric" in response.content.decode(), "a group without steps"
    choices = client.get(f"/share/?run={run.uid}").content.decode()
    assert "multiple" in choices and '<option value="loss">' in choices
