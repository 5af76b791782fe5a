"""Whether this process runs in the cell that its database belongs to."""

from __future__ import annotations

from django.conf import settings

from accounts.cells.databases import find_missing_secrets
from accounts.models import CellIdentity
from config.bulk.files import refuse
from config.cells import HOME


def require_cell() -> None:
    """Refuses to start where ``CELL`` names another cell, or a secret of the home cell is missing.

    Without the home cell's pepper, no key of an organization that moves here would be found.
    """
    identity = CellIdentity.objects.first()
    name = HOME if identity is None else identity.name
    if name != settings.CELL:
        refuse(
            f"CELL is {settings.CELL}, but the database belongs to the cell {name}. Set CELL to "
            f"{name}, or, if the database is new, run join_cell {settings.CELL} in the home cell."
        )
    if identity is not None and settings.CATALOG_SYNC:
        refuse("CATALOG_SYNC is for the home cell, which alone can change the catalogue: unset it.")
    if identity is not None and (missing := find_missing_secrets(identity.fingerprint)):
        refuse(
            f"{' and '.join(missing)} must list the first value that the home cell has there: "
            "rows that come from it cannot be read otherwise."
        )
