"""Recognition of keys: what a worker remembers, for how long, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.models import ApiKey
from config import secrets
from config.api.errors import GatewayError, Unauthenticated, Unavailable
from config.secrets import KeyDigests
from config.server.bulkheads import Bulkheads
from inference.admission import recognition
from inference.admission.recognition import RecognizedKey, Recognizer
from inference.store import run_in_thread
from tests.support.factories import Tenant

Scenario = Callable[[Recognizer], Awaitable[None]]


@pytest.fixture
def digests(transactional_db: None, tenant: Tenant) -> KeyDigests:
    """The digests of the tenant's inference key, stored where other connections see it."""
    return KeyDigests(tenant.api_key)


def run(scenario: Scenario) -> None:
    async def within() -> None:
        recognizer = Recognizer(Bulkheads().refuse)
        try:
            await scenario(recognizer)
        finally:
            await recognizer.close()

    asyncio.run(within())


def make_up() -> KeyDigests:
    return KeyDigests(secrets.generate_api_key(is_management=False).reveal())


async def change(tenant: Tenant, **fields: Any) -> None:
    keys = ApiKey.objects.filter(organization=tenant.organization, name="inference")
    await run_in_thread(lambda: keys.update(**fields))


async def message_of(found: Awaitable[RecognizedKey]) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await found
    return caught.value.message


def test_a_key_is_recognized_with_its_organization(tenant: Tenant, digests: KeyDigests) -> None:
    key = ApiKey.objects.get(organization=tenant.organization, name="inference")

    async def scenario(recognizer: Recognizer) -> None:
        found = await recognizer.recognize(digests)
        assert (found.key_id, found.organization_id) == (key.pk, tenant.organization.pk)
        assert (found.digest, found.is_management) == (key.digest, False)

    run(scenario)


def test_a_known_key_is_believed_until_an_admission_refuses_it(
    tenant: Tenant, digests: KeyDigests
) -> None:
    async def scenario(recognizer: Recognizer) -> None:
        key = await recognizer.recognize(digests)
        await change(tenant, disabled=True)
        assert await recognizer.recognize(digests) is key
        message = await message_of(recognizer.recognize(digests, must_be_current=True))
        assert message == "The API key is disabled."
        await change(tenant, disabled=False)
        key = await recognizer.recognize(digests)
        await change(tenant, disabled=True)
        key.doubt()
        assert await message_of(recognizer.recognize(digests)) == "The API key is disabled."

    run(scenario)


def test_a_key_is_looked_up_again_unless_admissions_confirm_it(digests: KeyDigests) -> None:
    async def scenario(recognizer: Recognizer) -> None:
        key = await recognizer.recognize(digests)
        key.confirmed_at -= recognition._BELIEVED_SECONDS + 1
        key.confirm()
        assert await recognizer.recognize(digests) is key
        key.confirmed_at -= recognition._BELIEVED_SECONDS + 1
        assert await recognizer.recognize(digests) is not key

    run(scenario)


def test_a_key_works_as_soon_as_it_is_enabled_again(tenant: Tenant, digests: KeyDigests) -> None:
    async def scenario(recognizer: Recognizer) -> None:
        await change(tenant, expires_at=timezone.now() - timedelta(seconds=30))
        assert await message_of(recognizer.recognize(digests)) == "The API key has expired."
        await change(tenant, expires_at=None)
        assert (await recognizer.recognize(digests)).organization_id == tenant.organization.pk

    run(scenario)


@pytest.mark.usefixtures("transactional_db")
def test_an_unknown_key_is_remembered_for_a_moment() -> None:
    unknown = make_up()

    async def scenario(recognizer: Recognizer) -> None:
        assert await message_of(recognizer.recognize(unknown)) == "The API key is not valid."
        # A memory that needs no database answers the second request.
        async with recognizer._lock:
            async with asyncio.timeout(60):
                await message_of(recognizer.recognize(unknown))
        for name in recognizer._unknown:
            recognizer._unknown[name] -= recognition._REFUSED_SECONDS
        await message_of(recognizer.recognize(unknown))

    run(scenario)


def test_strangers_fill_a_bounded_memory_and_displace_no_known_key(
    digests: KeyDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition, "_REFUSED", 10)

    async def scenario(recognizer: Recognizer) -> None:
        key = await recognizer.recognize(digests)
        for _ in range(25):
            await message_of(recognizer.recognize(make_up()))
        assert len(recognizer._unknown) == 10
        assert await recognizer.recognize(digests) is key

    run(scenario)


def test_keys_beyond_the_memory_are_looked_up(
    tenant: Tenant, digests: KeyDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition, "_REMEMBERED", 1)
    management = KeyDigests(tenant.management_key)

    async def scenario(recognizer: Recognizer) -> None:
        key = await recognizer.recognize(digests)
        assert (await recognizer.recognize(management)).is_management
        again = await recognizer.recognize(digests)
        assert again is not key
        assert again.key_id == key.key_id
        assert len(recognizer._known) == 1

    run(scenario)


def test_strangers_wait_in_a_bounded_queue_and_known_keys_in_another(
    digests: KeyDigests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition, "_WAITING", 2)

    async def scenario(recognizer: Recognizer) -> None:
        key = await recognizer.recognize(digests)
        key.doubt()
        async with recognizer._lock:
            strangers = [asyncio.ensure_future(recognizer.recognize(make_up())) for _ in range(3)]
            known = asyncio.ensure_future(recognizer.recognize(digests))
            await asyncio.wait(strangers, return_when=asyncio.FIRST_COMPLETED)
            assert [each.done() for each in strangers] == [False, False, True]
        found: list[object] = await asyncio.gather(*strangers, known, return_exceptions=True)
        types = [Unauthenticated, Unauthenticated, Unavailable, RecognizedKey]
        assert [type(each) for each in found] == types
        refusal = found[2]
        assert isinstance(refusal, GatewayError)
        assert (refusal.status, refusal.headers) == (503, {"Retry-After": "1"})

    run(scenario)
