"""A training process: records a step for each input line `STEP COUNT`, and finishes at the end of its input."""

from __future__ import annotations

import sys

import rolloutdeck
from tests.browser.support.training import generations

run = rolloutdeck.init(project=sys.argv[1], name=sys.argv[2], resume="allow")
for line in sys.stdin:
    step, count = map(int, line.split())
    run.log_samples(generations(step, count), step=step)
run.finish()
