"""`python -m rolloutdeck` is the command `rolloutdeck`."""

from rolloutdeck.cli import main

raise SystemExit(main())
