"""Rights that are taken away while two hosts are asked to act on them."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from accounts.models import ApiKey
from catalog.dialects.base import Operation
from catalog.models import ModelEndpoint
from config.secrets import digest_api_key
from inference.requests import parsing
from tests.support import factories, governance
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, Site

_ANSWERS: Final = 10
_CALLERS: Final = 6
_RIGHTS_OF_A_TENANT: Final = 5
_SECONDS: Final = 60.0
# A token of either kind costs this.
_TOKEN_NANO: Final = 1_000
_RATE: Final = "0.000001"
# The simulator counts words: two of the prompt, and four of its answer to them.
_ANSWER_NANO: Final = 6 * _TOKEN_NANO


@dataclass
class Right:
    """What one key may do, how it is taken away, and the statuses that refuse it afterwards.

    ``answers`` is the exact number of requests that it ever pays for, if it is a budget.
    """

    key: str
    body: dict[str, Any]
    management_key: str
    refusals: frozenset[int]
    method: str = ""
    path: str = ""
    change: Any = None
    answers: int | None = None
    taken_at: float = float("inf")
    # Each request: the host's number, when it began, its status.
    sent: list[tuple[int, float, int]] = field(default_factory=list)

    def stale(self) -> int:
        """Returns the number of requests that were served although they began too late."""
        late = sum(status == 200 and began > self.taken_at for _, began, status in self.sent)
        if self.answers is None:
            return late
        return late + max(self.served() - self.answers, 0)

    def served(self) -> int:
        return sum(status == 200 for _, _, status in self.sent)

    def refused_by(self) -> Counter[int]:
        """Counts the refusals after the change by the host's number."""
        return Counter(
            host for host, began, status in self.sent if began > self.taken_at and status != 200
        )

    def unexpected(self) -> list[int]:
        """Returns statuses that are neither an answer nor the right's refusal."""
        return [status for _, _, status in self.sent if status not in self.refusals | {200}]


def make_rights(site: Site, kind: str, count: int) -> list[Right]:
    """Creates rights of a kind: ``revoke``, ``disable``, ``tighten`` or ``spend``.

    Five of them belong to one organization, so that a change meets the requests of another right.
    """
    price = factories.make_price(_RATE, _RATE)
    if kind != "disable" and not ModelEndpoint.objects.filter(model=site.model).exists():
        site.publish(price=price)
    tenants: Iterator[Tenant] = itertools.chain.from_iterable(
        itertools.repeat(factories.make_tenant(f"{kind} {number}"), _RIGHTS_OF_A_TENANT)
        for number in itertools.count()
    )
    make = {"revoke": _revoke, "disable": _disable, "tighten": _tighten, "spend": _spend}[kind]
    return [make(site, tenant) for tenant in itertools.islice(tenants, count)]


def _body(site: Site, model: str | None = None) -> dict[str, Any]:
    return {**site.chat_body(max_tokens=16), "model": model or site.model.slug}


def _key(tenant: Tenant, **fields: Any) -> tuple[ApiKey, str]:
    key, secret = ApiKey.objects.create_key(workspace=tenant.workspace, name="k", **fields)
    return key, secret.reveal()


def _revoke(site: Site, tenant: Tenant) -> Right:
    _, secret = _key(tenant)
    path = f"keys/{digest_api_key(secret)}"
    return Right(secret, _body(site), tenant.management_key, frozenset({401}), "DELETE", path)


def _disable(site: Site, tenant: Tenant) -> Right:
    model = factories.make_model()
    price = factories.make_price(_RATE, _RATE)
    endpoint = factories.make_active(
        tenant, model, site.provider, base_url=site.upstream.base_url, price=price
    )
    path = f"private-endpoints/{endpoint.pk}/disable"
    body = _body(site, model.slug)
    return Right(tenant.api_key, body, tenant.management_key, frozenset({404}), "POST", path, {})


def _tighten(site: Site, tenant: Tenant) -> Right:
    key, secret = _key(tenant)
    guardrail = governance.make_guardrail(tenant.workspace, name=str(key.pk))
    guardrail.assign_keys([key], by="test")
    change = {"ignored_providers": [site.provider.slug]}
    path = f"guardrails/{guardrail.pk}"
    return Right(
        secret, _body(site), tenant.management_key, frozenset({404}), "PATCH", path, change
    )


def _spend(site: Site, tenant: Tenant) -> Right:
    body = _body(site)
    request = parsing.parse(Operation.CHAT, json.dumps(body).encode())
    hold = _TOKEN_NANO * (request.prompt_bound + (request.max_tokens or 0))
    # The hold of the last request still fits, and that of another one does not.
    _, secret = _key(tenant, limit_nano=(_ANSWERS - 1) * _ANSWER_NANO + hold)
    return Right(secret, body, tenant.management_key, frozenset({402, 403}), answers=_ANSWERS)


class Race:
    """Takes rights away one by one, while several callers ask both hosts for them."""

    def __init__(self, hosts: tuple[str, str], rights: list[Right]) -> None:
        self._hosts = hosts
        self._rights = rights
        self._current = 0
        self._is_over = threading.Event()

    def run(self) -> None:
        """Returns when all rights were taken away and refused by both hosts."""
        with ThreadPoolExecutor(_CALLERS) as pool, requests.Session() as session:
            callers = [pool.submit(self._call, seed) for seed in range(_CALLERS)]
            try:
                for number, right in enumerate(self._rights):
                    self._current = number
                    for host in (0, 1):
                        self._ask(session, right, host)
                    self._take_away(session, right, number % 2)
                    for host in (0, 1, 0, 1):
                        self._ask(session, right, host)
            finally:
                self._is_over.set()
            for caller in callers:
                caller.result()

    def _take_away(self, session: requests.Session, right: Right, host: int) -> None:
        if right.answers is None:
            answer = session.request(
                right.method,
                f"{self._hosts[host]}/api/v1/{right.path}",
                json=right.change,
                headers={"Authorization": f"Bearer {right.management_key}"},
                timeout=_SECONDS,
            )
            assert answer.status_code == 200, answer.text
        else:
            deadline = time.monotonic() + _SECONDS
            while right.served() < right.answers:
                self._ask(session, right, host)
                assert time.monotonic() < deadline, "the budget is not spent"
        right.taken_at = time.monotonic()

    def _call(self, seed: int) -> None:
        """Asks for the right that is being taken away, and for those around it."""
        dice = random.Random(seed)
        with requests.Session() as session:
            while not self._is_over.is_set():
                number = self._current + dice.choice((-1, 0, 0, 0, 1))
                right = self._rights[min(max(number, 0), len(self._rights) - 1)]
                self._ask(session, right, dice.randrange(2))

    def _ask(self, session: requests.Session, right: Right, host: int) -> None:
        began = time.monotonic()
        status = session.post(
            f"{self._hosts[host]}{CHAT}",
            json=right.body,
            headers={"Authorization": f"Bearer {right.key}"},
            timeout=_SECONDS,
        ).status_code
        right.sent.append((host, began, status))
