"""The page of the ledger lists every trigger, and the accounts and transfers that exist."""

from __future__ import annotations

import re

from pgtrigger import registry

from billing.models import Account, Transfer
from config.local.bootstrap import PROJECT
from tests.support.markdown import read_tables

PAGE = PROJECT / "docs" / "ledger.md"


def test_every_trigger_is_listed() -> None:
    listed = [
        (table, row[0].strip("`"))
        for row in read_tables(PAGE)
        if re.fullmatch(r"`\w+`", row[0])
        for table in re.findall(r"`(\w+)`", row[1])
    ]
    declared = [(model._meta.db_table, trigger.name) for model, trigger in registry.registered()]
    assert sorted(listed) == sorted(declared)


def test_every_account_and_transfer_is_listed() -> None:
    first = {row[0] for row in read_tables(PAGE)}
    assert first >= {
        value.replace("_", "-") for value in (*Account.Kind.values, *Transfer.Kind.values)
    }
