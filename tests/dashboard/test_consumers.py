"""The WebSocket of change notifications, over the real channel layer."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, User
from django.db import OperationalError
from django.test import Client

from dashboard import consumers
from dashboard.consumers import ChangeNotificationConsumer, listener_counts, websocket_urlpatterns
from rollouts.live import notifications
from rollouts.models import Membership, Run, SignInSession
from rollouts.telemetry import build_registry
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(transactional_db: None) -> Run:
    project = builders.project("math")
    builders.member(project, "mina", "annotator")
    builders.member(builders.project("other"), "stan", "owner")
    return builders.run(project, uid=secrets.token_hex(8))  # other tests use the same Redis, with other runs


async def create_communicator(user: Any) -> WebsocketCommunicator:
    communicator = WebsocketCommunicator(ChangeNotificationConsumer.as_asgi(), "/ws/")
    communicator.scope["user"] = user
    client = Client()
    if user.is_authenticated:
        await client.aforce_login(user)
    communicator.scope["session"] = await client.asession()
    return communicator


def run_async(test: Callable[[Run], Awaitable[None]]) -> Callable[[Run], None]:
    """Makes an async function a test that pytest can run."""

    @wraps(test)
    def run_test(run: Run) -> None:
        async_to_sync(test)(run)

    return run_test


async def connect_page(name: str, topics: list[str]) -> tuple[WebsocketCommunicator, Any]:
    """Returns a connected page and its first notification."""
    communicator = await create_communicator(await User.objects.aget(username=name))
    await communicator.connect()
    await communicator.send_json_to({"topics": topics})
    return communicator, await communicator.receive_json_from()


def count_open_pages() -> float:
    return build_registry().get_sample_value("rolloutdeck_sockets") or 0.0


def notify_run_changed(run: Run) -> None:
    notifications.notify_run_changed(run, split="train", step=7)


@run_async
async def test_a_page_is_notified_at_once_and_when_its_run_changes(run: Run) -> None:
    page, first = await connect_page("mina", [f"run:{run.uid}"])
    assert first == {"topics": [f"run:{run.uid}"]}
    await sync_to_async(notify_run_changed)(run)
    notification = await page.receive_json_from()
    assert notification == {"topics": [f"run:{run.uid}"], "split": "train", "step": 7, "version": 1, "listeners": 1}
    await page.disconnect()


@run_async
async def test_changes_of_a_run_without_access_are_not_sent(run: Run) -> None:
    page, first = await connect_page("stan", [f"run:{run.uid}"])
    assert first == {"topics": []}
    await sync_to_async(notify_run_changed)(run)
    assert await page.receive_nothing()
    await page.disconnect()


@run_async
async def test_the_topic_runs_reports_a_change_without_naming_the_run(run: Run) -> None:
    page, first = await connect_page("stan", [f"run:{run.uid}", "runs"])
    assert first == {"topics": ["runs"]}
    await sync_to_async(notify_run_changed)(run)
    assert await page.receive_json_from() == {"topics": ["runs"], "listeners": 1}
    await page.disconnect()


@run_async
async def test_a_notification_has_the_number_of_open_pages(run: Run) -> None:
    pages = [(await connect_page("mina", [f"run:{run.uid}"]))[0] for _ in range(3)]
    await pages.pop().disconnect()
    await sync_to_async(notify_run_changed)(run)
    assert [(await page.receive_json_from())["listeners"] for page in pages] == [2, 2]
    for page in pages:
        await page.disconnect()
    assert not listener_counts


@run_async
async def test_a_hidden_page_is_notified_and_not_counted(run: Run) -> None:
    pages = [(await connect_page("mina", [f"run:{run.uid}"]))[0] for _ in range(3)]
    await pages[0].send_json_to({"hidden": True})
    await pages[1].send_json_to({"topics": [f"run:{run.uid}"], "hidden": True})
    assert await pages[1].receive_json_from() == {"topics": [f"run:{run.uid}"]}
    await sync_to_async(notify_run_changed)(run)
    assert [(await page.receive_json_from())["listeners"] for page in pages] == [1, 1, 1]
    await pages[0].send_json_to({"hidden": False})
    assert await pages[0].receive_nothing(), "nothing has changed meanwhile"
    await sync_to_async(notify_run_changed)(run)
    assert [(await page.receive_json_from())["listeners"] for page in pages] == [2, 2, 2]
    for page in pages:
        await page.disconnect()
    assert not listener_counts


@run_async
async def test_new_topics_replace_the_old_ones(run: Run) -> None:
    page, _ = await connect_page("mina", [f"run:{run.uid}"])
    await page.send_json_to({"topics": []})
    assert await page.receive_json_from() == {"topics": []}
    await sync_to_async(notify_run_changed)(run)
    assert await page.receive_nothing()
    await page.disconnect()


@run_async
async def test_an_anonymous_user_is_disconnected(run: Run) -> None:
    page = await create_communicator(AnonymousUser())
    await page.connect()
    assert (await page.receive_output())["code"] == 4401


@pytest.mark.parametrize(
    "message",
    [
        "no json", "[]", "{}", '{"topics": "runs"}', '{"topics": [1]}', '{"topics": ["\\u0000"]}',
        '{"hidden": 1}', '{"topics": [], "hidden": null}', '{"hidden": true, "topics": null}',
    ],
)  # fmt: skip
def test_an_invalid_message_closes_the_connection(run: Run, message: str) -> None:
    @async_to_sync
    async def send_message() -> Any:
        page = await create_communicator(await User.objects.aget(username="mina"))
        await page.connect()
        await page.send_to(text_data=message)
        return await page.receive_output()

    assert send_message()["code"] == 4400


@run_async
async def test_a_binary_message_closes_the_connection(run: Run) -> None:
    page = await create_communicator(await User.objects.aget(username="mina"))
    await page.connect()
    await page.send_to(bytes_data=b"\x00")
    assert (await page.receive_output())["code"] == 4400


@run_async
async def test_a_deeply_nested_message_closes_the_connection(run: Run) -> None:
    page, _ = await connect_page("mina", [])
    await page.send_to(text_data="[" * 200_000)
    assert await page.receive_output() == {"type": "websocket.close", "code": 4400}


@run_async
async def test_an_ended_session_is_closed_at_its_next_message(run: Run) -> None:
    page, _ = await connect_page("mina", [f"run:{run.uid}"])
    await SignInSession.objects.all().adelete()
    await page.send_json_to({"topics": [f"run:{run.uid}"]})
    assert await page.receive_output() == {"type": "websocket.close", "code": 4401}


@run_async
async def test_an_ended_session_is_closed_after_half_a_minute(run: Run) -> None:
    page, _ = await connect_page("mina", [f"run:{run.uid}"])
    await SignInSession.objects.all().adelete()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "SESSION_CHECK_SECONDS", 0.0)
        await sync_to_async(notify_run_changed)(run)
        assert await page.receive_output() == {"type": "websocket.close", "code": 4401}


@run_async
async def test_a_removed_member_gets_no_more_notifications_of_the_run_after_half_a_minute(run: Run) -> None:
    page, _ = await connect_page("mina", [f"run:{run.uid}", "runs"])
    await Membership.objects.filter(user__username="mina").adelete()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "SESSION_CHECK_SECONDS", 0.0)
        await sync_to_async(notify_run_changed)(run)
        assert await page.receive_json_from() == {"topics": ["runs"], "listeners": 1}
    await page.disconnect()


@run_async
async def test_a_page_whose_connection_ends_with_an_error_is_no_longer_counted(run: Run) -> None:
    before = count_open_pages()
    page, _ = await connect_page("mina", [f"run:{run.uid}"])
    assert count_open_pages() == before + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumers, "load_signed_in_user", AsyncMock(side_effect=OperationalError))
        await page.send_json_to({"topics": []})
        with pytest.raises(OperationalError):
            await page.wait()
    assert count_open_pages() == before
    assert not listener_counts


@run_async
async def test_an_unknown_path_is_closed(run: Run) -> None:
    page = WebsocketCommunicator(URLRouter(websocket_urlpatterns), "/ws/x")
    connected, _ = await page.connect()
    assert connected
    assert await page.receive_output() == {"type": "websocket.close", "code": 4404}
