"""Exceptions of the domain. `permanent` says whether a worker should try again.

RolloutError
├── InvalidInputError           the caller sent something wrong; the message says what, and how to correct it
│   ├── NotFoundError           it does not exist, or the caller has no access to it
│   ├── ConflictError           other data depends on it; the message says what to do first
│   │   └── OutdatedError       another user changed it since the caller loaded it
│   ├── HashMismatchError       the bytes do not have the hash in the URL
│   ├── TooLargeError           over a limit of `rolloutdeck.protocol.wire`
│   └── QueryLimitError         the query used all of its time or memory
├── TooManySearchesError        the person's other searches still run; the same call may succeed later
├── SearchCancelledError        the client left during a search
├── UnreadableDumpError         no format recognises the bytes, or they are damaged beyond single lines
├── UnsafeDumpError             the bytes would execute code if unpickled; stored, never opened
├── QuotaExceededError          the project uses all bytes it may use; the same call may succeed later
└── StorageUnavailableError     the disk or object store does not respond; the same call may succeed later
"""


class RolloutError(Exception):
    """Base class. `str()` is a sentence for users: what happened, to what, and what to do."""

    permanent = True
    code = "error"


class InvalidInputError(RolloutError):
    """`field` names the invalid parameter, if there is one."""

    code = "bad_input"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class NotFoundError(InvalidInputError):
    code = "not_found"


class ConflictError(InvalidInputError):
    code = "conflict"


class OutdatedError(ConflictError):
    code = "outdated"


class HashMismatchError(InvalidInputError):
    code = "hash_mismatch"


class TooLargeError(InvalidInputError):
    code = "too_large"


class UnreadableDumpError(RolloutError):
    code = "unreadable"


class UnsafeDumpError(RolloutError):
    code = "unsafe"


class StorageUnavailableError(RolloutError):
    permanent = False
    code = "storage_unavailable"


class SearchInterruptedError(StorageUnavailableError):
    """The process of a search was killed. The same search may succeed later."""


class QuotaExceededError(RolloutError):
    """The project uses all bytes that it may use."""

    permanent = False
    code = "quota_exceeded"


class QueryLimitError(InvalidInputError):
    """A query used all of its time or memory. The message says how much, and how to make the query smaller."""

    code = "query_limit"


class TooManySearchesError(RolloutError):
    """The person's other searches still run. `retry_after` is in seconds."""

    permanent = False
    code = "too_many_searches"
    retry_after = 5


class SearchCancelledError(RolloutError):
    """The client left, so nobody reads the result."""

    code = "search_cancelled"
