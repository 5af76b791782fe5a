"""Broadcast destinations for tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.conf import settings

from accounts.destinations.receivers import MASK, read_receiver
from accounts.models import BroadcastDestination, BroadcastProgress, Workspace
from config.clocks.clock import clock
from inference.models import Generation
from tests.support.factories import Tenant, make_generation

__all__ = (
    "CONFIG", "MASK", "SECRET", "broadcast_to", "make_destination", "make_past_generation",
    "progress_of", "retry_now", "rewind",
)  # fmt: skip

SECRET: Final = "Bearer canary-of-destinations"
CONFIG: Final[dict[str, Any]] = {
    "endpoint": "https://otel.example/v1/traces",
    "headers": {"Authorization": SECRET},
}


def make_destination(
    workspace: Workspace,
    config: dict[str, Any] | None = None,
    *,
    kind: str = "otel-collector",
    **fields: Any,
) -> BroadcastDestination:
    fields = {"name": "Traces", "regions": ["global"], **fields}
    receiver = read_receiver(kind, config or CONFIG, settings.EGRESS_POLICY)
    destination: BroadcastDestination = BroadcastDestination.objects.create_destination(
        workspace, kind=kind, receiver=receiver, **fields
    )
    return destination


def broadcast_to(
    workspace: Workspace, url: str, *, minutes: float = 60, **fields: Any
) -> BroadcastDestination:
    """Lets a workspace broadcast to a URL, from generations of the last ``minutes`` on."""
    Workspace.objects.get(pk=workspace.pk).edit(is_observability_broadcast_enabled=True)
    member = "url" if fields.get("kind") == "webhook" else "endpoint"
    config = fields.pop("config", {})
    destination = make_destination(workspace, {member: url, **config}, **fields)
    rewind(destination, minutes)
    return destination


def rewind(destination: BroadcastDestination, minutes: float = 60) -> None:
    since = clock.now() - timedelta(minutes=minutes)
    BroadcastProgress.objects.filter(pk=destination.pk).update(cursor_at=since, cursor_id="")


def retry_now() -> None:
    """Lets every destination that waits be tried at once."""
    BroadcastProgress.objects.update(retry_at=None)


def progress_of(destination: BroadcastDestination) -> BroadcastProgress:
    return BroadcastProgress.objects.get(pk=destination.pk)


def make_past_generation(tenant: Tenant, *, minutes: float = 5, **fields: Any) -> Generation:
    """A generation that was admitted some minutes ago."""
    return make_generation(tenant, created_at=clock.now() - timedelta(minutes=minutes), **fields)
