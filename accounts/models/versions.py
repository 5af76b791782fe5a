"""The trigger that raises an organization's routing version."""

from __future__ import annotations

from typing import Any

from config.triggers import TRANSACTION_ID, VersionBump


class RoutingVersionBump(VersionBump):
    """Raises ``routing_version`` of the organization that owns a changed row.

    ``through`` names the foreign key to the parent, for rows without an organization of their own.
    """

    def __init__(self, *, through: str = "", **kwargs: Any) -> None:
        self._through = through
        super().__init__(**kwargs)

    def get_statement(self, model: Any) -> str:
        owner = "COALESCE(NEW.organization_id, OLD.organization_id)"
        if self._through:
            field = model._meta.get_field(self._through)
            parent = field.related_model._meta
            column = field.column
            owner = (
                f"(SELECT organization_id FROM {parent.db_table} "  # noqa: S608 - names of tables
                f"WHERE id = COALESCE(NEW.{column}, OLD.{column}))"
            )
        return (
            f"UPDATE accounts_organization SET routing_version = {TRANSACTION_ID}\n"  # noqa: S608
            f"WHERE id = {owner}\n"
            f"  AND routing_version IS DISTINCT FROM {TRANSACTION_ID};"
        )
