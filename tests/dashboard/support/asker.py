"""Requests of every role, each rolled back: their status, whether they wrote rows, and their body."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client, RequestFactory
from django.test.client import ClientHandler

from dashboard.counters import counters
from rollouts.models import Membership, Project
from tests.support import builders

SCOPES = ("read", "annotate", "ingest", "admin")
PERSONS = ("anonymous", "stranger", "viewer", "annotator", "maintainer", "owner", "admin")
# Tokens of the owner, one of them for another project, and one of the viewer with all scopes.
TOKENS = (*(f"token:{scope}" for scope in SCOPES), "token:elsewhere", "token:viewer")
IGNORED_WRITES = re.compile(r'UPDATE "rollouts_token" SET "used_at"|\S+ (INTO |FROM )?"rollouts_signinsession"')
NUMBER_PATTERN = re.compile(r"(?<!\d)(?:666|777|888)\d{3}(?!\d)")
CSRF_PATTERN = re.compile(r'(csrfmiddlewaretoken" value="|"X-CSRFToken": ")\w+')


@dataclass(frozen=True)
class Answer:
    status: int
    wrote: bool = False
    body: str = ""

    def __str__(self) -> str:
        return f"{self.status}{'w' * self.wrote}"


class WriteCounter:
    """Counts the rows that statements have written, except the last use of tokens, and sign-in sessions."""

    total = 0

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and not IGNORED_WRITES.match(sql):
            self.total += 1 if "RETURNING" in sql else max(context["cursor"].rowcount, 0)
        return result


class RequestClient(RequestFactory):
    """Sends requests to Django like the test client, but does not copy the context of every template."""

    handler = ClientHandler(enforce_csrf_checks=False)

    def request(self, **request: Any) -> Any:
        return self.handler(self._base_environ(**request))


class RoleClient:
    """Sends requests with a role, and rolls them back."""

    def __init__(self, world: dict[str, dict[str, str]]) -> None:
        project, users = Project.objects.get(slug=world["own"]["slug"]), User.objects
        self.users = {"owner": users.get(username="olga"), "stranger": users.get(username="stan")}
        self.users |= {role: builders.member(project, role, role) for role in ("viewer", "annotator", "maintainer")}
        self.users["admin"] = users.create_user("admin", is_superuser=True)
        elsewhere, owner = builders.project("elsewhere"), self.users["owner"]
        Membership.objects.create(project=elsewhere, user=owner, role="owner")
        self.secrets = {f"token:{scope}": builders.token(owner, scope) for scope in SCOPES}
        self.secrets["token:elsewhere"] = builders.token(owner, *SCOPES, on=elsewhere)
        self.secrets["token:viewer"] = builders.token(self.users["viewer"], *SCOPES)
        self.client, self.cookies = RequestClient(), {}
        for role, user in self.users.items():
            client = Client()
            client.force_login(user)
            self.cookies[role] = "; ".join(f"{name}={cookie.value}" for name, cookie in client.cookies.items())
        found = {(text, f"<{kind}>") for ids in world.values() for kind, text in ids.items()}
        found |= {(text[:12], kind) for text, kind in found if len(text) == 64}  # as messages shorten it
        self.ids = sorted((pair for pair in found if len(pair[0]) > 6), key=lambda pair: -len(pair[0]))

    def build_headers(self, role: str) -> dict[str, str]:
        if role in self.secrets:
            return {"Authorization": f"Bearer {self.secrets[role]}"}
        return {"Cookie": self.cookies[role]} if role in self.cookies else {}

    def request(self, role: str, method: str, address: str, body: Any, *, is_api: bool) -> Answer:
        headers = {"If-Match": '"0"'} | self.build_headers(role)
        with transaction.atomic(), connection.execute_wrapper(counter := WriteCounter()):
            if is_api:
                data = b"" if body is None else json.dumps(body).encode()
                response = self.client.generic(method, address, data, "application/json", headers=headers)
            else:
                response = getattr(self.client, method.lower())(address, body, headers=headers)
            text = self.normalise(read_body(response))
            transaction.set_rollback(True)
        counters.prefix = f"{uuid4()}:"  # failed sign-ins, and links that do not exist, do not count together
        return Answer(response.status_code, counter.total > 0, text)

    def normalise(self, text: str) -> str:
        """The same text for a foreign and a made-up id."""
        for value, name in self.ids:
            text = text.replace(value, name)
        return CSRF_PATTERN.sub(r"\1", NUMBER_PATTERN.sub("<id>", text))


def read_body(response: Any) -> str:
    """The body, after the URL of a redirect. Only an async server can read an asynchronous stream: it is empty here."""
    if not response.streaming:
        body = response.content
    else:
        body = b"" if response.is_async else b"".join(response.streaming_content)
    return response.headers.get("Location", "") + body.decode(errors="replace")
