"""The timeline of a run: the seconds of each step by phase, the slowest samples of a step, and their staleness."""
