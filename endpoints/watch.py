"""The drift watch: validates active endpoints again and compares them with their activation."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db.models import F, Max, OuterRef, Q, QuerySet, Subquery, Sum, Window
from django.db.models.functions import RowNumber

from catalog.pricing import NANO
from config.api.errors import InvalidTransition, NotFound
from config.audit import context as audit
from config.clocks.clock import clock
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation, ValidationsBusy, ValidationSlot

ACTOR: Final = "drift watch"
# The batch is small, so that a stopping worker finishes soon.
_BATCH: Final = 20
# A round begins no more watches after this time, so that the next one gives all their turn again.
_ROUND_SECONDS: Final = 60.0


def watch_due() -> int:
    """Validates the active endpoints that are due, and returns their number.

    An endpoint is due ``WATCH_INTERVAL`` seconds after its last validation (0: never).
    Organizations take turns, each with its oldest first: the endpoints of one, which may be slow,
    dear and many, keep nobody else's waiting. Whose last turn is the longest ago comes first, also
    after a round that a slow one has ended. An organization has none while the watch has cost it
    ``WATCH_SPEND_LIMIT`` USD in the last 24 hours, or while it runs two validations already.
    """
    done, ends_at = 0, time.monotonic() + _ROUND_SECONDS
    for endpoint in _find_due() if settings.WATCH_INTERVAL else ():
        if time.monotonic() > ends_at:
            break
        if spent_today(endpoint.organization_id) >= settings.WATCH_SPEND_LIMIT * NANO:
            continue
        try:
            slot = ValidationSlot(organization_id=endpoint.organization_id).take()
        except ValidationsBusy:
            continue  # the endpoint stays due; the next round comes soon
        with slot:
            # Only one of several runners updates the row and validates the endpoint.
            claimed = PrivateEndpoint.objects.filter(
                pk=endpoint.pk, watched_at=endpoint.watched_at
            ).update(watched_at=clock.now())
            if claimed:
                slot.extend(validation.limit_seconds(endpoint))
                watch(endpoint)
                done += 1
    return done


def _find_due() -> QuerySet[PrivateEndpoint]:
    """Returns the endpoints of a round, in the order of their turns."""
    before = clock.now() - timedelta(seconds=settings.WATCH_INTERVAL)
    spent = _watched_today().values("endpoint__organization_id").annotate(cost=Sum("cost_nano"))
    spent = spent.filter(cost__gte=settings.WATCH_SPEND_LIMIT * NANO)
    oldest = (F("watched_at").asc(nulls_first=True), F("activated_at").asc())
    # A turn counts also when its endpoint is deleted meanwhile.
    own = PrivateEndpoint.objects.filter(organization=OuterRef("organization")).order_by()
    last_turn = own.values("organization").annotate(last=Max("watched_at")).values("last")
    return (
        PrivateEndpoint.objects.routable()
        .filter(Q(watched_at=None, activated_at__lt=before) | Q(watched_at__lt=before))
        .exclude(organization_id__in=spent.values("endpoint__organization_id"))
        .exclude(organization_id__in=ValidationSlot.busy_organizations())
        .annotate(turn=Window(RowNumber(), partition_by=F("organization_id"), order_by=oldest))
        .annotate(last_turn=Subquery(last_turn))
        .order_by("turn", F("last_turn").asc(nulls_first=True), *oldest)[:_BATCH]
    )


def watch(endpoint: PrivateEndpoint) -> Validation | None:
    """Validates an endpoint in the workspace that activated it, and records any drift.

    Asks only for what its activation has proven, because nothing else is routed there. The caller
    has a slot of the organization. ``WATCH_DISABLES`` disables an endpoint that has drifted, if the
    watch before has seen it too. Returns ``None`` when the endpoint was deleted or changed its
    state meanwhile.
    """
    baseline = endpoint.validation
    if baseline is None or baseline.workspace_id is None:
        return None
    had_drifted = endpoint.drifted_at is not None
    found = validation.examine(endpoint, workspace_id=baseline.workspace_id, baseline=baseline)
    found.purpose = Validation.Purpose.WATCH
    found.changes = found.differences_from(baseline)
    with audit.acting_as(ACTOR, ACTOR):
        return _record(endpoint, found, had_drifted=had_drifted)


def _record(
    endpoint: PrivateEndpoint, found: Validation, *, had_drifted: bool
) -> Validation | None:
    try:
        endpoint.record_watch(found)
        # Another deployment, which came meanwhile, has not drifted.
        has_drifted = found.shows_drift and endpoint.drifted_at is not None
        if has_drifted and had_drifted and settings.WATCH_DISABLES:
            endpoint.disable(by=ACTOR, reason=_reason(found))
    except (InvalidTransition, NotFound):
        return None
    return found


def spent_today(organization_id: uuid.UUID) -> int:
    """Returns what the watch of an organization has cost in the last 24 hours, in nano-USD."""
    watched = _watched_today().filter(endpoint__organization_id=organization_id)
    return watched.aggregate(total=Sum("cost_nano"))["total"] or 0


def _watched_today() -> QuerySet[Validation]:
    since = clock.now() - timedelta(days=1)
    return Validation.objects.filter(purpose=Validation.Purpose.WATCH, created_at__gte=since)


def _reason(found: Validation) -> str:
    failed = next((check for check in found.checks if not check["passed"]), None)
    if failed is not None:
        return f"{failed['name']}: {failed['reason']}"
    return "; ".join(
        f"{change['name']} was {change['was']}, is {change['is']}" for change in found.changes
    )
