"""Creates review queues and answers their items as a reviewer does."""

from __future__ import annotations

import time
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.browser.support.training import Training

QUESTIONS = [
    {"key": "correct", "title": "Is the answer correct?", "kind": "yes-no", "required": True},
    {"key": "quality", "title": "Reasoning", "kind": "rating", "minimum": 1, "maximum": 5, "range": True},
]
STATUS = ".queue-head [role=status]"

# Answers items through the API, with the session of the page, until `count` are answered or none is left.
ANSWER_MANY = """([queue, count]) => {
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  const headers = { "X-CSRFToken": token, "Content-Type": "application/json" };
  const send = async (method, path, data) => {
    const response = await fetch(`/api/v1/queues/${queue}/${path}`, { method, headers, body: JSON.stringify(data) });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return response.json();
  };
  window.answered = 0;
  window.working = (async () => {
    while (window.answered < count) {
      const { item } = await send("POST", "next/", {});
      if (!item) break;
      await send("PUT", `items/${item.id}/answers/`, { answers: { correct: { value: true }, quality: { value: 3 } } });
      window.answered += 1;
    }
  })();
}"""


def create_queue(training: Training, **settings: Any) -> int:
    values = {"project": training.project, "name": training.name[:60], "runs": [training.uid], **settings}
    return int(training.product.post("queues/", values)["id"])


def answer_item(page: Page) -> None:
    """Answers the open item by keyboard and waits for the next one, or the summary."""
    item = page.locator("article[data-item]").get_attribute("data-item")
    for key in ("1", "4", "Enter"):
        page.keyboard.press(key)
    expect(page.locator(f"article[data-item='{item}']")).to_have_count(0)


def is_done(page: Page) -> bool:
    expect(page.locator("article[data-item], [data-queue-done]")).to_be_visible()
    return page.locator("[data-queue-done]").count() > 0


def slow_down(route: Route) -> None:
    time.sleep(0.3)
    route.continue_()
