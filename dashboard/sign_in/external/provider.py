"""Requests to the OpenID provider: its configuration, keys, who a person is, and whether a sign-in is still valid.

allauth makes the redirect with state and PKCE and exchanges the code. It has no nonce and does not verify the signature
of ID tokens, so both are here.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
import requests
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.utils.crypto import constant_time_compare

from dashboard.sign_in.external.accounts import MAX_GROUPS, MAX_SUBJECT_CHARS, Identity
from dashboard.sign_in_settings import OpenIdSettings
from rolloutdeck.lib import is_loopback_host

TIMEOUT: Final = (3.0, 5.0)  # seconds: to connect, between two bytes
CONFIGURATION_SECONDS: Final = 600.0
CLOCK_LEEWAY: Final = 60  # seconds
# Only keys that the provider alone has: with HS256, its public key could sign too.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")

configurations: dict[str, tuple[float, dict[str, Any]]] = {}  # issuer -> valid until, in monotonic seconds


class ProviderError(Exception):
    """The provider does not answer, or not as OpenID Connect says. The message is for the administrator.

    `renewal`: what the next call of `renew` needs, if the provider has already replaced it."""

    renewal = ""


class SignInEndedError(Exception):
    """The provider does not renew the sign-in: the person was removed or signed out there."""


def get_openid_settings() -> OpenIdSettings:
    found: OpenIdSettings | None = settings.OPENID
    if found is None:
        raise ProviderError("ROLLOUTDECK_OIDC_ISSUER is not set.")
    return found


def load_configuration() -> dict[str, Any]:
    """The provider's discovery document, read again after ten minutes. Raises ProviderError."""
    issuer, now = get_openid_settings().issuer, time.monotonic()
    until, known = configurations.get(issuer, (0.0, {}))
    if now < until:
        return known
    found = read_json(send("GET", f"{issuer}/.well-known/openid-configuration"))
    if str(found.get("issuer", "")).rstrip("/") != issuer:
        raise ProviderError(
            f"The provider calls itself {found.get('issuer')!r}, ROLLOUTDECK_OIDC_ISSUER is {issuer!r}."
        )
    for name in (*ENDPOINTS, *(["userinfo_endpoint"] if "userinfo_endpoint" in found else [])):
        url = urlsplit(str(found.get(name, "")))
        if url.scheme != "https" and not is_loopback_host(url.hostname):
            raise ProviderError(f"{name} of the provider is not an https URL.")
    configurations[issuer] = (now + CONFIGURATION_SECONDS, found)
    return found


def send(method: str, url: str, **options: Any) -> requests.Response:
    """Raises ProviderError."""
    try:
        return requests.request(method, url, timeout=TIMEOUT, allow_redirects=False, **options)
    except requests.RequestException as error:
        raise ProviderError(f"{urlsplit(url).netloc} does not answer: {type(error).__name__}.") from error


def read_json(response: requests.Response) -> dict[str, Any]:
    """Raises ProviderError."""
    try:
        content = response.json() if response.status_code == 200 else None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ProviderError(f"{urlsplit(response.url).path} of the provider answered {response.status_code}.")
    return content


def identify(tokens: Mapping[str, Any], nonce: str) -> Identity:
    """Who has just signed in. Raises ProviderError, SignInEndedError."""
    if not isinstance(tokens.get("id_token"), str):
        raise ProviderError("The provider sent no ID token.")
    claims = verify_id_token(tokens["id_token"])
    if not constant_time_compare(str(claims.get("nonce", "")), nonce):
        raise ProviderError("The ID token is of another sign-in: its nonce is wrong.")
    return build_identity(claims | load_user_info(tokens, str(claims["sub"])))


