"""Markers that say whether a browser test runs against the server itself or behind nginx.

The most used functions (tasks, flags, pins, queues, live updates) are tested behind nginx, which adds a prefix to each
URL and passes the WebSocket. The other tests are divided so that both groups take equally long.
"""

from __future__ import annotations

import pytest

DIRECT = pytest.mark.parametrize("site", ["direct"], indirect=True)
NGINX = pytest.mark.parametrize("site", ["nginx"], indirect=True)
