"""The addresses of the database: ``DATABASE_URL``, and ``DATABASE_DIRECT_URL`` past a pooler."""

from __future__ import annotations

from typing import Final

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

# The alias of ``DATABASE_DIRECT_URL``, which the data plane and ``migrate`` use.
DIRECT: Final = "direct"
_IDENTIFY: Final = "SELECT system_identifier, current_database() FROM pg_control_system()"


def pass_by_pooler() -> None:
    """Lets Django's connection lead to ``DATABASE_DIRECT_URL``, if it is set, in this process."""
    if DIRECT in connections.settings:
        connection = connections[DEFAULT_DB_ALIAS]
        connection.close()
        connection.settings_dict = dict(connections[DIRECT].settings_dict)


def leads_elsewhere() -> bool:
    """Returns whether ``DATABASE_DIRECT_URL`` is another database than ``DATABASE_URL``.

    A server that cannot be asked now, or does not tell, is believed.
    """
    if DIRECT not in connections.settings:
        return False
    found = set()
    for alias in (DEFAULT_DB_ALIAS, DIRECT):
        connection = connections[alias]
        try:
            with connection.cursor() as cursor:
                cursor.execute(_IDENTIFY)
                found.add(cursor.fetchone())
        except DatabaseError:
            return False
        finally:
            connection.close()
    return len(found) > 1
