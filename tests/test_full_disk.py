"""A server whose disk is full: people sign in and read, uploads get 507, nothing ends, and it continues by itself."""

from __future__ import annotations

import hashlib
import http.cookiejar
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Product

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


class SmallDiskProduct(Product):
    def __init__(self, disk: Path) -> None:
        super().__init__()
        self.disk = disk

    def up(self) -> None:
        self.data = self.disk / "data"
        super().up()


def fill_disk(disk: Path) -> None:
    for size in (1 << 20, 4096, 1):
        with (disk / f"fill{size}").open("wb", buffering=0) as file:
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue


def sign_in(product: Product, name: str, password: str) -> tuple[int, str]:
    """Returns the status and text of the page after a sign-in with a new browser."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    with opener.open(f"{product.url}/sign-in/", timeout=30) as answer:
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', answer.read().decode())
    assert token
    form = {"csrfmiddlewaretoken": token[1], "username": name, "password": password}
    with opener.open(f"{product.url}/sign-in/", urllib.parse.urlencode(form).encode(), timeout=30) as answer:
        answer.read()
    with opener.open(f"{product.url}/settings/", timeout=30) as answer:
        return answer.status, answer.read().decode()


def create_person(product: Product) -> None:
    code = "from django.contrib.auth.models import User; User.objects.create_superuser('ada', password='correct-horse')"
    manage = Path(__file__).parent.parent / "manage.py"
    env = {**product.environ, "ROLLOUTDECK_DATA": str(product.data)}
    subprocess.run([sys.executable, manage, "shell", "-c", code], env=env, check=True, capture_output=True)


def upload_dump(product: Product) -> tuple[int, str]:
    body = b'{"prompt": "a", "response": "b"}\n'
    url = f"{product.url}/api/v1/runs/full/dumps/{hashlib.sha256(body).hexdigest()}/?step=1&split=train&attempt=a"
    headers = {"Authorization": f"Bearer {product.token}", "X-Rolloutdeck-Project": "default"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT"), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_server_with_a_full_disk_is_read_only_and_no_process_ends(small_disk: Path) -> None:
    with SmallDiskProduct(small_disk) as product:
        create_person(product)
        before = sorted(product.pids())
        fill_disk(small_disk)
        for log in (small_disk / "data" / "logs").iterdir():  # the next line of each program needs a new page
            log.touch()
        for _ in range(3):
            status, page = sign_in(product, "ada", "correct-horse")
            assert status == 200 and "ada" in page and "data-disk-full" in page
        status, text = upload_dump(product)
        assert status == 507, text
        time.sleep(25)  # two sweeps, whose writes fail
        assert sorted(product.pids()) == before
        for path in small_disk.glob("fill*"):
            path.unlink()
        assert sign_in(product, "ada", "correct-horse")[0] == 200
        assert sorted(product.pids()) == before
