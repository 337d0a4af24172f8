"""Limits of sign-in attempts.

Attempts with a password or a code are limited for ten minutes: for a name from one address, for a name, and for an
address.
"""

from hashlib import sha256
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from django.contrib.auth.models import User
from django.http import HttpRequest

from dashboard.counters import counters

THROTTLE_SECONDS = 600
MAX_NAME_CHARS = 150
MAX_TOGETHER, MAX_BY_NAME, MAX_BY_ADDRESS = 10, 50, 50


class CounterKeys(NamedTuple):
    """The cache keys of the three counts."""

    together: str
    by_name: str
    by_address: str


def build_counter_keys(name: str, address: str) -> CounterKeys:
    """A name may have any length and characters. What signs in as the same account is counted as the same name."""
    name = User.normalize_username(name[:MAX_NAME_CHARS]).strip().casefold()
    address = get_network(address)
    counted = (f"both {name}\0{address}", f"name {name}", f"address {address}")
    return CounterKeys(*(f"sign-in-{sha256(key.encode(errors='replace')).hexdigest()}" for key in counted))


def get_network(address: str) -> str:
    """The address; of IPv6 its /64 network, since one person has all addresses of it."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))


def count_and_allow_login(name: str, address: str) -> bool:
    """Counts an attempt before its password is checked, so parallel ones count too. False if there are too many."""
    limits = (MAX_TOGETHER, MAX_BY_NAME, MAX_BY_ADDRESS)
    counts = [counters.count(key, THROTTLE_SECONDS) for key in build_counter_keys(name, address)]
    return all(count <= limit for count, limit in zip(counts, limits, strict=True))


def record_login_success(name: str, address: str, attempts: int = 1) -> None:
    """Resets the counts of the name. Lowers the address's count by the `attempts` of this success: earlier failures may
    be for other names."""
    keys = build_counter_keys(name, address)
    counters.reset([keys.together, keys.by_name])
    for _attempt in range(attempts):
        counters.lower(keys.by_address)


def get_client_address(request: HttpRequest) -> str:
    """Behind a trusted proxy, uvicorn has set it to the address that the proxy reports."""
    return str(request.META.get("REMOTE_ADDR", ""))
