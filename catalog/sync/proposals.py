"""Files the changes that wait for a person, and applies those that one approves."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from django.db import transaction

from catalog import imports
from catalog.models import CatalogProposal, LanguageModel, ModelEndpoint, Provider
from catalog.sync.planning import ListPlan, PlannedRow, digest_of, stored_endpoints
from config.api.errors import Conflict, Forbidden
from config.bulk.problems import ImportRefused
from config.events.outbox import record_event

_SYNC: Final = "sync"
# An event names at most this many proposals.
_NAMED: Final = 20


class CatalogMoved(Conflict):
    """The catalogue changed after the proposal was filed, so it is not what the person saw."""

    error_type = "catalog_moved"
    message = (
        "The catalogue has changed since this proposal was filed. Nothing was applied. The next "
        "sync files it again as it is then."
    )


def lock_waiting(source: str) -> None:
    """Locks a source's waiting proposals: an approval locks its proposal before the catalogue."""
    mine = CatalogProposal.objects.filter(source=source, status="waiting")
    list(mine.select_for_update().order_by("pk").values_list("pk"))


def file_proposals(plan: ListPlan, waiting: list[PlannedRow]) -> int:
    """Files the waiting rows of a plan; returns the number of proposals that wait now.

    An equal proposal stays. One that the list no longer makes is withdrawn, and what a person has
    refused is not filed again.
    """
    with transaction.atomic():
        mine = CatalogProposal.objects.filter(source=plan.source)
        open_ones = {one.subject: one for one in mine.filter(status="waiting")}
        refused = {_shown(one) for one in mine.filter(status="refused")}
        filed = 0
        added: list[CatalogProposal] = []
        for row in waiting:
            made = _make_proposal(plan, row)
            present = open_ones.pop(row.subject, None)
            if present is not None:
                if (_shown(present), present.basis) == (_shown(made), made.basis):
                    filed += 1
                    continue
                present.withdraw(by=_SYNC)
            # Another list may propose a change of the endpoint: the first one is decided.
            others = CatalogProposal.objects.filter(subject=row.subject, status="waiting")
            if _shown(made) in refused or others.exists():
                continue
            made.save(force_insert=True)
            added.append(made)
            filed += 1
        for vanished in open_ones.values():
            vanished.withdraw(by=_SYNC)
        if added:
            _record(plan.source, added)
    return filed


def _record(source: str, added: list[CatalogProposal]) -> None:
    """Stores an event about new proposals in the caller's transaction."""
    data = {
        "source": source,
        "count": len(added),
        "risky": sum(bool(proposal.risk) for proposal in added),
        "subjects": [proposal.subject for proposal in added[:_NAMED]],
    }
    record_event("catalog.proposed", organization=None, data=data)


def approve(proposal: CatalogProposal, *, by: str) -> None:
    """Approves a proposal and applies exactly what it shows.

    Raises :class:`CatalogMoved` if the catalogue is not the one that the proposal compared.
    """
    with transaction.atomic():
        proposal.approve(by=by)
        imports.lock_catalogue()
        endpoint = None
        if proposal.endpoint_id is not None:
            endpoint = stored_endpoints().filter(pk=proposal.endpoint_id).first()
            if endpoint is None or digest_of(endpoint) != proposal.basis:
                raise CatalogMoved
            if not endpoint.is_listed:
                raise CatalogMoved
        if not proposal.content["endpoints"]:
            if endpoint is None:
                raise CatalogMoved
            endpoint.delist()
            return
        content = proposal.content
        if endpoint is None:
            _require_absent(proposal)
            content = {**content, "providers": _missing_providers(proposal)}
        try:
            imports.apply(imports.parse(msgspec.json.encode(content)))
        except ImportRefused:
            raise CatalogMoved from None


def require_permission(user: Any, proposal: CatalogProposal) -> None:
    """Raises :class:`Forbidden` unless an operator may decide a proposal."""
    if not user.has_perm(proposal.required_permission):
        raise Forbidden("Your role may decide about prices only.")


def _require_absent(proposal: CatalogProposal) -> None:
    """Raises :class:`CatalogMoved` if the endpoint, or its new model, exists by now."""
    [row] = proposal.content["endpoints"]
    made = ModelEndpoint.objects.filter(
        model__canonical_slug=row["model"],
        provider__slug=row["provider"],
        upstream_model_id=row["upstream_model_id"],
    )
    names = [name for model in proposal.content["models"] for name in
             (model["id"], model["canonical_slug"])]  # fmt: skip
    models = LanguageModel.objects.filter(slug__in=names) | LanguageModel.objects.filter(
        canonical_slug__in=names
    )
    if made.exists() or models.exists():
        raise CatalogMoved


def _missing_providers(proposal: CatalogProposal) -> list[Any]:
    """Returns the provider of a new endpoint if it is new too: a present one stays as it is.

    Raises :class:`CatalogMoved` if an operator has delisted it.
    """
    [row] = proposal.content["endpoints"]
    stored = Provider.objects.filter(slug=row["provider"]).first()
    if stored is None:
        return proposal.content["providers"]
    if not stored.is_listed:
        raise CatalogMoved
    return []


def _make_proposal(plan: ListPlan, row: PlannedRow) -> CatalogProposal:
    rows = {"providers": row.provider, "models": row.model, "endpoints": row.row}
    content = {kind: [msgspec.to_builtins(one)] if one else [] for kind, one in rows.items()}
    for endpoint in content["endpoints"]:
        # A correction of an estimate leaves the endpoint to the list that it came from.
        endpoint |= {
            "source": endpoint.get("source", plan.source),
            "as_of": endpoint.get("as_of", plan.as_of.isoformat()),
        }
    return CatalogProposal(
        source=plan.source,
        as_of=plan.as_of,
        subject=row.subject,
        endpoint_id=None if row.endpoint is None else row.endpoint.pk,
        reason=row.reason.value,
        risk=row.risk,
        changes=[change.members for change in row.changes],
        content=content,
        basis=row.basis,
    )


def _shown(proposal: CatalogProposal) -> bytes:
    """Returns what a person sees of a proposal; two that show the same are the same change."""
    return msgspec.json.encode(
        [proposal.subject, proposal.reason, proposal.changes], order="deterministic"
    )
