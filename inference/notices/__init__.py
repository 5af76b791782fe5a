"""Finds states that no transition tells of: used budgets, low balances, failing upstreams and such.

The duty ``find_notices`` of ``work`` reads stored sums, meters and counts with a few bounded
statements, and adds nothing to a request. Each state is told once in a period.
"""
