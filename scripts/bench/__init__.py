"""`make bench`: the budgets of docs/notes.md, measured against plain loops in the same run."""
