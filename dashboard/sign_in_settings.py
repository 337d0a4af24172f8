"""The settings of OpenID Connect and of sign-in by a proxy. A wrong one stops the server's start with what to write.

Imported by `settings.py`, so nothing here may import Django's models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

from rolloutdeck.lib import is_loopback_host

ReadText = Callable[[str, str], str]  # name of a variable, default
Network = IPv4Network | IPv6Network

ROLES: Final = ("viewer", "annotator", "maintainer", "owner")
ADMIN: Final = "admin"
MAX_ISSUER_CHARS: Final = 200
EXAMPLE: Final = "ml-team=math:maintainer,ml-leads=*:owner,admins=admin"


@dataclass(frozen=True, slots=True)
class OpenIdSettings:
    """One OpenID provider. `scopes` is empty if they follow from what the provider supports."""

    issuer: str
    client_id: str
    client_secret: str
    name: str
    groups_claim: str
    scopes: tuple[str, ...]
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Header names are lower-case bytes, as ASGI has them."""

    networks: tuple[Network, ...]
    user_header: bytes
    email_header: bytes
    groups_header: bytes

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset({self.user_header, self.email_header, self.groups_header})

    def trusts(self, address: str) -> bool:
        """Whether this TCP peer is the proxy. A peer without an IP address, such as a Unix socket, is not."""
        try:
            peer = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(peer, "ipv4_mapped", None)
        return any((mapped or peer) in network for network in self.networks)


def read_openid_settings(read: ReadText) -> OpenIdSettings | None:
    """None if no issuer is set."""
    issuer, client_id = read("ROLLOUTDECK_OIDC_ISSUER", "").rstrip("/"), read("ROLLOUTDECK_OIDC_CLIENT_ID", "")
    if not issuer:
        return None
    url = urlsplit(issuer)
    if url.scheme != "https" and not (url.scheme == "http" and is_loopback_host(url.hostname)) or not url.hostname:
        raise ImproperlyConfigured("ROLLOUTDECK_OIDC_ISSUER must be an https URL, as https://id.example.org/realms/ml.")
    if len(issuer) > MAX_ISSUER_CHARS:
        raise ImproperlyConfigured(f"ROLLOUTDECK_OIDC_ISSUER can have at most {MAX_ISSUER_CHARS} characters.")
    if not client_id:
        raise ImproperlyConfigured("ROLLOUTDECK_OIDC_ISSUER needs ROLLOUTDECK_OIDC_CLIENT_ID.")
    return OpenIdSettings(
        issuer=issuer,
        client_id=client_id,
        client_secret=read("ROLLOUTDECK_OIDC_CLIENT_SECRET", ""),
        name=read("ROLLOUTDECK_OIDC_NAME", "") or str(url.hostname),
        groups_claim=read("ROLLOUTDECK_OIDC_GROUPS_CLAIM", "") or "groups",
        scopes=tuple(read("ROLLOUTDECK_OIDC_SCOPES", "").split()),
        grace_seconds=read_number(read, "ROLLOUTDECK_OIDC_GRACE_HOURS", 12) * 3600,
    )


def read_proxy_settings(read: ReadText) -> ProxySettings | None:
    """None if no proxy is trusted."""
    networks = parse_networks(read("ROLLOUTDECK_TRUSTED_PROXY", ""))
    if not networks:
        return None
    names = {
        "ROLLOUTDECK_USER_HEADER": "Remote-User",
        "ROLLOUTDECK_EMAIL_HEADER": "Remote-Email",
        "ROLLOUTDECK_GROUPS_HEADER": "Remote-Groups",
    }
    user, email, groups = (parse_header_name(name, read(name, "") or default) for name, default in names.items())
    if len({user, email, groups}) < 3:
        raise ImproperlyConfigured(f"{', '.join(names)} must be three different headers.")
    return ProxySettings(networks, user, email, groups)


def read_check_seconds(read: ReadText) -> float:
    """How old the answer of a sign-in service about a person may be."""
    return read_number(read, "ROLLOUTDECK_GROUP_CHECK_MINUTES", 5) * 60


def read_switch(read: ReadText, name: str) -> bool:
    """On unless the variable says off."""
    text = read(name, "")
    if text not in ("", "on", "off"):
        raise ImproperlyConfigured(f"{name} must be on or off, not {text!r}.")
    return text != "off"


def read_number(read: ReadText, name: str, default: float) -> float:
    text = read(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = 0.0
    if not 0 < value < 100_000:
        raise ImproperlyConfigured(f"{name} must be a number above 0, not {text!r}.")
    return value


def parse_networks(text: str) -> tuple[Network, ...]:
    """IP addresses and networks, separated by commas or spaces."""
    networks = []
    for word in text.replace(",", " ").split():
        try:
            network = ip_network(word)
        except ValueError as error:
            raise ImproperlyConfigured(
                f"ROLLOUTDECK_TRUSTED_PROXY: {word!r} is no IP address or network, as 10.0.0.5 or 10.0.0.0/24. {error}"
            ) from error
        if network.prefixlen == 0:
            raise ImproperlyConfigured(f"ROLLOUTDECK_TRUSTED_PROXY: {word} would let everybody be any user.")
        networks.append(network)
    return tuple(networks)


def parse_header_name(variable: str, name: str) -> bytes:
    if not name.isascii() or not name.replace("-", "").isalnum():
        raise ImproperlyConfigured(f"{variable} can have only letters, digits and -, not {name!r}.")
    return name.lower().encode()


def parse_group_roles(text: str) -> tuple[tuple[str, str, str], ...]:
    """`group=project:role`, `group=*:role` or `group=admin`, separated by commas. Returns fields of `GroupRule`."""
    return tuple(parse_group_role(part) for part in text.split(",") if part.strip())


def parse_group_role(text: str) -> tuple[str, str, str]:
    group, _, target = (part.strip() for part in text.rpartition("="))
    project, _, role = (part.strip() for part in target.rpartition(":"))
    if group and target == ADMIN:
        return (group, "", ADMIN)
    if group and project and role in ROLES:
        return (group, project, role)
    raise ImproperlyConfigured(
        f"ROLLOUTDECK_GROUP_ROLES: {text.strip()!r} is not group=project:role, group=*:role or group=admin. "
        f"Roles are {', '.join(ROLES)}. Example: {EXAMPLE}"
    )
