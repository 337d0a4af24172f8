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
def owner_client(client: Client, owner: User) -> Client:
    client.force_login(owner)
    return client


@pytest.fixture
def run_with_steps(run: Run) -> Run:
    for step in range(1, 6):
        write_step(run, step)
    age_steps(run)
    return run


def get_page(client: Client, path: str = PATH) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return collapse_spaces(response.content.decode())


def test_a_policy_is_saved_and_its_dry_run_shown(owner_client: Client, run_with_steps: Run) -> None:
    assert "Everything is kept." in get_page(owner_client)
    form = {"train": "sample", "groups": "2", "extremes": "1", "after_days": "7", "max_gb": "", "max_steps": ""}
    assert owner_client.post(PATH, form).status_code == 302
    text = get_page(owner_client)
    assert "After 7 days, 2 random groups, the 1 best and the 1 worst of each training step stay." in text
    assert ">grpo</a>" in text and "only a sample of groups is kept" in text and "best or worst group" in text
    assert Sample.objects.count() == 160, "nothing is dropped yet"
    report = owner_client.get(f"{PATH}report.json")
    assert report.headers["Content-Disposition"].startswith("attachment") and report.json()["totals"]["drops"] > 0


def test_an_invalid_policy_is_shown_again(owner_client: Client, project: Project) -> None:
    response = owner_client.post(PATH, {"train": "every", "every": "0", "max_gb": "x"})
    message = "“sample bodies and dumps together, in GB” must be a number of gigabytes above 0, or empty."
    assert response.status_code == 400 and message in response.content.decode()
    html = owner_client.post(PATH, {"train": "every", "every": "0", "max_gb": "7"}).content.decode()
    assert "“k” must be between 1 and 1000000." in html and 'name="max_gb" value="7"' in html


def test_a_pass_must_be_confirmed_with_the_words_of_the_dry_run(owner_client: Client, run_with_steps: Run) -> None:
    owner_client.post(PATH, {"train": "every", "every": "2"})
    assert "<code>drop 64</code>" in get_page(owner_client)
    for words in ("", "drop 63", "yes"):
        owner_client.post(f"{PATH}run/", {"do": "apply", "confirm": words})
    assert "Nothing was dropped: type the words" in get_page(owner_client)
    owner_client.post(f"{PATH}run/", {"do": "apply", "confirm": "drop 64"})
    assert apply_due_policies() == 64
    assert "Samples in 2 steps: 64." in get_page(owner_client)


def test_run_step_and_disk_pages_count_what_was_dropped(owner_client: Client, run_with_steps: Run, owner: User) -> None:
    update_and_apply_policy(run_with_steps.project, owner, train="sample", groups=2, extremes=0)
    step = get_page(owner_client, f"/runs/{run_with_steps.uid}/steps/3/")
    assert "24 of 32 samples were dropped by the retention policy on" in step
    assert "96 of 160 samples, in 4 steps, were dropped by the retention policy" in get_page(
        owner_client, f"/runs/{run_with_steps.uid}/"
    )
    assert "96 · " in get_page(owner_client, "/disk/?project=math")
    assert "were dropped" not in get_page(owner_client, f"/runs/{run_with_steps.uid}/steps/5/")


def test_maintainers_see_the_policy_and_viewers_do_not(client: Client, run_with_steps: Run) -> None:
    client.force_login(builders.member(run_with_steps.project, "petr", "maintainer"))
    text = get_page(client)
    assert "Save policy" not in text and "Dry run" in text
    assert client.post(PATH, {"train": "every"}).status_code == 403
    assert client.post(f"{PATH}run/", {"do": "apply", "confirm": "drop 64"}).status_code == 403
    client.force_login(builders.member(run_with_steps.project, "vera", "viewer"))
    assert client.get(PATH).status_code == 403


def test_the_quota_is_shown_with_a_warning(owner_client: Client, owner: User, run: Run) -> None:
    RunDiskUsage.objects.create(run=run, raw=960_000_000)
    Project.objects.update(quota=10**9)
    assert "96 % of the quota is used." in get_page(owner_client) and "Save quota" not in get_page(owner_client)
    owner_client.post("/settings/math/quota/", {"quota_gb": "2"})
    assert Project.objects.get().quota == 10**9, "an owner is not a server admin"
    User.objects.filter(pk=owner.pk).update(is_superuser=True)
    for typed in ("-1", "1e999", "nan", "two"):
        refused = owner_client.post("/settings/math/quota/", {"quota_gb": typed})
        html = refused.content.decode()
        assert refused.status_code == 400 and "“Quota in GB” must be a number of gigabytes above 0" in html
        assert f'name="quota_gb" value="{typed}"' in html
    owner_client.post("/settings/math/quota/", {"quota_gb": "2"})
    assert Project.objects.get().quota == 2 * 10**9
    assert "48 % of 2.0 GB" in get_page(owner_client, "/disk/")