def verify_id_token(id_token: str) -> dict[str, Any]:
    """Its claims. Raises ProviderError."""
    configuration, client_id = load_configuration(), get_openid_settings().client_id
    keys = read_json(send("GET", configuration["jwks_uri"]))
    try:
        kid = jwt.get_unverified_header(id_token).get("kid")
        found = [key for key in jwt.PyJWKSet.from_dict(keys).keys if kid is None or key.key_id == kid]
        if len(found) != 1:
            raise ProviderError("The ID token is signed with a key that the provider does not publish.")
        claims: dict[str, Any] = jwt.decode(
            id_token, found[0], algorithms=list(ALGORITHMS), audience=client_id, issuer=configuration["issuer"],
            leeway=CLOCK_LEEWAY, options={"require": ["iss", "sub", "aud", "exp", "iat"]},
        )  # fmt: skip
    except jwt.PyJWTError as error:
        raise ProviderError(f"The ID token is not valid: {error}") from error
    if claims.get("azp", client_id) != client_id:
        raise ProviderError("The ID token was issued for another program.")
    return claims


def load_user_info(tokens: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """Empty if the provider has no such endpoint. Raises ProviderError, SignInEndedError."""
    url = load_configuration().get("userinfo_endpoint")
    if not url:
        return {}
    response = send("GET", url, headers={"Authorization": f"Bearer {tokens.get('access_token')}"})
    if response.status_code in (401, 403):
        raise SignInEndedError
    info = read_json(response)
    if subject and info.get("sub") != subject:
        raise ProviderError("The provider describes another person than the one who signed in.")
    return info


def build_identity(claims: Mapping[str, Any]) -> Identity:
    """Raises ProviderError."""
    openid, subject = get_openid_settings(), claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_CHARS or "\0" in subject:
        raise ProviderError(f"The subject of the person is not a text of 1 to {MAX_SUBJECT_CHARS} characters.")
    name, email = (str(claims.get(key) or "").replace("\0", "")[:250] for key in ("preferred_username", "email"))
    return Identity(openid.issuer, subject, name, email, read_groups(claims, openid.groups_claim))


def read_groups(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """`name` may be a path, such as `realm_access.roles`. No claim is no group."""
    value: Any = claims.get(name)
    if value is None and "." in name:
        value = claims
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(group.replace("\0", "") for group in values[:MAX_GROUPS] if isinstance(group, str))


def renew(renewal: str, subject: str) -> tuple[Identity, str]:
    """Asks the provider again about a person who signed in. Returns the answer and what the next call needs.

    Raises SignInEndedError, ProviderError.
    """
    openid, configuration = get_openid_settings(), load_configuration()
    data = {"grant_type": "refresh_token", "refresh_token": decrypt(renewal), "client_id": openid.client_id}
    basic = uses_basic_auth(configuration)
    if openid.client_secret and not basic:
        data["client_secret"] = openid.client_secret
    auth = (openid.client_id, openid.client_secret) if basic else None
    response = send("POST", configuration["token_endpoint"], data=data, auth=auth)
    if response.status_code in (400, 401) and '"invalid_grant"' in response.text:
        raise SignInEndedError
    tokens = read_json(response)
    renewal = encrypt(str(tokens["refresh_token"])) if tokens.get("refresh_token") else renewal
    try:
        claims = verify_id_token(tokens["id_token"]) if isinstance(tokens.get("id_token"), str) else {"sub": subject}
        return build_identity(claims | load_user_info(tokens, str(claims["sub"]))), renewal
    except ProviderError as error:
        error.renewal = renewal  # many providers refuse the one before from now on
        raise


def uses_basic_auth(configuration: Mapping[str, Any]) -> bool:
    """Whether the client's secret is sent as HTTP Basic: if the provider does not list another way."""
    methods = configuration.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
    return bool(get_openid_settings().client_secret) and "client_secret_post" not in methods


def encrypt(text: str) -> str:
    """For the database: a backup has no secret key, so it cannot renew sign-ins."""
    return get_cipher().encrypt(text.encode()).decode()


def decrypt(text: str) -> str:
    """Raises SignInEndedError if the server has another secret key now."""
    try:
        return get_cipher().decrypt(text.encode()).decode()
    except InvalidToken as error:
        raise SignInEndedError from error


def get_cipher() -> Fernet:
    return Fernet(urlsafe_b64encode(sha256(f"rolloutdeck.renewal:{settings.SECRET_KEY}".encode()).digest()))
