"""How a web process listens."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
from pathlib import Path

from dashboard.web_process import MAX_OPEN_FILES, PAGE_CACHE_KB, open_listeners
from tests.support.server import free_port

PRINT_LIMIT = """
import resource
from dashboard.web_process import raise_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_processes_that_listen_on_one_port_share_its_connections() -> None:
    port = free_port()
    listeners = [*open_listeners("127.0.0.1", port), *open_listeners("127.0.0.1", port)]
    clients = [socket.create_connection(("127.0.0.1", port)) for _number in range(40)]
    try:
        assert set(select.select(listeners, [], [], 10)[0]) == set(listeners)
    finally:
        for each in (*clients, *listeners):
            each.close()


def test_a_web_process_may_open_as_many_files_as_the_system_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    expected = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    done = subprocess.run([sys.executable, "-c", PRINT_LIMIT], capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected


def test_a_connection_of_a_web_process_keeps_few_pages(tmp_path: Path) -> None:
    """In a process of its own: the receiver stays connected."""
    program = """
import django
django.setup()
from django.db import connection
from dashboard.web_process import limit_page_caches
limit_page_caches()
print(connection.cursor().execute("PRAGMA cache_size").fetchone()[0])
"""
    settings = {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "ROLLOUTDECK_DATA": str(tmp_path)}
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"} | settings
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == -PAGE_CACHE_KB
