"""What stops the safe readers. The text is one sentence for a person: what the file holds that it may not hold."""


class SafePickleError(Exception):
    """The bytes break a rule of the format, or a limit; nothing was taken from them."""
