"""Every URL, requested with each role and method, for own, foreign and made-up objects.

`tests/data/access_matrix.json` has all statuses, with a `w` if the request wrote a row. After a change that is meant,
record them again and read the difference:

    RECORD=1 python -m pytest -n0 tests/dashboard/test_access_matrix.py
    git diff tests/data/access_matrix.json

A new URL needs the meaning of its arguments in `ARGUMENTS`, and its role and form in `FORMS` (a page that changes
something) or its body in `CALLS` (the API); all are in `tests/dashboard/support/access_world.py`. Each request is
rolled back. Uploads and WebSocket topics are only asked for their decision; `uploads/` and `test_consumers.py` test the
rest.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.urls import URLPattern, URLResolver, get_resolver

from dashboard import consumers
from dashboard.api import describe_exception, docs
from dashboard.permissions import ROLE_RANKS
from dashboard.uploads import app
from tests.dashboard.support.access_world import (
    ADDRESSES,
    ARGUMENTS,
    CALLS,
    FORMS,
    QUERIES,
    RESERVING,
    build_world,
    find_kinds,
    insert_ids,
)
from tests.dashboard.support.asker import PERSONS, TOKENS, Answer, RoleClient
from tests.support import page_list

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

RECORDED = Path(__file__).parents[1] / "data" / "access_matrix.json"
API = "api/v1/"
OUTSIDERS = ("anonymous", "stranger", "token:elsewhere")
ROLE_OF = {"token:viewer": "viewer", "token:elsewhere": ""}  # in the project; otherwise a token has its owner's
PAGE_METHODS = ("GET", "POST", "PUT")  # PUT stands for all others
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
NOT_REQUESTED = {"GET readyz", "POST demo/"}  # see api/test_readiness.py and test_urls.py
# Changes of the user's own data, which need no role in a project.
PERSONAL = {"seen", "sign-out", "sign-in-code", "end-session", "end-other-sessions", "POST api/v1/projects/"}
OPEN = {"shared"}  # the link is the permission
# A program that may create projects learns that a slug is in use, see docs/decisions/projects.md.
CREATES_PROJECTS = {"POST api/v1/runs/", "POST api/v1/tokens/"}
LEAVES_OUT = {"POST pins/plan/"}  # saves the own plan without pins of other projects
SAFE = ("GET", "OPTIONS")
World = dict[str, dict[str, str]]
Table = dict[str, dict[str, dict[str, "Answer"]]]  # request -> role -> object


@dataclass(frozen=True)
class Target:
    """A URL pattern."""

    route: str
    name: str
    view: Any

    @property
    def is_api(self) -> bool:
        return self.route.startswith(API)

    def list_methods(self) -> tuple[str, ...]:
        """Those that are requested with every role."""
        if not self.is_api:
            return PAGE_METHODS[:2]
        return tuple(method for method in METHODS if method != "OPTIONS" and hasattr(self.view, method.lower()))

    def build_request(self, method: str) -> tuple[str, Any]:
        """Address and body, both with `{kind}` for ids."""
        address = ADDRESSES.get((method, self.route), "/" + fill_route(self.route))
        query = QUERIES.get(self.route, "") if method in ("GET", "HEAD") else ""
        return f"{address}?{query}" if query else address, self.find_entry(method)[1]

    def find_scope(self, method: str) -> str:
        return self.view.scopes.get(method, "read" if method == "GET" else "admin") if self.is_api else ""

    def find_entry(self, method: str) -> tuple[str, Any]:
        """The lowest role that may write, and the body."""
        if self.is_api:
            return CALLS.get((method, self.route.removeprefix(API)), ("", None))
        if method == "GET" and self.name in RESERVING:
            return RESERVING[self.name], None
        return FORMS[self.name] if method == "POST" and self.name in FORMS else ("", None)


def fill_route(route: str) -> str:
    """The route with `{kind}` for its arguments."""
    parts = route.split("/")
    for number, part in enumerate(parts):
        for text, name in re.findall(r"(<(?:\w+:)?(\w+)>)", part):
            before = parts[number - 1].strip("{}")
            assert (before, name) in ARGUMENTS, f"/{route}: ARGUMENTS does not say what {before}/<{name}> is"
            parts[number] = parts[number].replace(text, f"{{{ARGUMENTS[before, name]}}}")
    return "/".join(parts)


def find_targets(found: Any = None, prefix: str = "") -> Iterator[Target]:
    for item in get_resolver().url_patterns if found is None else found:
        route = prefix + str(item.pattern)
        if isinstance(item, URLResolver):
            yield from find_targets(item.url_patterns, route)
        elif isinstance(item, URLPattern):
            yield Target(route, item.name or route, getattr(item.callback, "view_class", item.callback))


def request_urls(world: World, role_client: RoleClient) -> Table:
    table: Table = defaultdict(lambda: defaultdict(dict))
    for target in find_targets():
        known = target.list_methods()
        for method in METHODS if target.is_api else PAGE_METHODS:
            request = f"{method} {target.route}"
            if request in NOT_REQUESTED:
                continue
            address, body = target.build_request(method)

            def send_request(
                role: str, name: str, ids: dict[str, str], *what: Any, is_api: bool = target.is_api
            ) -> Answer:
                request, method, address, body = what
                path, data = insert_ids(address, ids), insert_ids(body, ids)
                table[request][role][name] = role_client.request(role, method, path, data, is_api=is_api)
                return table[request][role][name]

            what = (request, method, address, body)
            refused = send_request("owner", "own", world["own"], *what).status == 405
            if refused or method not in known:
                send_request("anonymous", "own", world["own"], *what)
                continue
            for role in (*PERSONS, *TOKENS) if target.is_api else PERSONS:
                for name, ids in list_objects(world, role, target.find_scope(method), find_kinds(address, body)):
                    send_request(role, name, ids, *what)
    return table


def list_objects(world: World, role: str, scope: str, kinds: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The objects to request with a role. `mixed`: the first id is of an own object, the others are foreign or made-up.

    The roles between the lowest and the highest, administrators, and tokens without the scope request own objects
    only. For outsiders these are foreign.
    """
    yield "own", world["own"]
    if role in OUTSIDERS and kinds:
        yield "made-up", world["made-up"]
    if role not in ("viewer", "owner", f"token:{scope}") or not kinds:
        return
    for name in ("foreign", "made-up"):
        yield name, world[name]
        if len(kinds) > 1:
            yield f"mixed {name}", world[name] | {kinds[0]: world["own"][kinds[0]]}


