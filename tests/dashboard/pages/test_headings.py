"""Each page has one heading, and heading and title name the object."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Project, Sample
from tests.dashboard.pages.test_pages import build_generations, get_page
from tests.rollouts.support.push import index_file, lines
from tests.support import builders


@pytest.fixture
def sample(project: Project) -> Sample:
    run = builders.run(project, "gsm-hack")
    for step in (1, 2):
        index_file(run, lines(*build_generations(step)), step)
    first = Sample.objects.filter(step__run=run, step__step=1).order_by("pk").first()
    assert first
    return first


def read_headings(html: str) -> list[str]:
    found = re.findall(r"<h1[^>]*>(.*?)</h1>", html, re.S)
    return [" ".join(re.sub(r"<[^>]+>", "", text).split()) for text in found]


def read_title(html: str) -> str:
    match = re.search(r"<title>(.*?)</title>", html, re.S)
    assert match
    return " ".join(match[1].split())


def test_heading_and_title_name_what_the_page_shows(sample: Sample, client: Client, owner: User) -> None:
    client.force_login(owner)
    run = sample.step.run
    page = f"/runs/{run.uid}"
    second = builders.run(run.project, "gsm-fixed")
    index_file(second, lines(*build_generations(2)), 2)
    for url, heading, title in (
        ("/", "Runs", "Runs"),
        (f"{page}/", "gsm-hack", "gsm-hack"),
        (f"{page}/steps/2/", "Step 2 of gsm-hack", "step 2 · gsm-hack"),
        (f"{page}/steps/latest/", "Step 2 of gsm-hack", "step 2 · gsm-hack"),
        (f"{page}/steps/all/", "All steps of gsm-hack", "all steps · gsm-hack"),
        (f"/samples/{sample.pk}/", "Sample of step 1 of gsm-hack", "sample of step 1 · gsm-hack"),
        (f"{page}/groups/1/0/", "Group 0", "group of step 1 · gsm-hack"),
        (f"{page}/prompts/{sample.prompt_key}/", "History of a prompt in gsm-hack", "prompt history · gsm-hack"),
        (
            f"/compare/?of={run.uid}@1,{second.uid}@2&split=train",
            "Comparison: gsm-hack@1, gsm-fixed@2",
            "gsm-hack@1, gsm-fixed@2 · Compare",
        ),
        ("/compare/", "Compare", "Compare"),
        (f"/review/?run={run.uid}&upto=2&batch=1", "Review of gsm-hack", "Review · gsm-hack"),
        (f"/pins/?project={run.project.slug}", "Pins", "Pins and replay"),
        ("/findings/", "Findings", "Findings"),
        (f"/settings/{run.project.slug}/", f"Settings of project {run.project.slug}", f"{run.project.slug} · Settings"),
        (f"/tidy/delete/?run={run.uid}", "Delete 1 run?", "Delete runs"),
    ):
        html = get_page(client, url)
        assert read_headings(html) == [heading], url
        assert read_title(html) == f"{title} · Rolloutdeck", url


def test_an_empty_page_has_one_heading_too(project: Project, client: Client, owner: User) -> None:
    client.force_login(owner)
    for url in ("/", f"/pins/?project={project.slug}", "/live/", "/review/", "/nowhere/"):
        status = 404 if url == "/nowhere/" else 200
        assert len(read_headings(get_page(client, url, status))) == 1, url
