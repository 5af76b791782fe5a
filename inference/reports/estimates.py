"""Proposes to correct the estimates that differ much from what providers report."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from msgspec.structs import replace

from billing.models import Excess
from catalog import imports
from catalog.abilities import read_abilities
from catalog.models import CatalogProposal, ModelEndpoint
from catalog.rows import endpoint_key, endpoint_row
from catalog.sync.planning import ListPlan, PlannedRow, digest_of, stored_endpoints
from catalog.sync.plans.comparing import Change
from catalog.sync.plans.wording import ESTIMATE
from catalog.sync.proposals import file_proposals, lock_waiting
from catalog.tokens import UNSTATED_LIMITS, correct_family, find_family
from config.audit import context as audit
from config.clocks.clock import clock
from inference.models import Generation, TokenSum
from inference.routing.fairness import TokenSource

_SOURCE: Final = "usage"
_MOST_BIAS: Final = 1.4
# Fewer reported tokens may be those of one odd text.
_LEAST_TOKENS: Final = 100_000
_LEAST_CLAIMS: Final = 3


def propose_estimates() -> int:
    """Proposes a factor for each script whose estimate errs by more than 1.4, at each endpoint.

    Where claims under review exceed the bounds of prompts, a larger ``bound.prompt`` is proposed
    too. Returns the number of endpoints with a proposal that waits. Nothing changes until an
    operator approves it. The sums of other weights, and of endpoints that are gone, are deleted.
    """
    with audit.acting_as_nobody(), transaction.atomic():
        lock_waiting(_SOURCE)
        imports.lock_catalogue()
        TokenSum.objects.exclude(endpoint_id__in=ModelEndpoint.objects.values("pk")).delete()
        told = Q(pk__in=TokenSum.objects.values("endpoint_id")) | Q(
            pk__in=Excess.objects.under_review().values("endpoint_id")
        )
        rows = [
            row
            for endpoint in stored_endpoints().filter(told, is_listed=True)
            if (row := _plan(endpoint)) is not None
        ]
        return file_proposals(ListPlan(_SOURCE, clock.now().date()), rows)


def _plan(endpoint: ModelEndpoint) -> PlannedRow | None:
    """Plans the factors of an endpoint; ``None`` if its estimates are fair."""
    stated = read_abilities(endpoint.abilities)
    family = find_family(endpoint.model.tokenizer, endpoint.model.lineage)
    sums = TokenSum.objects.filter(endpoint_id=endpoint.pk)
    mark = correct_family(family, stated.estimate).mark
    sums.exclude(mark=mark).delete()
    factors: dict[Any, float] = {**stated.estimate}
    changes: list[Change] = []
    for script, bias in sorted(_find_biases(sums).items()):
        old = factors.get(script, 1.0)
        factors[script] = max(round(old * bias, 1), 0.1)
        changes.append(Change(f"{ESTIMATE}{script}", f"{old:g}", f"{factors[script]:g}"))
    bound = stated.bound
    if added := _find_added(endpoint):
        bound = replace(bound, prompt=(bound.prompt or 0) + added)
        changes.append(Change("bound.prompt", str(stated.bound.prompt or 0), str(bound.prompt)))
    if not changes:
        return None
    row = replace(
        endpoint_row(endpoint),
        abilities=replace(stated, estimate=factors, bound=bound),
        source=endpoint.source,
        as_of=endpoint.as_of,
    )
    return PlannedRow(
        # A subject of its own: a price that waits holds up no correction, nor the reverse.
        f"{' '.join(endpoint_key(row))} estimate",
        CatalogProposal.Reason.CHANGE,
        changes,
        waits=True,
        row=row,
        endpoint=endpoint,
        basis=digest_of(endpoint),
    )


def _find_added(endpoint: ModelEndpoint) -> int:
    """Returns by how many tokens prompts have exceeded their bounds since the last change.

    Returns 0 if fewer than three have: one may have a medium that counts more.
    """
    more = F("claimed_prompt_tokens") - F("allowed_prompt_tokens")
    claims = Excess.objects.under_review().filter(
        endpoint_id=endpoint.pk, created_at__gt=endpoint.updated_at
    )
    if endpoint.provider.base_url is None:
        # A tenant's own credential may name a server that claims what it likes.
        claims = claims.filter(
            Exists(Generation.objects.filter(pk=OuterRef("reference"), is_byok=False))
        )
    found = (
        claims.annotate(more=more)
        .filter(more__gt=0, more__lte=UNSTATED_LIMITS.grown)
        .values_list("more", flat=True)
    )
    return max(found) if len(found) >= _LEAST_CLAIMS else 0


def _find_biases(sums: QuerySet[TokenSum]) -> dict[str, float]:
    """Returns what the estimates of each script must be multiplied with, if that is much."""
    tokens: dict[str, dict[str, int]] = defaultdict(dict)
    for each in sums:
        tokens[each.script][each.kind] = each.tokens
    biases = {
        script: kinds.get(TokenSource.REPORTED, 0) / max(kinds.get(TokenSource.ESTIMATED, 0), 1)
        for script, kinds in tokens.items()
        if min(kinds.get(source, 0) for source in TokenSource) >= _LEAST_TOKENS
    }
    return {
        script: bias for script, bias in biases.items() if not 1 / _MOST_BIAS <= bias <= _MOST_BIAS
    }
