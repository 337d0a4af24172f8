"""Attacks a server that it starts itself on 127.0.0.1, and compares latencies with their budgets.

Depends on: `tests.support.server`.
Invariant: nothing is sent to another machine or to another server of this one.
"""
