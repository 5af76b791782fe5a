"""Connects Django to the embedded PostgreSQL, which the first connection of a process starts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import environ
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.postgresql import client

from config.database.postgresql import base
from config.local import postgres


@cache
def start_server(data_dir: Path) -> dict[str, Any]:
    """Starts the server of a data directory, once in each process; returns its connection values.

    Raises :class:`ImproperlyConfigured` with the reason when it cannot start.
    """
    try:
        url = postgres.ensure_running(data_dir)
    except postgres.PostgresError as exc:
        raise ImproperlyConfigured(str(exc)) from None
    address = environ.Env.db_url_config(url)
    return {
        "HOST": address["OPTIONS"]["host"],
        "PORT": address["PORT"],
        "USER": address["USER"],
    }


class DatabaseClient(client.DatabaseClient):
    """``manage.py dbshell``."""

    def runshell(self, parameters: Iterable[str]) -> None:
        self.connection.settings_dict.update(start_server(settings.DATA_DIR))
        super().runshell(parameters)


class DatabaseWrapper(base.DatabaseWrapper):
    """Django's PostgreSQL backend over the embedded server."""

    client_class = DatabaseClient

    def get_connection_params(self) -> dict[str, Any]:
        self.settings_dict.update(start_server(settings.DATA_DIR))
        return super().get_connection_params()
