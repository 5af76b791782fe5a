"""Every table with rows of organizations is carried to another cell, or says why not."""

from __future__ import annotations

from typing import Final

from django.apps import apps

from accounts.cells.rows import owned_tables

# The columns by which a row belongs to an organization, or to something that does.
_OWNERS: Final = (
    "organization", "workspace", "api_key", "member", "endpoint_id", "account_id", "subject",
    "generation",
)  # fmt: skip
STAY: Final = {
    "accounts_directoryentry": "each cell lists its own organizations, and replicates the list",
    "catalog_catalogchange": "the log of the catalogue is each cell's own",
    "catalog_catalogproposal": "a proposal is about an endpoint of the catalogue",
    "catalog_priceversion": "replicated; those of private endpoints are copied by themselves",
    "inference_endpointhealth": "health is what this cell has seen in the last minute",
    "inference_endpointhour": "the traffic of public endpoints is the cell's",
}


def test_every_table_of_organizations_is_carried_or_stays_for_a_reason() -> None:
    carried = {table.name for table in owned_tables()}
    left = set()
    for model in apps.get_models(include_auto_created=True):
        meta = model._meta
        if meta.proxy or not meta.managed or meta.db_table in carried:
            continue
        columns = [field.column for field in meta.concrete_fields if field.column]
        if any(owner in column for column in columns for owner in _OWNERS):
            left.add(meta.db_table)
    assert left == set(STAY)


# Rows that no trigger keeps while their organization moves, each with what does.
KEPT_OTHERWISE: Final = {
    "accounts_broadcastprogress": "the sender follows what has ended",
    "accounts_broadcastwait": "the sender follows what has ended",
    "accounts_delivery": "a receiver may get an event twice, from each of both cells",
    "accounts_manualsends": "the count of a minute, after which it says nothing",
    "accounts_keydigest": "a key gets its digests with itself",
    "billing_account": "the ledger holds the organization",
    "billing_arrival": "made by a move alone, which carries its sums",
    "billing_deposit": "a top-up that waits for a payment refuses the move",
    "billing_excess": "the ledger holds the organization",
    "billing_meter": "the data plane has ended, and admits nothing",
    "billing_meteropening": "made by a move alone, which carries its sums",
    "billing_opening": "made by a move alone, which carries its sums",
    "billing_transfer": "the ledger holds the organization",
    "config_auditentry": "an entry is written with the change that it tells of",
    "config_changeset": "what it changes is kept, and it is decided where it was proposed",
    "config_event": "an event is stored with the change that it tells of",
    "endpoints_validation": "storing one holds the organization",
    "endpoints_validationslot": "a slot is for the validation that runs in it",
    "inference_dailyusage": "sums of what has ended",
    "inference_feedback": "storing it holds the organization",
    "inference_generation": "the data plane has ended, and admits nothing",
    "inference_hourlyshare": "sums of what has ended",
    "inference_hourlyspending": "sums of what has ended",
    "inference_idempotentrequest": "the data plane has ended, and admits nothing",
    "inference_journal": "the data plane has ended, and admits nothing",
    "inference_keptanswer": "the data plane has ended, and admits nothing",
    "inference_shadowcount": "the data plane has ended, and admits nothing",
    "inference_storedtext": "the data plane has ended, and admits nothing",
    "inference_textdeletion": "deleting texts holds the organization",
    "inference_textkey": "a key is made with the first text",
}


def test_every_carried_row_is_kept_as_it_is_while_its_organization_moves() -> None:
    models = {
        model._meta.db_table: model
        for model in apps.get_models(include_auto_created=True)
        if not model._meta.proxy
    }
    open_tables = set()
    for table in owned_tables():
        triggers = {each.name for each in getattr(models[table.name]._meta, "triggers", ())}
        # A moved version is an update of the organization, which its own trigger refuses.
        if not triggers & {"stay_still", "keep_still", "version_bump"}:
            open_tables.add(table.name)
    assert open_tables == set(KEPT_OTHERWISE)
