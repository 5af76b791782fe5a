"""A workspace that broadcasts to one receiver, as one object."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.models import BroadcastDestination, BroadcastProgress
from inference.broadcast.sender import Broadcaster
from tests.support.broadcast.destinations import make_past_generation, progress_of
from tests.support.broadcast.traces import TraceReceiver
from tests.support.factories import Tenant


@dataclass
class Feed:
    """Sends the generations of a tenant's workspace to a receiver."""

    tenant: Tenant
    receiver: TraceReceiver
    destination: BroadcastDestination
    broadcaster: Broadcaster

    def make(self, count: int) -> list[str]:
        return make_some(self.tenant, count)

    def run(self) -> int:
        return self.broadcaster.run()

    def progress(self) -> BroadcastProgress:
        return progress_of(self.destination)


def make_some(tenant: Tenant, count: int) -> list[str]:
    """Makes generations, the oldest first, and returns their ids."""
    minutes = range(count, 0, -1)
    return [make_past_generation(tenant, minutes=minute).pk for minute in minutes]
