"""A service in the process of the tests leaves no connection to the database open."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import requests
from django.core.signals import request_finished
from django.db import close_old_connections

from tests.support import factories
from tests.support.machine.collecting import find_objects, without_collector


def test_a_request_that_ends_while_a_test_client_answers_closes_its_connection(
    server: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """While Django's test client answers, it takes Django's own receiver away."""
    headers = {"Authorization": f"Bearer {factories.make_tenant().management_key}"}
    with without_collector():
        before = find_objects(psycopg.Connection)

        def is_closed() -> bool:
            """Returns whether all are closed since; those of the data plane are no such objects."""
            since = find_objects(psycopg.Connection, but=before)
            return all(each.closed for each in since if isinstance(each, psycopg.Connection))

        request_finished.disconnect(close_old_connections)
        try:
            answer = requests.get(f"{server}/api/v1/keys", headers=headers, timeout=60)
            assert answer.status_code == 200
            eventually(is_closed)
        finally:
            request_finished.connect(close_old_connections)
