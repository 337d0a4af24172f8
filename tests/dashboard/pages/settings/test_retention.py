"""The retention page, and what other pages say about dropped samples."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Run, RunDiskUsage, Sample
from rollouts.retention import apply_due_policies
from tests.rollouts.retention.test_drop import age_steps, update_and_apply_policy, write_step
from tests.support import builders
from tests.support.html import collapse_spaces

PATH = "/settings/math/retention/"


@pytest.fixture
def olga(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


@pytest.fixture
def trained(run: Run) -> Run:
    for step in range(1, 6):
        write_step(run, step)
    age_steps(run)
    return run


def page(client: Client, path: str = PATH) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return collapse_spaces(response.content.decode())


def test_a_policy_is_saved_and_its_dry_run_shown(olga: Client, trained: Run) -> None:
    assert "Everything is kept." in page(olga)
    form = {"train": "sample", "groups": "2", "extremes": "1", "after_days": "7", "max_gb": "", "max_steps": ""}
    assert olga.post(PATH, form).status_code == 302
    text = page(olga)
    assert "After 7 days, 2 random groups, the 1 best and the 1 worst of each training step stay." in text
    assert ">grpo</a>" in text and "only a sample of groups is kept" in text and "best or worst group" in text
    assert Sample.objects.count() == 160, "nothing is dropped yet"
    report = olga.get(f"{PATH}report.json")
    assert report.headers["Content-Disposition"].startswith("attachment") and report.json()["totals"]["drops"] > 0


def test_an_invalid_policy_is_shown_again(olga: Client, project: Project) -> None:
    response = olga.post(PATH, {"train": "every", "every": "0", "max_gb": "x"})
    message = "“sample bodies and dumps together, in GB” must be a number of gigabytes above 0, or empty."
    assert response.status_code == 400 and message in response.content.decode()
    html = olga.post(PATH, {"train": "every", "every": "0", "max_gb": "7"}).content.decode()
    assert "“k” must be between 1 and 1000000." in html and 'name="max_gb" value="7"' in html


def test_a_pass_needs_the_words_of_the_dry_run(olga: Client, trained: Run) -> None:
    olga.post(PATH, {"train": "every", "every": "2"})
    assert "<code>drop 64</code>" in page(olga)
    for words in ("", "drop 63", "yes"):
        olga.post(f"{PATH}run/", {"do": "apply", "confirm": words})
    assert "Nothing was dropped: type the words" in page(olga)
    olga.post(f"{PATH}run/", {"do": "apply", "confirm": "drop 64"})
    assert apply_due_policies() == 64
    assert "Samples in 2 steps: 64." in page(olga)


def test_run_step_and_disk_pages_count_what_was_dropped(olga: Client, trained: Run, owner: User) -> None:
    update_and_apply_policy(trained.project, owner, train="sample", groups=2, extremes=0)
    step = page(olga, f"/runs/{trained.uid}/steps/3/")
    assert "24 of 32 samples were dropped by the retention policy on" in step
    assert "96 of 160 samples, in 4 steps, were dropped by the retention policy" in page(olga, f"/runs/{trained.uid}/")
    assert "96 · " in page(olga, "/disk/?project=math")
    assert "were dropped" not in page(olga, f"/runs/{trained.uid}/steps/5/")


def test_maintainers_look_and_viewers_do_not(client: Client, trained: Run) -> None:
    client.force_login(builders.member(trained.project, "petr", "maintainer"))
    text = page(client)
    assert "Save policy" not in text and "Dry run" in text
    assert client.post(PATH, {"train": "every"}).status_code == 403
    assert client.post(f"{PATH}run/", {"do": "apply", "confirm": "drop 64"}).status_code == 403
    client.force_login(builders.member(trained.project, "vera", "viewer"))
    assert client.get(PATH).status_code == 403


def test_the_quota_is_shown_with_a_warning(olga: Client, owner: User, run: Run) -> None:
    RunDiskUsage.objects.create(run=run, raw=960_000_000)
    Project.objects.update(quota=10**9)
    assert "96 % of the quota is used." in page(olga) and "Save quota" not in page(olga)
    olga.post("/settings/math/quota/", {"quota_gb": "2"})
    assert Project.objects.get().quota == 10**9, "an owner is not a server admin"
    User.objects.filter(pk=owner.pk).update(is_superuser=True)
    for typed in ("-1", "1e999", "nan", "two"):
        refused = olga.post("/settings/math/quota/", {"quota_gb": typed})
        html = refused.content.decode()
        assert refused.status_code == 400 and "“Quota in GB” must be a number of gigabytes above 0" in html
        assert f'name="quota_gb" value="{typed}"' in html
    olga.post("/settings/math/quota/", {"quota_gb": "2"})
    assert Project.objects.get().quota == 2 * 10**9
    assert "48 % of 2.0 GB" in page(olga, "/disk/")
