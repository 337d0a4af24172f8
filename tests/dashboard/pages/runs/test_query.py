"""The query of the run list, and the messages about its mistakes."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.models import Membership, Run
from tests.dashboard.pages.runs.support import get_page, read_run_names
from tests.support import builders
from tests.support.html import collapse_spaces


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("run-00", 6), ("003", 1), ("tag:even", 3), ("-tag:even", 3), ("status:silent", 3), ('"run-001"', 1),
        ("actor.optim.lr=0.000001", 3), ("actor.optim.lr=1e-6 tag:even 002", 1), ("n=8", 6), ("n=9", 0),
        ("owner:olga", 0), ('"a:b"', 0), ("=", 0),
        ("score>0.25", 3), ("score>0.25 -status:silent", 2), ("status:silent,failed", 3), ("lr>2e-6", 3),
        ("metric.critic/score/mean>=3 or 001", 4), ("/run-00[12]$/", 2), ("no:score", 0), ("created<1h", 6),
    ],
)  # fmt: skip
def test_a_query_filters_the_list(runs: list[Run], owner_client: Client, words: str, found: int) -> None:
    """The old name of the parameter still works."""
    assert len(read_run_names(get_page(owner_client, f"/?q={quote(words)}"))) == found
    assert len(read_run_names(get_page(owner_client, f"/?name={quote(words)}"))) == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("scor>0.5", "Did you mean `score`?"),
        ("foo:bar", "No run here has `foo`"),
        ("seed&lt;five", "`seed` needs a number"),
        ("status:runing", "Did you mean `running`?"),
        ('tag:"', "Missing closing quote."),
        ("is:archvied", "Did you mean `archived`?"),
        ("updated<5", "needs an age, for example `updated<2h`"),
    ],
)
def test_a_mistake_in_a_query_is_explained(runs: list[Run], owner_client: Client, words: str, message: str) -> None:
    """A page shows the message with all runs; a list that is on a page already stays as it is."""
    message = re.sub("`([^`]*)`", r"<code>\1</code>", message)
    words = words.replace("&lt;", "<")
    page = unescape(get_page(owner_client, f"/?q={quote(words)}"))
    assert message in page and 'aria-invalid="true"' in page
    assert len(read_run_names(page)) == 6
    panel = owner_client.get(f"/?q={quote(words)}", headers={"HX-Request": "true", "HX-Target": "runs"})
    assert panel.headers["HX-Retarget"] == "#q-error"
    assert message in unescape(panel.content.decode())


def test_a_query_without_matches_says_which_word_excludes_all(runs: list[Run], owner_client: Client) -> None:
    page = unescape(get_page(owner_client, "/?q=tag:odd status:silent"))
    assert "No runs match this query." in page
    assert collapse_spaces('<a class="chip" href="?q=status:silent">without tag:odd <b>3</b></a>') in collapse_spaces(
        page
    )
    assert "no run matches this word" in page


def test_a_project_without_runs_says_how_to_add_runs(runs: list[Run], owner_client: Client, owner: User) -> None:
    fresh = builders.project("fresh")
    Membership.objects.create(project=fresh, user=owner, role="owner")
    page = get_page(owner_client, "/?project=fresh")
    assert "No runs yet" in page and "rolloutdeck import /path/to/rollouts --project fresh --run my-run" in page
    assert 'id="q"' in page and "Load demo data" not in page
    assert "No runs match this query." in get_page(owner_client, "/?project=fresh&q=tag:odd")
    builders.run(fresh, archived_at=runs[0].created_at)
    assert "No runs yet" not in get_page(owner_client, "/?project=fresh")


def test_a_typed_filter_is_added_to_the_url(runs: list[Run], owner_client: Client) -> None:
    response = owner_client.get(
        "/?q=tag:even&project=&group=&show=", headers={"HX-Request": "true", "HX-Target": "runs"}
    )
    assert response.headers["HX-Replace-Url"] == "/?q=tag:even"
    assert "<html" not in response.content.decode()
