"""The URL of a prompt's page."""

from dataclasses import dataclass

from dashboard.pages.common import UrlState, parse_step_number

VIEWS = ("both", "diff")


@dataclass(frozen=True, slots=True)
class PromptUrlState(UrlState):
    """`at` is a step, `sel` the selected answer, `vs` the second one, `view` how both are shown."""

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
