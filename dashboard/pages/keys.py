"""The keyboard, in one table: the footer, the help and the script all come from it.

A key presses the page's element with the same `data-key`, so every key has a visible button or link.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """`foot` is the short name in the footer; without one the key is only in the help."""

    keys: str
    does: str
    pages: tuple[str, ...] = ()
    foot: str = ""


STEP = ("step",)
READ = ("step", "sample")
BOARD = ("group",)
RUN = ("run", "step", "sample", "prompt", "group")

KEYS = (
    Key("j k", "next, previous sample in this list", STEP, foot="sample"),
    Key("w", "worst sample of the latest step", RUN, foot="worst"),
    Key("f", "flag, then 1–6 for the reason or Enter for a text", READ, foot="flag"),
    Key("p", "pin this step, or see its pin", READ, foot="pin"),
    Key("h l", "other response of the group", READ, foot="response"),
    Key("g", "group board: all responses side by side", READ, foot="group"),
    Key("J K", "next, previous group of this result", BOARD, foot="group"),
    Key("1–8", "to the response of this number", BOARD, foot="response"),
    Key("e", "every response whole, or only its end", BOARD, foot="whole"),
    Key("[ ]", "same prompt, step before and after", READ, foot="same prompt"),
    Key("{ }", "first, latest step", STEP),
    Key("r", "read raw", READ),
    Key("m", "read with math and Markdown", READ),
    Key("t", "read turns, or tokens", READ),
    Key("i", "everything as JSON", READ),
    Key("Enter", "sample over the full width", STEP),
    Key("Esc", "back; leave a field", ()),
    Key("n", "show what has arrived", STEP),
    Key("/", "query", STEP, foot="query"),
    Key("y", "copy the link, step resolved", READ, foot="copy link"),
    Key("c", "compare this step with another", (*RUN, "compare")),
    Key("o", "run's overview", (*READ, *BOARD)),
    Key("?", "this table", (), foot="all keys"),
)


def keys_for(page: str | None) -> list[Key]:
    return [key for key in KEYS if not key.pages or page in key.pages]
