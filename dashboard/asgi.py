"""The ASGI application that uvicorn serves."""

import gc
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
django.setup(set_prefix=False)  # comes before every import of models

import sqlite3  # noqa: E402
from typing import Any, cast  # noqa: E402

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: E402

from dashboard import consumers  # noqa: E402
from dashboard.handler import RequestHandler  # noqa: E402
from dashboard.origin_check import HostOriginCheck  # noqa: E402
from dashboard.response_times import ResponseTimes  # noqa: E402
from dashboard.search_limits import SearchLimits  # noqa: E402
from dashboard.sign_in.external import ProxyHeaders  # noqa: E402


def keep_database_open() -> sqlite3.Connection | None:
    """Opens SQLite's database for as long as the process runs.

    The last connection that closes removes the log and its index, and on a full disk nobody could create them again,
    so that no page could be read.
    """
    database = settings.DATABASES["default"]
    if not database["ENGINE"].endswith("sqlite3"):
        return None
    try:
        connection = sqlite3.connect(str(database["NAME"]), isolation_level=None, check_same_thread=False)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return None
    return connection


database_connection = keep_database_open()
sockets = AuthMiddlewareStack(URLRouter(consumers.websocket_urlpatterns))
checked = ResponseTimes(HostOriginCheck(SearchLimits(RequestHandler()), sockets))
# uvicorn's middleware changes the client to the address that a proxy reports. ProxyHeaders must see the TCP peer.
forwarders = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1,::1"
application = ProxyHeaders(ProxyHeadersMiddleware(cast(Any, checked), trusted_hosts=forwarders))

# The objects of the imports stay for ever. Without this, each full collection visits all of them, which stops all
# requests for 0.1 to 0.3 seconds.
gc.collect()
gc.freeze()
