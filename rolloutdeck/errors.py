"""What stops a command. The text is one sentence for a person: what happened, to what, what to do."""


class BadInput(Exception):
    """Something the person gave (a path, an option, an address, a token) can't be used; exit status 2."""
