"""Reads a tree of HTML elements as a sequence of what it shows: conversations, tables and paragraphs."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from rollouts.formats.readers import JsonObject, chat, get_list, get_object

HEADER = re.compile(r"h[1-6]\Z")
MAX_DEPTH = 200  # elements inside each other; rollouts have about 20


class Section(NamedTuple):
    """A section of the page: its heading, and a number that no other section has."""

    title: str
    number: int


@dataclass(frozen=True, slots=True)
class TreeItem:
    """A conversation, a table of names and values, or a paragraph; and the sections around it, the outermost first."""

    path: tuple[Section, ...]
    messages: list[JsonObject] | None = None
    table: dict[str, str] | None = None
    text: str = ""

    def is_in(self, title: str) -> bool:
        return any(section.title == title for section in self.path)


def iterate_tree(root: JsonObject) -> Iterator[TreeItem]:
    """Yields the items in the order of the page, without those outside of all sections."""
    numbers = count()
    stack: list[tuple[Any, tuple[Section, ...], int]] = [(root, (), 0)]
    while stack:
        node, path, depth = stack.pop()
        if not isinstance(node, dict) or depth > MAX_DEPTH:
            continue
        children = get_list(node, "children")
        if node.get("tag") == "section":
            path = (*path, Section(read_title(children), next(numbers)))
        if path and (item := read_item(node, path)):
            yield item
        else:
            stack += [(child, path, depth + 1) for child in reversed(children)]


def read_item(node: JsonObject, path: tuple[Section, ...]) -> TreeItem | None:
    data = get_object(node, "data")
    if data.get("type") == "conversation" and chat.is_conversation(data.get("messages")):
        return TreeItem(path, messages=[convert_message(message) for message in get_list(data, "messages")])
    if node.get("tag") == "table":
        return TreeItem(path, table=read_table(node))
    if node.get("tag") == "p":
        return TreeItem(path, text=read_text(node))
    return None


def read_title(children: list[Any]) -> str:
    headers = (child for child in children if isinstance(child, dict) and HEADER.match(str(child.get("tag"))))
    return next((read_text(header) for header in headers), "")


def read_text(node: JsonObject) -> str:
    return html.unescape("".join(child for child in get_list(node, "children") if isinstance(child, str)))


def read_table(table: JsonObject) -> dict[str, str]:
    """Returns the first two cells of each row: a name and its value."""
    rows: dict[str, str] = {}
    for body in get_list(table, "children"):
        for row in get_list(body, "children") if isinstance(body, dict) and body.get("tag") == "tbody" else []:
            cells = [read_text(cell) for cell in get_list(row, "children") if isinstance(cell, dict)]
            if len(cells) == 2:
                rows[cells[0]] = cells[1]
    return rows


def convert_message(message: JsonObject) -> JsonObject:
    """Returns a message whose parts of thinking are its reasoning, as chat templates have it."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    thoughts = [
        part["thinking"] for part in content if isinstance(part, dict) and isinstance(part.get("thinking"), str)
    ]
    if not thoughts:
        return message
    others = [part for part in content if not (isinstance(part, dict) and isinstance(part.get("thinking"), str))]
    return {**message, "reasoning_content": "\n".join(thoughts), "content": others}
