"""What the URL of a prompt's page asks for."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.pages.common.url_state import Address, step_number

VIEWS = ("both", "diff")


@dataclass(frozen=True, slots=True)
class Look(Address):
    """The page's address: `at` a step, `sel` the answer that is read, `vs` the one beside it, `view` how."""

    attempt: str = ""
    at: str = ""
    sel: str = ""
    vs: str = ""
    view: str = "both"

    @classmethod
    def knows(cls, name: str, word: str) -> bool:
        match name:
            case "at":
                return step_number(word) is not None
            case "view":
                return word in VIEWS
            case _:
                return Address.knows(name, word)
