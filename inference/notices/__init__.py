"""Finds what no transition tells: budgets that fill, credits that end, upstreams that fail.

The duty ``find_notices`` of ``work`` reads stored sums and meters with a few bounded statements, so
nothing of it costs a request anything. Each state is told once in a period.
"""
