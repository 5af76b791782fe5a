"""Chat requests for admission, and the stores by which a worker admits and settles them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from catalog.dialects.base import Operation
from config.secrets import digest_api_key
from inference.admission.admit import AdmissionStore
from inference.admission.decide import Admission, AdmissionRequest
from inference.requests import parsing
from inference.requests.parsing import InferenceRequest
from inference.routing.health import HealthTable
from inference.settlement.settle import Settlement, SettlementStore
from tests.support.inference.site import Site


def parsed(body: dict[str, Any], operation: Operation = Operation.CHAT) -> InferenceRequest:
    return parsing.parse(operation, json.dumps(body).encode())


def bound_of(body: dict[str, Any]) -> int:
    """Returns the upper bound of the prompt tokens of a chat."""
    return parsed(body).prompt_bound


def entry_of(site: Site, key: str | None = None, **fields: Any) -> AdmissionRequest:
    """Returns a chat of the site's model for admission, with the tenant's key or another one."""
    digest = digest_api_key(key or site.tenant.api_key)
    return AdmissionRequest(digest, parsed(site.chat_body(**fields)), "r")


@asynccontextmanager
async def worker(
    health: HealthTable | None = None,
) -> AsyncIterator[tuple[AdmissionStore, SettlementStore]]:
    """Yields the stores of one worker, and closes them."""
    admissions, settlements = AdmissionStore(health or HealthTable()), SettlementStore()
    try:
        yield admissions, settlements
    finally:
        await admissions.close()
        await settlements.close()


async def cancel(settlements: SettlementStore, found: object) -> None:
    """Ends an admission that must have succeeded."""
    assert isinstance(found, Admission)
    await settlements.store([Settlement(found.generation_id, "cancelled")])
