"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def read_version() -> str:
    """Returns the version of the installed package, "unknown" in a checkout that is not installed."""
    try:
        return version("rolloutdeck")
    except PackageNotFoundError:
        return "unknown"
