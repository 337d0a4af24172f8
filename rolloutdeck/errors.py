"""Errors that stop a command, or one step of it. The message says what happened, to what, and what to do."""


class UsageError(Exception):
    """An input of the user (a path, an option, a URL, a token) can't be used. The exit status is 2."""


class MissingError(UsageError):
    """The server does not have what a request names, or hides it."""


class UnavailableError(UsageError):
    """The server does not answer at the moment, or is busy. `pause`: seconds, if it asks for a pause."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class RunNotFoundError(UsageError):
    """The server has no run with this name."""


class UnsafeFileError(UsageError):
    """A trainer must not load a file of a pin: it is not safe, or has another format."""


class NotReplayableError(Exception):
    """The run's trainer can't load a pinned step. The message is the reason, without a capital letter or full stop."""


class SelectedSamplesError(NotReplayableError):
    """The plan generates the step, or a prompt of it, again, because it selects some of its samples."""


class CallError(ValueError):
    """An argument of a call in a trainer can't be used. The message says which and why."""
