"""Every page and every call of the API, asked by everybody: an address that is new has to be listed here.

What a caller changed is read from the database, whatever the answer says: each act in `WRITES` changes something when
an owner does it, and nothing when it is done by somebody without the role or by a token without the scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from rollouts.findings import findings
from rollouts.flags import bulk
from rollouts.models import Flag, Project, Run, Token
from rollouts.pins import pins
from rollouts.retention import update_policy
from rollouts.saved_views import save_view
from rollouts.sharing import create_shared_link
from tests.dashboard.support.api_client import ApiClient, filled, one_sample
from tests.rollouts.support.artifacts import manifest_of, registered
from tests.support import builders

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

# What anybody may ask: signing in, and what a browser keeps for itself.
OPEN = {"sign-in", "sign-in-code", "sign-in-link", "sign-out", "language", "catalogue", "theme", "keys", "healthz"}
OPEN |= {"metrics", "api", "shared"}  # see tests/dashboard/pages/sharing
# Pages that show what the user may see, of any project.
LISTS = {
    "runs",
    "search",
    "ahead",
    "findings",
    "go",
    "live",
    "pins",
    "review",
    "compare",
    "settings",
    "password",
    "second-factor",
    "end-other-sessions",
    "tidy",
}
# Pages that change something: what their form sends. `{run}` and its like stand for what `things` made.
FORMS: dict[str, dict[str, str]] = {
    "flag": {"reason": "other"},
    "withdraw": {},
    "flag-many": {"samples": "{sample}", "reason": "other"},
    "flag-undo": {},
    "verdict": {"reason": "other"},
    "finding-add": {"sample": "{sample}", "show": "sample", "title": "New"},
    "finding-edit": {"title": "Other", "note": "", "version": "1"},
    "finding-remove": {},
    "exhibit": {"do": "out"},
    "pin-step": {"split": "train", "step_kind": "global_step", "step": "1", "attempt": "a"},
    "pin-range": {"run": "{run}", "first": "1", "last": "3"},
    "plan-save": {"project": "math", "do": "save", "base": "0", "pin": "{pin}", "target": "1"},
    "pin-note": {"note": "other"},
    "unpin": {},
    "tidy": {"do": "tag", "tag": "new", "run": "{run}"},
    "tidy-delete": {"run": "{other}"},
    "members": {"user": "stan", "role": "viewer"},
    "member-link": {"user": "nora"},
    "reasons": {"reasons": "only this"},
    "correct": {"correct": "score>0.5"},
    "loosen": {"fact": "rows", "note": "it is fine"},
    "tokens": {"name": "x", "scopes": "read"},
    "revoke": {},
    "revoke-link": {},
    "share": {"finding": "{finding}"},
    "members-of-projects": {"user": "stan", "role": "viewer", "project": "math"},
    "save-view": {"page": "runs", "name": "New", "params": "q=a", "project": "math", "shared": "1"},
    "change-view": {"do": "rename", "name": "Other"},
    "retention": {"train": "every", "every": "3"},
    "retention-run": {},
}
ARTIFACT: dict[str, Any] = {"step": 9, "role": "rollout", "files": manifest_of({"a.json": b"1"})}
# (method, address below /api/v1/, what is sent); `wanted/` notes who asked.
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "runs/", {"project": "math", "name": "new"}),
    ("PATCH", "runs/{run}/", {"name": "renamed"}),
    ("DELETE", "runs/{other}/", None),
    ("POST", "runs/{run}/heartbeat/", {"attempt": "a", "phase": "training"}),
    ("POST", "runs/{run}/context/", {"attempt": "a", "host": "node-1"}),
    ("POST", "runs/{run}/finish/", {"attempt": "a"}),
    ("POST", "runs/{run}/metrics/", {"attempt": "a", "points": [{"step": 1, "values": {"x": 1}}]}),
    ("POST", "runs/{run}/index/", {}),
    ("PUT", "runs/{run}/artifacts/", ARTIFACT),
    ("GET", "runs/{run}/wanted/?host=h", None),
    ("POST", "runs/{run}/replay-plan/", {}),
    ("POST", "runs/{run}/prompts/", {"steps": {"1": ["1+1="]}}),
    ("POST", "runs/{run}/replays/", {"attempt": "a", "step": 1, "outcome": "miss"}),
    ("POST", "findings/", {"project": "math", "title": "New"}),
    ("PATCH", "findings/{finding}/", {"title": "Other"}),
    ("DELETE", "findings/{finding}/", None),
    ("POST", "findings/{finding}/exhibits/", {"run": "{run}", "q": "score<1"}),
    ("PATCH", "findings/{finding}/exhibits/{exhibit}/", {"words": "so"}),
    ("DELETE", "findings/{finding}/exhibits/{exhibit}/", None),
    ("POST", "flags/", {"sample": "{sample}", "reason": "other"}),
    ("PATCH", "flags/{flag}/", {"text": "look"}),
    ("POST", "pins/range/", {"run": "{run}", "first": 1, "last": 3, "plan": "other"}),
    ("POST", "pins/", {"run": "{run}", "step": 1}),
    ("PATCH", "pins/{pin}/", {"note": "other"}),
    ("DELETE", "pins/{pin}/", None),
    ("POST", "projects/", {"slug": "fresh"}),
    ("PATCH", "projects/math/", {"correct": "score>0.5"}),
    ("POST", "projects/math/members/", {"user": "stan", "role": "viewer"}),
    ("PUT", "projects/math/replay-plan/", {"entries": []}),
    ("PATCH", "projects/math/retention/", {"train": "every", "every": 3}),
    ("POST", "projects/math/retention/", {}),
    ("POST", "tokens/", {"name": "x", "project": "math", "scopes": ["read"]}),
    ("DELETE", "tokens/{token}/", None),
    ("PATCH", "projects/math/charts/", {"version": 0, "pinned": ["score"]}),
    ("POST", "views/", {"page": "runs", "name": "New", "params": "q=a", "project": "math", "shared": True}),
    ("PATCH", "views/{view}/", {"name": "Other"}),
    ("DELETE", "views/{view}/", None),
]
OWN = {("POST", "projects/")}  # what anybody with an account may do for themselves
SCOPES = ("ingest", "read", "annotate", "admin")
MATCH = {"If-Match": '"0"'}


@pytest.fixture
def things(project: Project, owner: User) -> dict[str, str]:
    """A run with a flagged sample, a finding that shows it and a pin; an `other` run that nothing holds; Nora, who
    never signed in."""
    run, right = filled(project), builders.run(project, "other")
    sample = one_sample(run)
    bulk.flag_samples(run, [sample.pk], owner)
    finding = findings.create_finding(project, owner, title="Loops")
    exhibit = findings.add_sample_evidence(finding, sample, owner)
    for step in (1, 2):
        registered(run, step, attempt="a")
    pin = pins.pin_step(run, 2, owner)[0]
    builders.token(owner, "read", on=project)
    project.memberships.create(user=User.objects.create_user("nora"), role="viewer")
    update_policy(project, owner, {"train": "sample"})
    shared, _secret = create_shared_link(project, owner, kind="finding", title="Loops", html="x", days=7)
    ids = {
        "shared": shared,
        "finding": finding,
        "exhibit": exhibit,
        "flag": Flag.objects.get(),
        "pin": pin,
        "token": Token.objects.get(),
        "view": save_view(owner, page="runs", name="Low", params="q=score<0.2", project=project, shared=True),
    }
    return {
        "run": run.uid,
        "other": right.uid,
        "sample": sample.pk,
        **{name: str(left.pk) for name, left in ids.items()},
    }


def placed(value: Any, things: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: placed(inner, things) for key, inner in value.items()}
    return value.format(**things) if isinstance(value, str) and "{" in value else value


def patterns(found: Any = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for item in get_resolver().url_patterns if found is None else found:
        if isinstance(item, URLResolver):
            yield from patterns(item.url_patterns, prefix + str(item.pattern))
        else:
            yield prefix + str(item.pattern), item


PAGES = {str(left.name): route for route, left in patterns() if not route.startswith("api/")}
HOLES = {
    "<str:uid>": "{run}", "<str:step>": "1", "<path:group>": "g", "<str:key>": "k", "<str:slug>": "math",
    "<str:language>": "en",
}  # fmt: skip
# What the number or the sample's id in an address is of.
OF = {"sample": "sample", "flag": "sample", "verdict": "sample", "withdraw": "flag", "exhibit": "exhibit"}
OF |= {"pin-note": "pin", "unpin": "pin", "revoke": "token", "revoke-link": "shared", "sample-file": "sample"}
OF |= {"change-view": "view", "saved-view": "view"}


def page(name: str, things: dict[str, str]) -> str:
    address = "/" + PAGES[name]
    for hole, filled_with in HOLES.items():
        address = address.replace(hole, filled_with)
    of = OF.get(name, "finding")
    return address.replace("<int:pk>", f"{{{of}}}").replace("<str:pk>", f"{{{of}}}").format(**things)


def state() -> list[Any]:
    """Every row of the product, but what tells who was here last and what somebody has looked at."""
    models = [model for model in apps.get_app_config("rollouts").get_models() if model.__name__ != "ViewedSample"]
    passing = {"used_at", "seen_at", "version", "updated_at"}
    names = {model: [field.attname for field in model._meta.fields if field.name not in passing] for model in models}
    return [list(model._default_manager.order_by("pk").values_list(*fields)) for model, fields in names.items()]


def changes(act: Callable[[], Any]) -> bool:
    """Whether an act changes anything; it is undone."""
    with transaction.atomic():
        before = state()
        act()
        changed = state() != before
        transaction.set_rollback(True)
    return changed


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def viewer(project: Project) -> User:
    return builders.member(project, "vera", "viewer")


def test_every_call_that_writes_is_listed() -> None:
    methods = {
        (method.upper(), route.removeprefix("api/v1/"))
        for route, left in patterns()
        if route.startswith("api/v1/")
        for method in ("post", "put", "patch", "delete")
        if hasattr(left.callback.view_class, method)  # type: ignore[union-attr]
    }
    requested = {(method, path.partition("?")[0]) for method, path, _ in CALLS if method != "GET"}
    assert len(methods) == len(requested)
    shapes = {(method, "/".join("" if "<" in part else part for part in path.split("/"))) for method, path in methods}
    assert shapes == {
        (method, "/".join("" if "{" in part or part == "math" else part for part in path.split("/")))
        for method, path in requested
    }


def test_nobody_gets_past_the_door_without_an_account(things: dict[str, str]) -> None:
    before = state()
    for name in PAGES.keys() - OPEN - {"None"}:
        for method in ("get", "post"):
            answer = getattr(Client(), method)(page(name, things), placed(FORMS.get(name, {}), things))
            assert answer.status_code in (302, 405) and "sign-in" in answer.headers.get("Location", "sign-in"), name
    for route, left in patterns():
        if route.startswith("api/v1/"):
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                requested = Client().generic(method, "/" + route.replace("<int:", "1").replace("<str:", "x"))
                assert requested.status_code in (401, 404), (method, route, left)
    assert state() == before


def test_a_stranger_finds_nothing_at_any_address_of_a_project(things: dict[str, str], stranger: User) -> None:
    client = signed_in(stranger)
    owned = builders.project("demo")
    builders.member(owned, "dora", "owner")
    before = state()
    for name in PAGES.keys() - OPEN - LISTS - {"None", "tidy-delete", "finding-add", "plan-save", "share"}:
        answers = [
            getattr(client, method)(page(name, things), placed(FORMS.get(name, {}), things))
            for method in ("get", "post")
        ]
        assert {answer.status_code for answer in answers} <= {404, 405, 302}, name
        allowed = {"load-demo": "/"}.get(name, "/findings/")
        assert all(allowed in answer.headers["Location"] for answer in answers if answer.status_code == 302), name
    for name in ("tidy", "tidy-delete", "finding-add", "plan-save", "share"):
        client.post(page(name, things), placed(FORMS[name], things))
    for method, path, body in CALLS:
        if (method, path) not in OWN:
            assert ApiClient(client)(method, placed(path, things), placed(body, things)).status_code in (404, 428), path
    assert state() == before


def test_a_list_shows_a_stranger_nothing_of_a_project(things: dict[str, str], owner: User, stranger: User) -> None:
    run = Run.objects.get(uid=things["run"])
    queries = (
        "",
        f"project=math&run={run.uid}&of={run.uid}@1&q=a&show=bin",
        f"sel={things['sample']}&ids={things['sample']}",
    )
    secrets = (run.uid, run.name, things["sample"], "Loops", "Low", owner.username)
    for name in LISTS:
        for query in queries:
            answer = signed_in(stranger).get(f"{page(name, things)}?{query}")
            text = (b"".join(answer) if answer.streaming else answer.content).decode()  # type: ignore[arg-type]
            shown = text.replace(query, "").replace(query.replace("&", "&amp;"), "")
            leaked = [secret for secret in secrets if f">{secret}<" in shown or f"/{secret}/" in shown]
            assert answer.status_code in (200, 302, 400, 404, 405) and not leaked, (name, query)


def test_the_demo_belongs_to_who_loads_it_first(things: dict[str, str], owner: User, stranger: User) -> None:
    assert signed_in(stranger).get("/demo/").status_code == 405
    assert changes(partial(signed_in(stranger).post, "/demo/"))
    demo = builders.project("demo")
    builders.member(demo, "dora", "owner")
    assert not any(changes(partial(signed_in(by).post, "/demo/")) for by in (owner, stranger))


def test_a_form_changes_something_for_an_owner_and_nothing_for_a_viewer(
    things: dict[str, str], owner: User, viewer: User, stranger: User
) -> None:
    for name, form in FORMS.items():
        address, result = page(name, things), placed(form, things)
        changed = [changes(partial(signed_in(by).post, address, result)) for by in (owner, viewer)]
        assert changed == [True, False], name


def test_a_call_changes_something_with_the_role_and_the_scope_and_nothing_without(
    things: dict[str, str], owner: User, viewer: User, stranger: User
) -> None:
    full = ApiClient.with_token(owner, *SCOPES)
    without = [ApiClient.with_token(owner, "read")]
    others = [
        ApiClient.with_token(viewer, *SCOPES),
        ApiClient.with_token(owner, *SCOPES, on=builders.project("elsewhere")),
    ]
    for method, path, body in CALLS:
        address, result = placed(path, things), placed(body, things)
        request_data = [*without, *([] if (method, path) in OWN else others)]
        changed = [changes(partial(api, method, address, result, headers=MATCH)) for api in (full, *request_data)]
        assert changed == [True, *[False] * len(request_data)], (method, path)


def test_pages_that_are_only_read_take_no_form(things: dict[str, str], owner: User) -> None:
    reading = PAGES.keys() - OPEN - FORMS.keys() - {"None", "settings", "password", "seen", "tidy", "load-demo"}
    reading -= {"second-factor", "end-session", "end-other-sessions"}  # see tests/dashboard/pages/settings
    reading -= {"quota"}  # a form for server admins, see tests/dashboard/pages/settings/test_retention.py
    client = signed_in(owner)
    assert {name: client.post(page(name, things)).status_code for name in reading} == dict.fromkeys(reading, 405)
