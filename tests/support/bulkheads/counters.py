"""Reads the metrics of a running service, and those of this process."""

from __future__ import annotations

from typing import Final

import requests
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

_SECONDS: Final = 60.0


def read_counter(address: str, name: str, **labels: str) -> float:
    """Returns the sum of a metric's samples that have these labels, over all workers."""
    text = requests.get(f"{address}/metrics", timeout=_SECONDS).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def sample(name: str, **labels: str) -> float:
    """Returns the value of one series of this process; 0 if there is none."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
