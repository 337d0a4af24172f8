"""`python -m rolloutdeck` is the command `rolloutdeck`."""

from rolloutdeck.cli.entry import main

raise SystemExit(main())
