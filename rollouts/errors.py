"""What can go wrong in the domain, and the one question a worker asks of it: is it permanent?

RolloutError
├── BadInput            the caller sent something wrong; the message says what and how to mend it
│   ├── NotThere        what the caller names does not exist for them
│   ├── Conflict        it would undo what something else rests on; the message says what to do first
│   │   └── Outdated    somebody else has changed it since the caller looked
│   ├── HashMismatch    the bytes are not those that the address names
│   └── TooLarge        over a limit of `rolloutdeck.protocol.wire`
├── UnreadableDump      no format recognises the bytes, or they are damaged beyond one bad line
├── UnsafeDump          the bytes would execute code if unpickled; kept, never opened
└── StorageUnavailable  disk or object store does not answer; worth a retry
"""


class RolloutError(Exception):
    """Base of all domain errors. `str()` is one sentence for a person: what happened, to what, what to do."""

    permanent = True
    code = "error"


class InvalidInputError(RolloutError):
    """The caller sent something wrong. `field` names the offending parameter where there is one."""

    code = "bad_input"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotFoundError(InvalidInputError):
    """What the caller names does not exist, or not for them."""

    code = "not_found"


class ConflictError(InvalidInputError):
    """What the caller wants would undo what something else rests on."""

    code = "conflict"


class OutdatedError(ConflictError):
    """Somebody else has changed it since the caller looked; nothing was written."""

    code = "outdated"


class HashMismatchError(InvalidInputError):
    """The body's sha256 differs from the one in the address."""

    code = "hash_mismatch"


class TooLargeError(InvalidInputError):
    """The body is over a limit."""

    code = "too_large"


class UnreadableDumpError(RolloutError):
    """No format recognises the dump, or nothing in it can be read."""

    code = "unreadable"


class UnsafeDumpError(RolloutError):
    """The dump would run code if it were unpickled."""

    code = "unsafe"


class StorageUnavailableError(RolloutError):
    """Bytes cannot be written or read now; the same call may succeed later."""

    permanent = False
    code = "storage_unavailable"
