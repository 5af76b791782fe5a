"""The rows of the database, to prove that a refusal changed nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from django.apps import apps
from django.db import connection

_APPS = ("accounts", "catalog", "endpoints", "endusers", "billing", "inference")
# Every worker writes by itself, each second, how upstreams did, what guardrails judged, and that
# the database is reached.
MEASUREMENTS = (
    "inference.EndpointHealth", "inference.GuardrailCount", "inference.ProviderPace",
    "inference.TokenSum", "inference.Uptime", "inference.WorkerBeat",
)  # fmt: skip


@cache
def _statement() -> str:
    """Returns one statement over all tables: a query for each would cost more than most tests.

    So does its plan, which a session keeps.
    """
    return "PREPARE everything AS " + " UNION ALL ".join(
        f"SELECT '{model._meta.label}', t::text FROM {model._meta.db_table} t"
        for model in apps.get_models()
        if model._meta.app_label in _APPS
        and model._meta.label not in MEASUREMENTS
        and not model._meta.proxy
    )


def everything() -> dict[str, list[str]]:
    """Returns the text of every row of our apps by the model's label, without measurements.

    ASCII text in a binary column stays readable, so a search for a secret finds it there too.
    The statements are psycopg's own: a test that counts Django's queries does not count them.
    """
    found: dict[str, list[str]] = {
        model._meta.label: [] for model in apps.get_models() if model._meta.app_label in _APPS
    }
    connection.ensure_connection()
    with connection.connection.cursor() as cursor:
        cursor.execute("SET bytea_output TO escape")
        cursor.execute("SELECT FROM pg_prepared_statements WHERE name = 'everything'")
        if not cursor.rowcount:
            cursor.execute(_statement())
        cursor.execute("EXECUTE everything")
        rows = cursor.fetchall()
        cursor.execute("RESET bytea_output")
    for label, text in rows:
        found[label].append(text)
    return {label: sorted(texts) for label, texts in found.items()}


@contextmanager
def unchanged() -> Iterator[None]:
    """Asserts that a block changes no row; the message has the rows that came and went."""
    before = everything()
    yield
    after = everything()
    differences = {
        label: sorted(set(before[label]) ^ set(texts))
        for label, texts in after.items()
        if texts != before[label]
    }
    assert differences == {}, differences
