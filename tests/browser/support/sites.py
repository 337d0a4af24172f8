"""Where a test of the browser is tried: directly or behind nginx.

What people do all day (tasks, flags, pins, queues, what arrives by itself) is tried behind nginx, which adds a prefix
to each address and stands between the page and its socket. The rest is divided so that both take equally long.
"""

from __future__ import annotations

import pytest

DIRECT = pytest.mark.parametrize("site", ["direct"], indirect=True)
NGINX = pytest.mark.parametrize("site", ["nginx"], indirect=True)
