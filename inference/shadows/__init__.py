"""Counts what shadows of guardrails would refuse."""
