"""The version of the installed TRL."""

from __future__ import annotations

import re
from importlib import metadata


def is_older_than(*version: int) -> bool:
    """Returns whether the installed TRL is older than e.g. `1, 6`; False if its version is unknown."""
    try:
        found = re.match(r"(\d+)\.(\d+)", metadata.version("trl"))
    except metadata.PackageNotFoundError:
        return False
    return found is not None and tuple(map(int, found.groups())) < version
