"""`python -m rolloutdeck` runs the command `rolloutdeck`."""

from rolloutdeck.cli import main

raise SystemExit(main())
