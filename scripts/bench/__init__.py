"""`make bench`: the performance budgets, measured against plain loops in the same run."""
