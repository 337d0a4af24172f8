from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.support.measure import Site, Visit
from tests.browser.support.queues import QUESTIONS
from tests.browser.support.training import PROJECT, Training
from tests.support.chromium import find_launch_options
from tests.support.server import Product, free_port, use_sign_in_link


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser_type_launch_args() -> dict[str, Any]:
    return find_launch_options()


@pytest.fixture(scope="session", params=["direct", "nginx"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    """The whole product, once without a proxy and once behind nginx under /a/b/, with its admin signed in."""
    port, stripping = free_port(), free_port()
    with ExitStack() as stack:
        if request.param == "direct":
            product = stack.enter_context(Product())
            result = Site(product, product.url)
        else:
            if not Path("/usr/sbin/nginx").exists():
                pytest.skip("nginx is not installed")
            from tests.support.nginx import run_proxy

            product = stack.enter_context(Product(f"http://127.0.0.1:{port}/a/b/"))
            stack.enter_context(run_proxy(tmp_path_factory.mktemp("nginx") / "n", product.url, port, stripping))
            result = Site(product, f"http://127.0.0.1:{port}/a/b", f"http://127.0.0.1:{stripping}/a/b")
        result.admin_state = sign_in(browser, result.product.sign_in_link())
        yield result


def sign_in(browser: Browser, link: str) -> Any:
    """Returns the cookies of a person who used their sign-in link."""
    context = browser.new_context()
    page = context.new_page()
    use_sign_in_link(page, link)
    page.get_by_role("link", name="Settings").first.wait_for()
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def open_visit(site: Site, browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens a browser for a person, by default the admin. After the test, no browser may have reported a fault."""
    visits: list[Visit] = []

    def open_new(state: Any = None, **options: Any) -> Visit:
        size = {"width": 1440, "height": 900}
        context = browser.new_context(**{"storage_state": state or site.admin_state, "viewport": size, **options})
        visits.append(Visit(site, context))
        return visits[-1]

    yield open_new
    faults = [fault for visit in visits for fault in visit.faults]  # before the browser cuts off what is still loading
    for visit in visits:
        visit.context.close()
    assert faults == []


@pytest.fixture
def visit(open_visit: Callable[..., Visit]) -> Visit:
    return open_visit()


class Members:
    """People whom the admin lets into projects. Each signs in once."""

    def __init__(self, site: Site, browser: Browser) -> None:
        self.site, self.browser = site, browser
        self.states: dict[str, Any] = {}  # cookies by name
        self.added: set[tuple[str, str]] = set()

    def add(self, project: str, name: str, role: str = "annotator") -> Any:
        """Returns the person's cookies."""
        if (project, name) not in self.added:
            self.add_new(project, name, role)
            self.added.add((project, name))
        return self.states[name]

    def add_new(self, project: str, name: str, role: str) -> None:
        context = self.browser.new_context(storage_state=self.site.admin_state)  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{self.site.url}/settings/{project}/")
        page.fill("#new-member", name)
        page.select_option("#new-role", role)
        page.get_by_role("button", name="Add").click()
        page.locator(f"input[name=user][value='{name}']").first.wait_for(state="attached")
        if name not in self.states:
            self.states[name] = sign_in(self.browser, page.locator(".secret pre").inner_text())
        context.close()


@pytest.fixture(scope="session")
def members(site: Site, browser: Browser) -> Members:
    return Members(site, browser)


tries: Counter[str] = Counter()  # of each test with its parameters


@pytest.fixture
def training(site: Site, request: pytest.FixtureRequest) -> Training:
    """A run. A test that is repeated gets a project of its own, without the data of its first try."""
    name, test = request.node.originalname, request.node.name
    tries[test] += 1
    if tries[test] == 1:
        return Training(site.product, name)
    return Training(site.product, f"{name}-{tries[test]}", f"{PROJECT}{tries.total()}")


@pytest.fixture
def mate(members: Members, training: Training) -> Any:
    """The cookies of an annotator of the project."""
    return members.add(training.project, "mina")


@pytest.fixture
def mates(members: Members, training: Training) -> list[Any]:
    """The cookies of two annotators; the project has a rubric."""
    url = f"projects/{training.project}/rubric/"
    rubric = {"questions": QUESTIONS, "base_version": training.product.get(url)["version"]}
    training.product.post(url, rubric, "PUT")
    return [members.add(training.project, name) for name in ("quinn", "ravi")]
