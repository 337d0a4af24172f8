"""The command `rolloutdeck`, also as `python -m rolloutdeck`."""

from __future__ import annotations


def main() -> int:
    """Returns the exit status, also if Ctrl-C comes while the command is imported."""
    try:
        from rolloutdeck.cli import main as run_command

        return run_command()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
