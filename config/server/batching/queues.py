"""The figures of a queue: how many items wait, for how long, and how many share a statement."""

from __future__ import annotations

from typing import Final

from prometheus_client import Gauge

from config.server.load.figures import figures

_WAITING: Final = Gauge(
    "causeway_queue_items",
    "Items that wait for a statement of the data plane, by queue.",
    ("queue",),
    multiprocess_mode="livesum",
)
_SECONDS: Final = figures.histogram(
    "causeway_queue_seconds",
    "How long the oldest item of a batch has waited for its statement to begin.",
    ("queue",),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
_BATCH: Final = figures.histogram(
    "causeway_batch_items",
    "Items that share a statement of the data plane.",
    ("queue",),
    (1, 2, 4, 8, 16, 32, 64, 128, 256),
)


class QueueFigures:
    """The figures of one queue of a worker."""

    __slots__ = ("_gauge", "_labels", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._labels = (name,)
        self._gauge = _WAITING.labels(name)

    def count_batch(self, items: int, waited: float) -> None:
        """Counts a batch that begins; ``waited`` is for how long its oldest item has waited."""
        _BATCH.observe(self._labels, items)
        _SECONDS.observe(self._labels, waited)

    def show(self, waiting: int) -> None:
        """Sets the number of items that wait in this worker."""
        self._gauge.set(waiting)
