"""Trigger classes that models declare in ``Meta.triggers``; django-pgtrigger migrates them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import pgtrigger
from django.db import models
from pgtrigger import compiler

# The id of the present transaction as a bigint.
TRANSACTION_ID: Final = "pg_current_xact_id()::text::bigint"


class TriggerSql(compiler.UpsertTriggerSql):
    """The SQL that installs a trigger, without django-pgtrigger's switch to ignore triggers.

    Any session could set that switch, and reading it would cost time for each row. Migrations refer
    to this class, so a change of the template needs a new class.
    """

    def get_template(self) -> str:
        return """
            CREATE OR REPLACE FUNCTION {pgid}() RETURNS trigger LANGUAGE plpgsql AS $$
            {declare}
            BEGIN
            {func}
            END
            $$;
            DROP TRIGGER IF EXISTS {pgid} ON {table};
            CREATE {constraint} TRIGGER {pgid} {when} {operation} ON {table}
                {timing} {referencing} FOR EACH {level} {condition}
                EXECUTE FUNCTION {execute};
            COMMENT ON TRIGGER {pgid} ON {table} IS '{hash}';
        """


class Trigger(pgtrigger.Trigger):
    """A trigger whose function runs exactly the declared statements."""

    def render_condition(self, model: Any) -> str:
        condition: Any = self.get_condition(model)
        return f"WHEN ({condition.resolve(model)})" if condition else ""

    def render_declare(self, model: Any) -> str:
        declarations = [f"    {name} {type_};" for name, type_ in self.get_declare(model)]
        return "\n".join(["DECLARE", *declarations]) if declarations else ""

    def compile(self, model: Any) -> compiler.Trigger:
        return compiler.Trigger(
            name=self.name,
            sql=TriggerSql(
                pgid=self.get_pgid(model),
                declare=self.render_declare(model),
                func=self.render_func(model),
                table=model._meta.db_table,
                constraint="CONSTRAINT" if self.timing else "",
                when=self.when,
                operation=self.operation,
                timing=f"DEFERRABLE INITIALLY {self.timing}" if self.timing else "",
                condition=self.render_condition(model),
            ),
        )


class AppendOnly(Trigger):
    """Refuses to delete rows, and to update them except for one kind of update.

    ``allowed`` is an SQL condition over ``OLD`` and ``NEW`` under which an update passes, as long
    as it changes no column but the ``mutable`` ones.
    """

    when = pgtrigger.Before
    operation = pgtrigger.Update | pgtrigger.Delete

    def __init__(
        self, *, message: str = "", allowed: str = "", mutable: Collection[str] = ()
    ) -> None:
        self._message = message
        self._allowed = allowed
        self._mutable = mutable
        super().__init__(name="append_only")

    def get_func(self, model: Any) -> str:
        message = self._message or f"{model._meta.db_table} is append-only"
        refusal = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'restrict_violation';"
        if not self._allowed:
            return refusal
        columns = [field.column for field in model._meta.concrete_fields]
        frozen = [column for column in columns if column not in self._mutable]
        new, old = (", ".join(f"{row}.{column}" for column in frozen) for row in ("NEW", "OLD"))
        return (
            f"IF TG_OP = 'UPDATE' AND ({self._allowed})\n"
            f"   AND ({new})\n"
            f"       IS NOT DISTINCT FROM\n"
            f"       ({old})\n"
            f"THEN\n"
            f"    RETURN NEW;\n"
            f"END IF;\n"
            f"{refusal}"
        )


class KeepUsed(Trigger):
    """Refuses to delete a row that ``used`` finds a reference to, in place of a foreign key.

    ``used`` is a table with a condition on ``OLD``. ``lock`` waits for the batches that may be
    storing a reference. Later batches wait for the deletion; when it commits, a version has moved,
    and they store nothing. The first search needs no lock, so that a refusal keeps nobody waiting.
    """

    name = "keep_used"
    when = pgtrigger.Before
    operation = pgtrigger.Delete

    def __init__(self, *, used: str, lock: str = "") -> None:
        self._used = used
        self._lock = lock
        super().__init__()

    def get_func(self, model: Any) -> str:
        used = f"EXISTS (SELECT 1 FROM {self._used})"  # noqa: S608 - names of tables
        return (
            f"IF NOT {used} THEN\n"
            f"    {self._lock}\n"
            f"    IF NOT {used} THEN RETURN OLD; END IF;\n"
            f"END IF;\n"
            f"RAISE EXCEPTION 'the row % of {model._meta.db_table} is in use', OLD.id\n"
            f"    USING ERRCODE = 'foreign_key_violation';"
        )


class VersionBump(Trigger):
    """Runs a statement at commit that changes a version; processes compare it to notice changes.

    The statement runs at commit, so that the row of the version is locked last and only briefly,
    and transactions that also lock other rows cannot deadlock over it. The version is the id of the
    changing transaction, so two changes never have the same one.
    """

    when = pgtrigger.After
    timing = pgtrigger.Deferred
    statement = ""

    def __init__(
        self,
        *,
        operation: Any = pgtrigger.Insert | pgtrigger.Update | pgtrigger.Delete,
        condition: str = "",
        name: str = "version_bump",
    ) -> None:
        super().__init__(
            name=name,
            operation=operation,
            condition=pgtrigger.Condition(condition) if condition else None,
        )

    def get_statement(self, model: type[models.Model]) -> str:
        return self.statement

    def get_func(self, model: Any) -> str:
        return f"{self.get_statement(model)}\nRETURN NULL;"


def carry(module: str, name: str, model: Any, *triggers: Trigger) -> Any:
    """Makes the proxy of this name, which declares triggers for the table of another room's model.

    ``module`` is that of the caller.
    """
    options = {"proxy": True, "default_permissions": (), "triggers": list(triggers)}
    return type(model)(name, (model,), {"__module__": module, "Meta": type("Meta", (), options)})
