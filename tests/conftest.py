from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.management import create_permissions
from django.contrib.auth.models import User
from django.contrib.contenttypes.management import create_contenttypes
from django.db import connections
from django.db.models.signals import post_migrate
from django.test import Client
from django.utils import translation
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from whitenoise.base import WhiteNoise

from dashboard.counters import counters
from rollouts.models import Project, Run
from tests.dashboard.support.asgi_server import Site, serve
from tests.support import builders
from tests.support.bucket_server import create_place
from tests.support.xdist_groups import pytest_xdist_make_scheduler  # noqa: F401 - pytest finds it here

DATA = Path(__file__).parent / "data"
TRAINER_SIDE = Path(__file__).parent / "rolloutdeck"
TEST_STORAGE = os.environ.get("TEST_STORAGE", "disk")
# A busy machine is no reason to fail: by default an example may take 0.2 s.
hypothesis_settings.register_profile(
    "tests", hypothesis_settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # they wait while others compute
    if settings.DATABASES["default"]["ENGINE"].endswith("postgresql"):
        select_items(config, items, uses_own_queries)
    select_items(config, items, runs_with_a_bucket if TEST_STORAGE == "s3" else runs_with_a_folder)


def select_items(config: pytest.Config, items: list[pytest.Item], is_selected: Callable[[pytest.Item], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not is_selected(item)])
    items[:] = [item for item in items if is_selected(item)]


def runs_with_a_bucket(item: pytest.Item) -> bool:
    """Whether the test neither looks into the data folder nor starts processes with their own settings."""
    if item.get_closest_marker("s3"):
        return True
    return not any(item.get_closest_marker(name) for name in ("disk", "slow", "browser", "trainers"))


def runs_with_a_folder(item: pytest.Item) -> bool:
    return item.get_closest_marker("s3") is None


def uses_own_queries(item: pytest.Item) -> bool:
    """Whether the test runs on PostgreSQL too: it uses the database, and no other test makes the same queries.

    Tests of the trainer's side (`tests/rolloutdeck/`) talk to the API, whose queries its own tests check.
    """
    if item.get_closest_marker("one_database") or TRAINER_SIDE in item.path.parents:
        return False
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("django_db") is not None or not {"db", "transactional_db"}.isdisjoint(fixtures)


def pytest_sessionstart() -> None:
    gc.disable()  # collecting tests creates thousands of objects, and all of them stay


def pytest_collection_finish() -> None:
    gc.freeze()  # else each full collection of garbage visits them
    gc.enable()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints why a test failed that passed when it was repeated."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext[-4000:])
        for name, message in report.sections:
            terminalreporter.write_line(f"--- {name}\n{message[-3000:]}")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> None:
    """A test with real transactions ends with empty tables and a migrate. No test needs the rows that it adds."""
    post_migrate.disconnect(create_permissions, dispatch_uid="django.contrib.auth.management.create_permissions")
    post_migrate.disconnect(create_contenttypes)


@pytest.fixture(scope="session", autouse=True)
def cache_static_files() -> Iterator[None]:
    """Each client looks up all scripts and styles at its start; they do not change while tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoise, "get_static_file", build_cached_lookup(WhiteNoise.get_static_file))
        yield


def build_cached_lookup(find: Callable[..., Any]) -> Callable[..., Any]:
    result: dict[tuple[str, str], Any] = {}

    def get_static_file(self: WhiteNoise, path: str, url: str, stat_cache: Any = None) -> Any:
        key = (str(path), url)
        if key not in result:
            result[key] = find(self, path, url, stat_cache)
        return result[key]

    return get_static_file


@pytest.fixture(scope="session", autouse=True)
def skip_fsync() -> Iterator[None]:
    """No test cuts the power, and each dump would wait ten times for some milliseconds. Server processes still wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """`rolloutdeck.init` sets the attempt for child processes: the next test must not inherit it."""
    before = {name: os.environ[name] for name in os.environ if name.startswith("ROLLOUTDECK_")}
    yield
    for name in [name for name in os.environ if name.startswith("ROLLOUTDECK_")]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(autouse=True)
def data_dir(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test writes its files to a folder of its own; with TEST_STORAGE=s3 to a prefix of its own in a bucket."""
    from rollouts.forgetting import caches

    monkeypatch.setattr(caches.look, "at", math.inf)  # else the number of queries depends on the time
    settings.DATA_DIR = tmp_path / "data"
    settings.STORAGE_URL = create_place() if TEST_STORAGE == "s3" else ""
    yield settings.DATA_DIR


@pytest.fixture
def bucket(settings: Any, data_dir: Path) -> str:
    """The files of this test are in a bucket. Returns the URL of the place."""
    settings.STORAGE_URL = settings.STORAGE_URL or create_place()
    return str(settings.STORAGE_URL)


@pytest.fixture(autouse=True)
def separate_counters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sign-in attempts of other tests, which run at the same time on the same Redis, do not count in this one."""
    monkeypatch.setattr(counters, "prefix", f"{tmp_path}:")


@pytest.fixture(autouse=True)
def use_fast_password_hasher(settings: Any) -> None:
    """The real hasher takes half a second per account, and tests create hundreds of them."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def reset_language() -> Iterator[None]:
    """A request leaves its thread in the language of its user."""
    yield
    translation.deactivate()


@pytest.fixture
def project(db: None) -> Project:
    return builders.project("math")


@pytest.fixture
def owner(project: Project) -> User:
    return builders.member(project, "olga", "owner")


@pytest.fixture
def mate(project: Project) -> User:
    """An annotator of the same project."""
    return builders.member(project, "mina", "annotator")


@pytest.fixture
def run(project: Project) -> Run:
    """A run without steps."""
    return builders.run(project)


@pytest.fixture
def reader(client: Client, mate: User) -> Client:
    """The annotator's browser."""
    client.force_login(mate)
    return client


@pytest.fixture
def stranger(db: None) -> User:
    """A user without a role in any project, who must see nothing."""
    return User.objects.create_user("stan", password="stan-password")


@pytest.fixture
def site(transactional_db: None) -> Iterator[Site]:
    """The app over real HTTP, as uploads reach it."""
    from dashboard.handler import RequestHandler
    from dashboard.origin_check import HostOriginCheck  # loads the settings' apps

    handler = RequestHandler()
    with serve(HostOriginCheck(handler, handler)) as running:
        yield running
    for thread, _since in handler.idle:  # PostgreSQL removes no database that a connection has open
        thread.submit(connections.close_all).result()
        thread.shutdown()
