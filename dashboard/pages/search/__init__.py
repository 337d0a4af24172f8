"""The search over the samples of all runs of a project."""
