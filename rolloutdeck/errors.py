"""What stops a command, or one step of it. The text is for a person: what happened, to what, what to do."""


class UsageError(Exception):
    """Something the person gave (a path, an option, an address, a token) can't be used; exit status 2."""


class RunNotFoundError(UsageError):
    """The server knows no run of this name."""


class NotReplayableError(Exception):
    """A pinned step that the asking run's trainer can't load. The text is the end of a sentence: what is the matter."""