def check_uploads(world: World, role_client: RoleClient) -> Table:
    """What the upload app decides before it reads a body: 100 means that it goes on."""
    table: Table = defaultdict(lambda: defaultdict(dict))
    for route in ("runs/{run}/dumps/{dump}", "runs/{run}/artifacts/{artifact}/files/{file}"):
        for method in ("PUT", "HEAD"):
            for role in ("anonymous", *TOKENS):
                for name, ids in list_objects(world, role, "ingest", find_kinds(route)):
                    auth = (
                        [(b"authorization", f"Bearer {role_client.secrets[role]}".encode())]
                        if role in role_client.secrets
                        else []
                    )
                    scope = {"method": method, "headers": [*auth, (b"content-length", b"9")], "query_string": b"step=3"}
                    answer = decide_upload(scope, f"/{API}{insert_ids(route, ids)}/")
                    answer = Answer(answer.status, body=role_client.normalise(answer.body))
                    table[f"{method} upload {route}"][role][name] = answer
    return table


def decide_upload(scope: dict[str, Any], path: str) -> Answer:
    with transaction.atomic():
        try:
            _upload, known = app.check_upload_request(scope, path)
            return Answer(known.status if known else 100)
        except Exception as error:
            status, body = describe_exception(error) or (500, repr(error))
            return Answer(status, body=str(body))
        finally:
            transaction.set_rollback(True)


def check_topics(world: World, role_client: RoleClient) -> Table:
    """Whether the WebSocket notifies a user of a run."""
    table: Table = defaultdict(lambda: defaultdict(dict))
    for role, user in role_client.users.items():
        for name, ids in list_objects(world, role, "", ["run"]):
            topics = consumers.filter_visible_topics.func(user, [f"run:{ids['run']}", "runs"])
            table["WS run:{run}"][role][name] = Answer(200 if len(topics) == 2 else 404)
    return table


def find_leaks(table: Table) -> list[str]:
    """Where a foreign object is answered differently from a made-up one."""
    leaks = []
    for request, answers in table.items():
        if request in CREATES_PROJECTS or request.endswith("shared/<str:secret>/"):
            continue
        for role, by_object in answers.items():
            for prefix in ("", "mixed "):
                foreign = by_object.get(f"{prefix}foreign", by_object["own"])
                made_up = by_object.get(f"{prefix}made-up", foreign)
                if foreign != made_up:
                    leaks.append(f"{request} as {role}: {prefix}foreign {foreign} != made-up {made_up}")
    return leaks


