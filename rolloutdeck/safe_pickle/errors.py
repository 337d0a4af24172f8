"""The exception of the safe readers. Its text is one sentence for the user: what in the file is not allowed."""


class SafePickleError(Exception):
    """The bytes break a rule of the format or exceed a limit. No value was read from them."""
