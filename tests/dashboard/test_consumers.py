"""The doorbell's wire, over the real channel layer."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, User
from django.test import Client

from dashboard import consumers
from dashboard.consumers import ChangeNotificationConsumer, listener_counts, websocket_urlpatterns
from rollouts.live import notifications
from rollouts.models import Membership, Run, SignInSession
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(transactional_db: None) -> Run:
    project = builders.project("math")
    builders.member(project, "mina", "annotator")
    builders.member(builders.project("other"), "stan", "owner")
    return builders.run(project, uid=secrets.token_hex(8))  # other tests use the same Redis, with other runs


async def socket(user: Any) -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(ChangeNotificationConsumer.as_asgi(), "/ws/")
    communicator.scope["user"] = user
    client = Client()
    if user.is_authenticated:
        await client.aforce_login(user)
    communicator.scope["session"] = await client.asession()
    return communicator


def waited(test: Callable[[Run], Awaitable[None]]) -> Callable[[Run], None]:
    """A coroutine as a test that pytest collects."""

    @wraps(test)
    def run_it(run: Run) -> None:
        async_to_sync(test)(run)

    return run_it


async def opened(name: str, topics: list[str]) -> tuple[WebsocketCommunicator, Any]:
    """A connected page, and its first ring."""
    communicator = await socket(await User.objects.aget(username=name))
    await communicator.connect()
    await communicator.send_json_to({"topics": topics})
    return communicator, await communicator.receive_json_from()


def notify(run: Run) -> None:
    notifications.notify_run_changed(run, split="train", step=7)


@waited
async def test_a_page_is_rung_at_once_and_when_its_run_changes(run: Run) -> None:
    page, first = await opened("mina", [f"run:{run.uid}"])
    assert first == {"topics": [f"run:{run.uid}"]}
    await sync_to_async(notify)(run)
    ring = await page.receive_json_from()
    assert ring == {"topics": [f"run:{run.uid}"], "split": "train", "step": 7, "version": 1, "listeners": 1}
    await page.disconnect()


@waited
async def test_a_run_that_one_may_not_see_is_not_heard(run: Run) -> None:
    page, first = await opened("stan", [f"run:{run.uid}"])
    assert first == {"topics": []}
    await sync_to_async(notify)(run)
    assert await page.receive_nothing()
    await page.disconnect()


@waited
async def test_that_some_run_has_changed_is_heard_without_its_name(run: Run) -> None:
    page, first = await opened("stan", [f"run:{run.uid}", "runs"])
    assert first == {"topics": ["runs"]}
    await sync_to_async(notify)(run)
    assert await page.receive_json_from() == {"topics": ["runs"], "listeners": 1}
    await page.disconnect()


@waited
async def test_a_ring_says_how_many_pages_hear_it_until_they_close(run: Run) -> None:
    pages = [(await opened("mina", [f"run:{run.uid}"]))[0] for _ in range(3)]
    await pages.pop().disconnect()
    await sync_to_async(notify)(run)
    assert [(await page.receive_json_from())["listeners"] for page in pages] == [2, 2]
    for page in pages:
        await page.disconnect()
    assert not listener_counts


@waited
async def test_a_hidden_page_is_rung_and_does_not_count(run: Run) -> None:
    pages = [(await opened("mina", [f"run:{run.uid}"]))[0] for _ in range(3)]
    await pages[0].send_json_to({"hidden": True})
    await pages[1].send_json_to({"topics": [f"run:{run.uid}"], "hidden": True})
    assert await pages[1].receive_json_from() == {"topics": [f"run:{run.uid}"]}
    await sync_to_async(notify)(run)
    assert [(await page.receive_json_from())["listeners"] for page in pages] == [1, 1, 1]
    await pages[0].send_json_to({"hidden": False})
    assert await pages[0].receive_nothing(), "nothing has changed meanwhile"
    await sync_to_async(notify)(run)
    assert [(await page.receive_json_from())["listeners"] for page in pages] == [2, 2, 2]
    for page in pages:
        await page.disconnect()
    assert not listener_counts


@waited
async def test_new_topics_replace_the_old(run: Run) -> None:
    page, _ = await opened("mina", [f"run:{run.uid}"])
    await page.send_json_to({"topics": []})
    assert await page.receive_json_from() == {"topics": []}
    await sync_to_async(notify)(run)
    assert await page.receive_nothing()
    await page.disconnect()


@waited
async def test_nobody_listens_without_signing_in(run: Run) -> None:
    page = await socket(AnonymousUser())
    await page.connect()
    assert (await page.receive_output())["code"] == 4401


@pytest.mark.parametrize(
    "message",
    [
        "no json", "[]", "{}", '{"topics": "runs"}', '{"topics": [1]}', '{"topics": ["\\u0000"]}',
        '{"hidden": 1}', '{"topics": [], "hidden": null}', '{"hidden": true, "topics": null}',
    ],
)  # fmt: skip
def test_what_is_not_understood_ends_the_socket(run: Run, message: str) -> None:
    @async_to_sync
    async def asked() -> Any:
        page = await socket(await User.objects.aget(username="mina"))
        await page.connect()
        await page.send_to(text_data=message)
        return await page.receive_output()

    assert asked()["code"] == 4400


@waited
async def test_bytes_end_the_socket(run: Run) -> None:
    page = await socket(await User.objects.aget(username="mina"))
    await page.connect()
    await page.send_to(bytes_data=b"\x00")
    assert (await page.receive_output())["code"] == 4400


@waited
async def test_a_deeply_nested_message_closes_the_connection(run: Run) -> None:
    page, _ = await opened("mina", [])
    await page.send_to(text_data="[" * 200_000)
    assert await page.receive_output() == {"type": "websocket.close", "code": 4400}


@waited
async def test_an_ended_session_is_told_so_at_its_next_message(run: Run) -> None:
    page, _ = await opened("mina", [f"run:{run.uid}"])
    await SignInSession.objects.all().adelete()
    await page.send_json_to({"topics": [f"run:{run.uid}"]})
    assert await page.receive_output() == {"type": "websocket.close", "code": 4401}


@waited
async def test_an_ended_session_hears_no_more_after_half_a_minute(run: Run) -> None:
    page, _ = await opened("mina", [f"run:{run.uid}"])
    await SignInSession.objects.all().adelete()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "SESSION_CHECK_SECONDS", 0.0)
        await sync_to_async(notify)(run)
        assert await page.receive_output() == {"type": "websocket.close", "code": 4401}


@waited
async def test_a_removed_member_hears_no_more_of_the_run_after_half_a_minute(run: Run) -> None:
    page, _ = await opened("mina", [f"run:{run.uid}", "runs"])
    await Membership.objects.filter(user__username="mina").adelete()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "SESSION_CHECK_SECONDS", 0.0)
        await sync_to_async(notify)(run)
        assert await page.receive_json_from() == {"topics": ["runs"], "listeners": 1}
    await page.disconnect()


@waited
async def test_an_unknown_path_is_closed(run: Run) -> None:
    page = WebsocketCommunicator(URLRouter(websocket_urlpatterns), "/ws/x")
    connected, _ = await page.connect()
    assert connected
    assert await page.receive_output() == {"type": "websocket.close", "code": 4404}
