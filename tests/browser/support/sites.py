"""Where a test of the browser is tried: directly and behind nginx, unless its module says that one of them is enough.

What people do all day (tasks, flags, pins, what arrives by itself) is tried on both. What a proxy with a prefix hardly
changes is tried on one of them, half of it on each, so that the two take equally long side by side.
"""

from __future__ import annotations

import pytest

DIRECT = pytest.mark.parametrize("site", ["direct"], indirect=True)
NGINX = pytest.mark.parametrize("site", ["nginx"], indirect=True)