def find_forbidden_writes(table: Table) -> list[str]:
    """Writes of roles that may not write, and writes whose needed role is not declared."""
    found = []
    for target in find_targets():
        for method in METHODS:
            request = f"{method} {target.route}"
            if {target.name, request} & (PERSONAL | OPEN):
                continue
            needed = target.find_entry(method)[0]
            for role, by_object in table.get(request, {}).items():
                rank = ROLE_RANKS.get(find_project_role(role), 0)
                for name, answer in by_object.items():
                    is_new = request in CREATES_PROJECTS and name == "made-up"
                    is_foreign = (name != "own" or role in OUTSIDERS) and not is_new
                    is_foreign &= not (name.startswith("mixed") and request in LEAVES_OUT)
                    is_low = role != "admin" and (not needed or rank < ROLE_RANKS.get(needed, 99))
                    is_write = answer.wrote or target.is_api and method not in SAFE and answer.status < 300
                    if is_write and (is_foreign and answer.wrote or is_low and not is_new):
                        found.append(f"{request} as {role} of {name}: {answer}, it needs {needed or 'FORMS or CALLS'}")
    return found


def find_requests_without_write(table: Table) -> set[str]:
    """Requests that should write but wrote nothing with any role: the matrix proves nothing about them."""
    expected = {f"POST {target.route}" for target in find_targets() if target.name in FORMS}
    expected |= {f"{method} {API}{route}" for method, route in CALLS}
    return {request for request in expected if not any(by_object["own"].wrote for by_object in table[request].values())}


def find_unlisted_pages(table: Table) -> set[str]:
    """URL patterns that answer with a page that is not in the list of the browser tests."""
    shown = set()
    for target in find_targets():
        answers = table.get(f"GET {target.route}", {})
        for role in ("owner", "anonymous"):
            answer = answers.get(role, {}).get("own")
            if answer and answer.status == 200 and '<main id="main"' in answer.body:
                shown.add(target.name)
    assert {"runs", "retention", "audit", "sign-in"} <= shown  # it finds pages
    return shown - {page.name for page in page_list.PAGES}


def find_project_role(role: str) -> str:
    if role.startswith("token:"):
        return ROLE_OF.get(role, "owner")
    return "" if role in ("anonymous", "stranger") else role


def summarise(table: Table) -> dict[str, dict[str, str]]:
    """Request -> roles -> statuses in the order of `list_objects`."""
    result = {}
    for request, answers in table.items():
        roles = defaultdict(list)
        for role, by_object in answers.items():
            statuses = " ".join(map(str, by_object.values()))
            roles[statuses].append(role)
        result[request] = {", ".join(sorted(names)): statuses for statuses, names in roles.items()}
    return result


def record(summary: dict[str, dict[str, str]]) -> None:
    """Requests with the same answers share one entry, and methods of one address one line."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for request, answers in summary.items():
        method, _, route = request.partition(" ")
        groups[json.dumps(answers, sort_keys=True)][route].append(method)
    entries = [
        {"answers": json.loads(answers), "requests": [f"{','.join(by[route])} {route}" for route in by]}
        for answers, by in groups.items()
    ]
    RECORDED.write_text(json.dumps(entries, indent=1) + "\n")


def load_recorded() -> dict[str, dict[str, str]]:
    return {
        f"{method} {line.partition(' ')[2]}": entry["answers"]
        for entry in json.loads(RECORDED.read_text())
        for line in entry["requests"]
        for method in line.partition(" ")[0].split(",")
    }


def test_every_role_gets_the_expected_status_at_every_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "generate_schema", cache(docs.generate_schema))
    world = build_world()
    role_client = RoleClient(world)
    table = request_urls(world, role_client) | check_uploads(world, role_client) | check_topics(world, role_client)
    if os.environ.get("RECORD"):
        record(summarise(table))
    failed = [
        f"{request} as {role} of {name}: {answer.status}"
        for request, answers in table.items()
        for role, by_object in answers.items()
        for name, answer in by_object.items()
        if answer.status >= 500
    ]
    assert not failed
    assert not (leaks := find_leaks(table)), "\n".join(leaks)
    assert not (writes := find_forbidden_writes(table)), "\n".join(writes)
    assert not (without_write := find_requests_without_write(table)), (
        f"nobody could change anything with {without_write}"
    )
    assert not (missing := find_unlisted_pages(table)), f"not in tests/support/page_list.py: {missing}"
    summary = summarise(table)
    recorded = load_recorded()
    changed = {name: (recorded.get(name), summary.get(name)) for name in recorded | summary}
    different = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    assert not different, f"recorded, now: {json.dumps(different, indent=1)}"


def test_a_url_with_an_unknown_argument_fails() -> None:
    with pytest.raises(AssertionError, match="ARGUMENTS does not say what boxes/<pk> is"):
        fill_route("runs/<str:uid>/boxes/<int:pk>/")
