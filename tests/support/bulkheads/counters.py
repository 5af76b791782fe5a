"""Reads the metrics of a running service, and those of this process."""

from __future__ import annotations

import os
import secrets
from typing import Final

import requests
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

_SECONDS: Final = 60.0
# The services that a benchmark starts inherit it; the tests have one already.
os.environ.setdefault("METRICS_TOKEN", secrets.token_urlsafe(16))


def authorization() -> dict[str, str]:
    """Returns the header with which Prometheus reads the metrics."""
    return {"Authorization": f"Bearer {os.environ['METRICS_TOKEN']}"}


def read_metrics(address: str) -> str:
    """Returns the metrics of a running service."""
    answer = requests.get(f"{address}/metrics", headers=authorization(), timeout=_SECONDS)
    assert answer.status_code == 200, answer.text
    return answer.text


def read_counter(address: str, name: str, **labels: str) -> float:
    """Returns the sum of a metric's samples that have these labels, over all workers."""
    return sum_samples(read_metrics(address), name, **labels)


def sum_samples(text: str, name: str, **labels: str) -> float:
    """Returns what :func:`read_counter` does, of metrics that were read."""
    # There are six hundred lines, and parsing one costs as much as a small query.
    lines = [line for line in text.splitlines() if name in line]
    return sum(
        sample.value
        for family in text_string_to_metric_families("\n".join(lines))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def sample(name: str, **labels: str) -> float:
    """Returns the value of one series of this process; 0 if there is none."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
