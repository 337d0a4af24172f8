"""A real OpenID provider on loopback, and a browser that signs in with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import oidc_provider_mock
import requests
from django.test import Client

from dashboard.sign_in_settings import OpenIdSettings

CLIENT_ID = "rolloutdeck"


@dataclass(frozen=True)
class Provider:
    """Its users are known by subject; `set_person` changes their claims from now on."""

    url: str

    def set_person(self, subject: str, **claims: Any) -> None:
        requests.put(f"{self.url}/users/{subject}", json=claims, timeout=5).raise_for_status()

    def revoke(self, subject: str) -> None:
        requests.post(f"{self.url}/users/{subject}/revoke-tokens", timeout=5).raise_for_status()

    def approve(self, location: str, subject: str, **changes: str) -> str:
        """Does what the browser of a person does at the provider, and returns the URL of the redirect. `changes` of the
        request are what an attacker does."""
        url = urlsplit(location)
        query = {name: values[0] for name, values in parse_qs(url.query).items()} | changes
        target = f"{url.scheme}://{url.netloc}{url.path}?{urlencode(query)}"
        response = requests.post(target, {"sub": subject}, timeout=5, allow_redirects=False)
        assert response.status_code == 302, response.text
        return response.headers["Location"]

    def get_settings(self, **changes: Any) -> OpenIdSettings:
        values: dict[str, Any] = {
            "issuer": self.url, "client_id": CLIENT_ID, "client_secret": "secret", "name": "Acme ID",
            "groups_claim": "groups", "scopes": (), "grace_seconds": 3600.0,
        }  # fmt: skip
        return OpenIdSettings(**values | changes)


@contextmanager
def serve_provider() -> Iterator[Provider]:
    with oidc_provider_mock.run_server_in_thread(require_nonce=True) as server:
        yield Provider(f"http://localhost:{server.server_port}")


def sign_in(client: Client, provider: Provider, subject: str, path: str = "/sign-in/openid/", **changes: str) -> Any:
    """The response to the browser that comes back from the provider."""
    start = client.get(path)
    assert start.status_code == 302, start.content.decode()
    back = urlsplit(provider.approve(start.headers["Location"], subject, **changes))
    return client.get(f"{back.path}?{back.query}")
