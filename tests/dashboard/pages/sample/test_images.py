"""Images on pages: shown next to the text, served only to users who may see the sample, and never run or fetched."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.pages.findings import presenter
from rollouts.findings import findings
from rollouts.maintenance.sweep import delete_run_permanently
from rollouts.models import Project, Run, Sample
from rollouts.storage import get_image_prefix, list_files
from tests.rollouts.support.push import index_file, lines
from tests.support import builders
from tests.support.images import IMAGES, PNG, SVG, data_url

pytestmark = pytest.mark.one_database

IMAGE = re.compile(r'<img src="(/[^"]+)" width="3" height="2" loading="lazy" decoding="async"\s+alt="([^"]+)">')


def build_question(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What colour?"}]}]


def build_row(index: int, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    prompt = build_question({"type": "image_url", "image_url": {"url": data_url(PNG)}}, *parts)
    return {"prompt": prompt, "response": f"red {index}", "score": index / 2, "group": "a", "index": index, **more}


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    own = {"screenshot": data_url(IMAGES["gif"], "image/gif")}
    index_file(
        run,
        lines(build_row(0), build_row(1, **own), build_row(2, {"type": "image", "image": "/srv/secret.png"})),
        format="native",
    )
    return run


def get_sample(run: Run, index: int) -> Sample:
    return Sample.objects.get(step__run=run, index=index)


def get_page(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, path
    return response.content.decode()


def test_a_sample_shows_its_image_with_its_origin_and_size(run: Run, reader: Client) -> None:
    page = get_page(reader, f"/samples/{get_sample(run, 0).pk}/")
    ((url, alt),) = IMAGE.findall(page)
    assert alt == "Image from user, 3 × 2 pixels" and "user · PNG · 3 × 2 · 1 kB" in page
    assert f'<a href="{url}" target="_blank" rel="noopener"' in page and "base64," not in page


def test_an_image_is_served_with_a_strict_type_and_nothing_may_run(run: Run, reader: Client) -> None:
    ((url, _),) = IMAGE.findall(get_page(reader, f"/samples/{get_sample(run, 0).pk}/"))
    response = reader.get(url)
    assert response.content == PNG and response["Content-Type"] == "image/png"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
    assert response["Cross-Origin-Resource-Policy"] == "same-origin" and "private" in response["Cache-Control"]
    assert reader.get(url, headers={"if-none-match": response["ETag"]}).status_code == 304


def test_only_users_who_see_the_sample_get_its_image(run: Run, reader: Client, client: Client, stranger: User) -> None:
    ((url, _),) = IMAGE.findall(get_page(reader, f"/samples/{get_sample(run, 0).pk}/"))
    client.logout()
    assert client.get(url).status_code == 302
    client.force_login(stranger)
    assert client.get(url).status_code == 404


@pytest.mark.parametrize("digest", ["0" * 64, "x", "..%2f..%2fdb.sqlite3", "A" * 64])
def test_an_unknown_image_is_not_found(run: Run, reader: Client, digest: str) -> None:
    assert reader.get(f"/samples/{get_sample(run, 0).pk}/images/{digest}/").status_code == 404


def test_a_sample_of_another_run_does_not_serve_the_image(run: Run, reader: Client, project: Project) -> None:
    other = builders.run(project, "other")
    index_file(other, lines({"prompt": "a", "response": "b", "index": 0}), format="native")
    ((url, _),) = IMAGE.findall(get_page(reader, f"/samples/{get_sample(run, 0).pk}/"))
    assert reader.get(url.replace(get_sample(run, 0).pk, get_sample(other, 0).pk)).status_code == 404


def test_the_api_returns_the_image_that_a_message_names(run: Run, reader: Client, mate: User, stranger: User) -> None:
    path, sample = "/api/v1/samples/", get_sample(run, 0).pk
    headers = {"authorization": f"Bearer {builders.token(mate, 'read')}"}
    url = reader.get(f"{path}{sample}/", headers=headers).json()["messages"][0]["content"][0]["image_url"]["url"]
    digest = url.split(":")[1]
    response = reader.get(f"{path}{sample}/images/{digest}/", headers=headers)
    assert response.content == PNG and response["Content-Type"] == "image/png"
    headers = {"authorization": f"Bearer {builders.token(stranger, 'read')}"}
    assert reader.get(f"{path}{sample}/images/{digest}/", headers=headers).status_code == 404


def test_a_path_is_shown_as_text_and_not_loaded(run: Run, reader: Client) -> None:
    page = get_page(reader, f"/samples/{get_sample(run, 2).pk}/")
    assert '<code class="wrap-any">/srv/secret.png</code>' in page and "not loaded" in page
    assert len(IMAGE.findall(page)) == 1


def test_turns_show_an_image_in_its_message(run: Run, reader: Client) -> None:
    page = get_page(reader, f"/samples/{get_sample(run, 0).pk}/?view=turns")
    turns = page[page.index('class="turns"') :]
    assert len(IMAGE.findall(turns)) == 1 and "&lt;image_url&gt;\nWhat colour?" in turns


def test_a_group_shows_shared_images_once_and_others_at_their_response(run: Run, reader: Client) -> None:
    page = get_page(reader, f"/runs/{run.uid}/groups/1/a/")
    prompt, columns = page.split('class="board-columns"')
    assert len(IMAGE.findall(prompt)) == 1
    assert [alt for _, alt in IMAGE.findall(columns)] == ["Image from screenshot, 3 × 2 pixels"]
    assert "/srv/secret.png" in columns


def test_a_comparison_shows_the_images_of_its_prompt(run: Run, reader: Client, project: Project) -> None:
    other = builders.run(project, "other")
    index_file(other, lines(build_row(0)), format="native")
    page = get_page(reader, f"/compare/?of={run.uid}@1,{other.uid}@1&sel={get_sample(run, 0).prompt_key}")
    prompt = page[page.index('id="pair"') :].split('class="board-columns"')[0]
    assert len(IMAGE.findall(prompt)) == 1


def test_a_finding_keeps_copies_of_images_after_the_run_is_deleted(
    run: Run, reader: Client, mate: User, stranger: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = findings.create_finding(run.project, mate, title="Colours", note="")
    findings.add_sample_evidence(finding, get_sample(run, 1), by=mate)
    delete_run_permanently(run)
    assert not list(list_files(get_image_prefix(f"run-{run.pk}")))
    ((first, _), (second, _)) = IMAGE.findall(get_page(reader, f"/findings/{finding.pk}/"))
    assert {reader.get(first).content, reader.get(second).content} == {PNG, IMAGES["gif"]}
    exported = reader.get(f"/findings/{finding.pk}/export/")
    assert 'src="data:image/gif;base64,' in exported.content.decode()
    assert "img-src data:" in exported["Content-Security-Policy"]
    monkeypatch.setattr(presenter, "MAX_FILE_BYTES", max(len(PNG), len(IMAGES["gif"])))
    page = reader.get(f"/findings/{finding.pk}/export/").content.decode()
    assert page.count('src="data:image/') == page.count("too large for this file") == 1
    monkeypatch.setattr(presenter, "MAX_EMBEDDED_BYTES", 8)
    assert "too large for this file" in reader.get(f"/findings/{finding.pk}/export/").content.decode()
    assert reader.get(first.replace("/images/", "/images/0")).status_code == 404
    reader.force_login(stranger)
    assert reader.get(first).status_code == 404


def test_a_drawing_with_scripts_is_never_an_image(project: Project, reader: Client) -> None:
    run = builders.run(project)
    parts = {"type": "image", "image": data_url(SVG, "image/svg+xml")}
    index_file(run, lines({"prompt": build_question(parts), "response": "b", "index": 0}), format="native")
    page = get_page(reader, f"/samples/{get_sample(run, 0).pk}/")
    assert "not shown: only PNG, JPEG, GIF and WebP" in page and "<img" not in page
