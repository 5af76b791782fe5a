"""An export that does not reach its end gives its connection back to the pool of the worker."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from tests.support import factories
from tests.support.machine.waiting import wait_until
from tests.support.processes import serve

# More than the buffers of both sides hold.
_ROWS = 40_000
_STORE = """
INSERT INTO endusers_enduser (id, created_at, updated_at, organization_id, "user", is_active)
SELECT gen_random_uuid(), now(), now(), %s, number || repeat('x', 400), true
FROM generate_series(1, %s) AS number
"""
_CANCEL = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def test_an_export_without_an_end_leaves_the_console_usable(transactional_db: None) -> None:
    """PostgreSQL stops a statement of it, and the caller of another one leaves."""
    tenant = factories.make_tenant()
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    with connection.cursor() as cursor:
        cursor.execute(_STORE, [tenant.organization.pk, _ROWS])
    with serve(DATABASE_POOL_SIZE="1") as served, requests.Session() as session:
        session.headers["Cookie"] = f"sessionid={client.cookies['sessionid'].value}"
        path = reverse("admin:endusers_enduser_changelist")
        for is_stopped in (True, False):
            answer = session.get(f"{served.address}{path}export-csv/", stream=True, timeout=60)
            assert answer.status_code == 200
            parts = answer.iter_content(65_536)
            next(parts)
            if is_stopped:
                stop_export(parts)
            answer.close()
            shown = session.get(f"{served.address}/admin/", timeout=60)
            assert shown.status_code == 200


def stop_export(parts: Iterator[bytes]) -> None:
    """Cancels the statement that reads the next rows, which waits for a lock."""
    with transaction.atomic(), connection.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("LOCK TABLE endusers_enduser IN ACCESS EXCLUSIVE MODE")
        # The export goes on only while its caller reads.
        rest = pool.submit(lambda: sum(map(len, parts)))

        def is_stopped() -> bool:
            cursor.execute(_CANCEL)
            return rest.done()

        wait_until(is_stopped, "the export goes on")
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            rest.result()
