"""Limits sign-in attempts in ten minutes: for a name from one address, for a name, and for an address.

The counters are in the memory of the web process: they work without Redis, and a restart resets them.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

from django.core.cache import cache

THROTTLE_SECONDS = 600
MAX_TOGETHER, MAX_BY_NAME, MAX_BY_ADDRESS = 10, 50, 50


def build_counter_keys(name: str, address: str) -> dict[str, int]:
    """{cache key: limit}. A name may have any length and characters; upper and lower case are the same."""
    name = name.strip().casefold()
    limits = {
        f"both {name}\0{address}": MAX_TOGETHER,
        f"name {name}": MAX_BY_NAME,
        f"address {address}": MAX_BY_ADDRESS,
    }
    return {f"sign-in-{sha256(key.encode(errors='replace')).hexdigest()}": limit for key, limit in limits.items()}


def record_login(name: str, address: str) -> bool:
    """Counts an attempt before its password is checked, so parallel ones count too. False if there are too many."""
    allowed = [count_login(key) <= limit for key, limit in build_counter_keys(name, address).items()]
    return all(allowed)


def count_login(key: str) -> int:
    """The count restarts ten minutes after its first attempt."""
    cache.add(key, 0, THROTTLE_SECONDS)
    try:
        return cache.incr(key)
    except ValueError:  # the key has just expired
        return 1


def record_login_success(name: str, address: str) -> None:
    """Resets the counts of the name; the address gets back one attempt, since others may be for other names."""
    together, by_name, by_address = build_counter_keys(name, address)
    cache.delete_many([together, by_name])
    with suppress(ValueError):
        cache.decr(by_address)
