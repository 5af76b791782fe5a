"""Validations of private endpoints, and the checks that they consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connections

from accounts.models import workspace_for
from endpoints import validation
from endpoints.models import PrivateEndpoint, Validation
from endpoints.validation import HostScope
from tests.support.simulator.server import Simulator


def validate(
    draft: PrivateEndpoint, *, scope: HostScope = HostScope.PERMITTED, **options: Any
) -> Validation:
    """Validates the draft in the default workspace of its organization."""
    options["asker"] = validation.Asker(lambda: None, scope)
    workspace = workspace_for(draft.organization.pk, None)
    return validation.run(draft, workspace_id=workspace.pk, **options)


def row_of(endpoint: PrivateEndpoint) -> dict[str, Any]:
    row: dict[str, Any] = PrivateEndpoint.objects.filter(pk=endpoint.pk).values().get()
    return row


def passed(names: Iterable[str]) -> list[dict[str, Any]]:
    return [{"name": name, "passed": True} for name in names]


def failed(
    name: str, reason: str, message: str | None = None, *, status: int | None = None, kind: str = ""
) -> dict[str, Any]:
    check: dict[str, Any] = {"name": name, "passed": False, "reason": reason}
    if kind:
        check["kind"] = kind
    if status is not None:
        check["upstream_status"] = status
    if message is not None:
        check["upstream_message"] = message
    return check


def wait_until_held(upstream: Simulator) -> None:
    """Waits for a call to ``sim-held``, which the upstream holds."""

    def is_asked() -> bool:
        return any(b"sim-held" in request.raw for request in upstream.requests)

    assert upstream.wait_until(is_asked)


@contextmanager
def held(upstream: Simulator, call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Runs a call to ``sim-held`` in a thread; the upstream answers when the block has ended."""

    def run() -> Any:
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(run)
        wait_until_held(upstream)
        try:
            yield pending
        finally:
            upstream.release(2)
        pending.result(60)
