"""How often a password may be tried in ten minutes: for one name from one address, for one name from anywhere, from one
address for any names.

Counted in the memory of the web process: it works where Redis is down, and a restart forgives.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

from django.core.cache import cache

THROTTLE_SECONDS = 600
TOGETHER, NAME, ADDRESS = 10, 50, 50


def build_counter_keys(name: str, address: str) -> dict[str, int]:
    """{key: most tries}; names may be of any length and letters, and are one account in any case."""
    name = name.strip().casefold()
    most = {f"both {name}\0{address}": TOGETHER, f"name {name}": NAME, f"address {address}": ADDRESS}
    return {f"sign-in-{sha256(of.encode(errors='replace')).hexdigest()}": count for of, count in most.items()}


def record_login(name: str, address: str) -> bool:
    """Counts a try before its password is looked at, so that many at once are counted too."""
    found = [count_login(key) <= most for key, most in build_counter_keys(name, address).items()]
    return all(found)


def count_login(key: str) -> int:
    """Ten minutes after the first try the count begins anew, whatever was tried meanwhile."""
    cache.add(key, 0, THROTTLE_SECONDS)
    try:
        return cache.incr(key)
    except ValueError:  # it ran out in between
        return 1


def record_login_success(name: str, address: str) -> None:
    """The password was right: the name begins anew, and the address has one try back (others may be of other names)."""
    together, of_name, of_address = build_counter_keys(name, address)
    cache.delete_many([together, of_name])
    with suppress(ValueError):
        cache.decr(of_address)
