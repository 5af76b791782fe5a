"""Serves the counters of the workers and the collectors of the apps to Prometheus."""

from __future__ import annotations

import os

from django.http import HttpRequest, HttpResponse
from django.utils.module_loading import import_string
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from config.apps import declaring_apps
from config.server.health import read_only


@read_only
def metrics(request: HttpRequest) -> HttpResponse:
    """Returns all metrics in Prometheus' text format.

    Counters are summed over all workers. The collectors of the apps read the database, so that
    every worker answers the same.
    """
    counters = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        counters = CollectorRegistry()
        MultiProcessCollector(counters)  # type: ignore[no-untyped-call]
    stored = CollectorRegistry()
    for app in declaring_apps():
        for path in app.collectors:
            stored.register(import_string(path)())
    content = generate_latest(counters) + generate_latest(stored)
    return HttpResponse(content, content_type=CONTENT_TYPE_LATEST)
