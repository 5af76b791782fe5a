"""The version of the catalogue, and the log of its changes."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q

from accounts.models.versions import RoutingVersionBump
from config.triggers import TRANSACTION_ID, VersionBump

# The entries that the log of changes keeps. A process with an older copy reads the whole catalogue.
_LOGGED_CHANGES: Final = 10_000


class CatalogVersion(models.Model):
    """The version of the catalogue, in one row; running processes compare it with their copy.

    :class:`CatalogVersionBump` writes the id of the changing transaction at commit.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    version = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="catalog_version_one_row")]


class CatalogChange(models.Model):
    """A model or provider that changed, itself or in its endpoints, and the resulting version.

    Processes patch their copy of the catalogue with the changes since its version.
    :class:`CatalogVersionBump` writes them, in the order of commits, and deletes the oldest.
    """

    id = models.BigAutoField(primary_key=True)
    version = models.BigIntegerField()
    subject_id = models.UUIDField(help_text="The id of the model or of the provider.")

    class Meta:
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=("version", "subject_id"), name="catalog_change_unique")
        ]


class CatalogVersionBump(VersionBump):
    """Sets the catalogue's version once for each transaction, and logs what each row changes.

    ``columns`` are those of the row that name the changed models and providers.

    The advisory lock waits for the batches of requests that read the present version with
    ``causeway_hold_catalog()``, which locks it until their commit. It also orders the entries of
    the log as their transactions commit. The notification is a hint for other processes; nothing
    relies on its arrival.
    """

    def __init__(self, *columns: str) -> None:
        self._columns = columns
        super().__init__()

    def get_statement(self, model: type[models.Model]) -> str:
        changed = ", ".join(f"{row}.{column}" for column in self._columns for row in ("NEW", "OLD"))
        return f"""\
IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM {TRANSACTION_ID}::text THEN
    PERFORM set_config('causeway.catalog_changed', {TRANSACTION_ID}::text, true);
    PERFORM pg_advisory_xact_lock(6024917533);
    INSERT INTO catalog_catalogversion (id, version) VALUES (1, {TRANSACTION_ID})
    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;
    DELETE FROM catalog_catalogchange
    WHERE id <= (SELECT max(id) - {_LOGGED_CHANGES} FROM catalog_catalogchange);
    PERFORM pg_notify('causeway_versions', 'catalog');
END IF;
INSERT INTO catalog_catalogchange (version, subject_id)
SELECT DISTINCT {TRANSACTION_ID}, subject
FROM unnest(ARRAY[{changed}]) AS subjects (subject) WHERE subject IS NOT NULL
ON CONFLICT (version, subject_id) DO NOTHING;"""  # noqa: S608 - constants and names of columns


class OwnedVersionBump(VersionBump):
    """Raises the version of the organization that owns a changed row, or the catalogue's."""

    def get_statement(self, model: type[models.Model]) -> str:
        return (
            "IF COALESCE(NEW.organization_id, OLD.organization_id) IS NOT NULL THEN\n"
            f"{RoutingVersionBump().get_statement(model)}\n"
            "RETURN NULL;\n"
            "END IF;\n"
            f"{CatalogVersionBump('id').get_statement(model)}"
        )
