"""The trigger that writes the audit log in the transaction of each change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

import pgtrigger
from django.apps import apps

from config.triggers import Trigger

_MASK: Final = "********"
_ALWAYS_IGNORED: Final = ("created_at", "updated_at")


class Audit(Trigger):
    """Writes an audit entry for each changed row while :func:`acting_as` names an actor.

    Without an actor the trigger costs one comparison a row. ``key`` is the column that names the
    object. Values of ``masked`` columns are hidden; changes of ``ignored`` columns are not logged.
    ``organization`` is the path of foreign keys to the organization's id, ``organization`` by
    default where the model has such a field.
    """

    when = pgtrigger.After

    def __init__(
        self,
        *,
        key: str = "id",
        masked: Collection[str] = (),
        ignored: Collection[str] = (),
        organization: str = "",
        operation: Any = pgtrigger.Insert | pgtrigger.Update | pgtrigger.Delete,
        condition: str = "",
    ) -> None:
        self._key = key
        self.masked = masked
        self.ignored = ignored
        self._organization = organization
        has_actor = "current_setting('causeway.actor', true) <> ''"
        super().__init__(
            name="audit",
            operation=operation,
            condition=pgtrigger.Condition(
                f"({condition}) AND {has_actor}" if condition else has_actor
            ),
        )

    def get_declare(self, model: Any) -> list[tuple[str, str]]:
        row = "CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END"
        return [("changed", f"jsonb := {row}"), ("was", "jsonb"), ("becomes", "jsonb")]

    def get_func(self, model: Any) -> str:
        """Returns the body: compares the columns, masks secrets, and inserts an entry."""
        ignored = _text_array((*_ALWAYS_IGNORED, *self.ignored))
        return f"""\
IF TG_OP = 'UPDATE' THEN
    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes
    FROM jsonb_each(to_jsonb(OLD) - {ignored}) o JOIN jsonb_each(changed) n USING (key)
    WHERE o.value <> n.value;
    IF was IS NULL THEN
        RETURN NULL;
    END IF;
ELSE
    SELECT jsonb_object_agg(key, value) INTO becomes
    FROM jsonb_each(changed - {ignored}) WHERE value <> 'null';
    IF TG_OP = 'DELETE' THEN
        was := becomes;
        becomes := NULL;
    END IF;
END IF;
{self._masking()}INSERT INTO config_auditentry
    (actor, action, kind, object_id, organization_id, "before", "after", request_id)
VALUES (
    current_setting('causeway.actor'), current_setting('causeway.action'), '{kind_of(model)}',
    changed ->> '{self._key}', {self._organization_id(model)}, was, becomes,
    current_setting('causeway.request_id')
);
RETURN NULL;"""  # noqa: S608 - the parts are names of columns and tables

    def _masking(self) -> str:
        if not self.masked:
            return ""
        masked = _text_array(self.masked)
        return "".join(
            f"SELECT {name} || coalesce(jsonb_object_agg(key, '{_MASK}'), '{{}}') INTO {name}\n"
            f"FROM jsonb_each({name}) WHERE key = ANY ({masked}) AND value <> 'null';\n"
            for name in ("was", "becomes")
        )

    def _organization_id(self, model: Any) -> str:
        """Returns the SQL of the organization's id, which follows the path of foreign keys."""
        names = {field.name for field in model._meta.concrete_fields}
        path = self._organization or ("organization" if "organization" in names else "")
        if not path:
            return "NULL"
        first, *rest = path.split("__")
        field = model._meta.get_field(first)
        sql = f"(changed ->> '{field.column}')::uuid"
        for name in rest:
            table = field.related_model._meta
            field = table.get_field(name)
            sql = f"(SELECT {field.column} FROM {table.db_table} WHERE {table.pk.column} = {sql})"  # noqa: S608
        return sql


def kind_of(model: Any) -> str:
    """Returns the name of a model's table in audit entries, such as ``accounts.apikey``."""
    return model._meta.concrete_model._meta.label_lower


@cache
def audit_triggers() -> Mapping[str, Audit]:
    """Returns the declared audit triggers by the kinds of their tables."""
    return {
        kind_of(model): trigger
        for model in apps.get_models()
        for trigger in getattr(model._meta, "triggers", ())
        if isinstance(trigger, Audit)
    }


def _text_array(names: Collection[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names)
    return f"ARRAY[{quoted}]"
