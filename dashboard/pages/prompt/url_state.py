"""What the URL of a prompt's page asks for."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.pages.common import UrlState, parse_step_number

VIEWS = ("both", "diff")


@dataclass(frozen=True, slots=True)
class PromptUrlState(UrlState):
    """The page's address: `at` a step, `sel` the answer that is read, `vs` the one beside it, `view` how."""

    attempt: str = ""
    at: str = ""
    sel: str = ""
    vs: str = ""
    view: str = "both"

    @classmethod
    def is_valid(cls, name: str, value: str) -> bool:
        match name:
            case "at":
                return parse_step_number(value) is not None
            case "view":
                return value in VIEWS
            case _:
                return UrlState.is_valid(name, value)
