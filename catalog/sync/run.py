"""Syncs the catalogue with a public price list: fetches, plans, applies, and files the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final

from django.conf import settings
from django.db import transaction
from prometheus_client import Counter

from catalog import imports
from catalog.imports import Catalog
from catalog.sync import litellm, models_dev, openrouter
from catalog.sync.documents import UnreadableList, read_json
from catalog.sync.offers import PriceList
from catalog.sync.planning import ListPlan, PlannedRow, make_plan
from catalog.sync.proposals import file_proposals, lock_waiting
from config.audit import context as audit
from config.bulk.report import Report
from config.clocks.clock import clock
from config.egress import EgressError, OutboundRequest
from config.egress.fetch import fetch

logger = logging.getLogger("causeway.work")

_SYNCS: Final = Counter(
    "causeway_catalog_syncs_total",
    "Syncs of the catalogue with a public price list.",
    ("source", "outcome"),
)
_FETCH_SECONDS: Final = 60
SOURCES: Final[Mapping[str, Callable[[Mapping[str, Any], date], PriceList]]] = {
    "litellm": litellm.read_list,
    "openrouter": openrouter.read_list,
    "models.dev": models_dev.read_list,
}


@dataclass(slots=True)
class SyncReport(Report):
    """What a sync did: the counts of an import, and those of rows that were not applied.

    ``proposed`` rows wait for a person; ``refused`` rows of the list cannot be used; ``ignored``
    ones are of providers that the catalogue lacks, or of models that no route serves.
    """

    source: str = ""
    as_of: str = ""
    proposed: int = 0
    refused: int = 0
    ignored: int = 0
    plan: ListPlan | None = field(default=None, repr=False)


def fetch_list(url: str, name: str = "list") -> bytes:
    """Downloads a list through ``config.egress``; raises :class:`UnreadableList`.

    ``name`` is what messages call it.
    """
    # ``fetch`` allows plain HTTP to the networks of UPSTREAM_ALLOWED_NETWORKS.
    if not url.startswith("https://"):
        raise UnreadableList("The URL must begin with https://")
    try:
        status, _, body = fetch(
            OutboundRequest("GET", url, {}), settings.EGRESS_POLICY, _FETCH_SECONDS
        )
    except EgressError as exc:
        raise UnreadableList(f"The {name} could not be fetched: {exc}.") from None
    if status != 200:
        raise UnreadableList(f"The {name} could not be fetched: its server answered {status}.")
    return body


def sync_list(
    source: str,
    data: bytes,
    *,
    as_of: date,
    by: str,
    action: str,
    applies: bool,
    adds_rows: bool = True,
    creates: bool = True,
    dry_run: bool = False,
) -> SyncReport:
    """Syncs the catalogue with a list, all or nothing; raises :class:`UnreadableList`.

    Without ``applies``, every change waits for a person; without ``creates``, every new endpoint
    does. ``dry_run`` takes the same path and rolls back.
    """
    found = SOURCES[source](read_json(data), as_of)
    with audit.acting_as_nobody(), transaction.atomic():
        lock_waiting(source)
        imports.lock_catalogue()
        plan = make_plan(
            found,
            source=source,
            as_of=as_of,
            rise_limit=Decimal(settings.CATALOG_RISE_LIMIT),
            adds_rows=adds_rows,
        )
        ready = [
            row
            for row in plan.rows
            if applies and not row.waits and (creates or row.endpoint is not None)
        ]
        report = _apply_rows(plan, ready)
        report.proposed = file_proposals(plan, [row for row in plan.rows if row not in ready])
        report.dry_run = dry_run
        if not dry_run:
            counts = {name: getattr(report, name) for name in _COUNTS}
            audit.record_import(by, action, organization_id=None, counts=counts)
        transaction.set_rollback(dry_run)
    return report


_COUNTS: Final = (
    "created", "updated", "unchanged", "source", "as_of", "proposed", "refused", "ignored",
)  # fmt: skip


def _apply_rows(plan: ListPlan, ready: list[PlannedRow]) -> SyncReport:
    providers = {row.provider.slug: row.provider for row in ready if row.provider is not None}
    applied = imports.apply(
        Catalog(
            providers=list(providers.values()),
            models=[row.model for row in ready if row.model is not None],
            endpoints=[row.row for row in ready if row.row is not None],
            source=plan.source,
            as_of=plan.as_of,
        )
    )
    unchanged = {**applied.unchanged, "endpoints": plan.unchanged}
    return SyncReport(
        applied.created,
        applied.updated,
        unchanged,
        dry_run=False,
        source=plan.source,
        as_of=plan.as_of.isoformat(),
        refused=plan.found.refused_count,
        ignored=plan.found.ignored,
        plan=plan,
    )


def sync_due() -> int:
    """Syncs with every list of ``CATALOG_SYNC``; returns the number of changes and proposals.

    A list that fails is logged and counted. It changes nothing, and the others are still read.
    """
    done = 0
    for source, url in settings.CATALOG_SYNC.items():
        try:
            report = sync_list(
                source,
                fetch_list(url),
                as_of=clock.now().date(),
                by="work",
                action=f"sync_catalog {source}",
                applies=settings.CATALOG_SYNC_APPLIES,
                # What nobody asked for is not sold.
                creates=False,
            )
        except UnreadableList as exc:
            _SYNCS.labels(source, "failed").inc()
            logger.error("sync_price_lists: %s was not read, and nothing changed. %s", source, exc)
            continue
        _SYNCS.labels(source, "succeeded").inc()
        if report.refused and report.plan is not None:
            name, problem = report.plan.found.refused[0]
            logger.warning(
                "sync_price_lists: %d rows of %s cannot be used; the first is %r, which %s",
                report.refused, source, name, problem,
            )  # fmt: skip
        done += sum(report.created.values()) + sum(report.updated.values()) + report.proposed
    return done
