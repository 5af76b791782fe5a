"""A thief with a copy of the database, and many first uses at once while peppers rotate."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import requests

from accounts.models import ApiKey, KeyDigest
from inference.models import Generation
from tests.support.bulkheads.counters import read_counter
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, Site
from tests.support.processes import serve

NEW = "n" * 40


def test_what_a_dump_has_of_a_key_is_no_key(
    service: Site, is_served: Callable[[], bool], neighbour: Tenant
) -> None:
    texts = {
        *KeyDigest.objects.values_list("digest", flat=True),
        *ApiKey.objects.values_list("label", flat=True),
        *ApiKey.objects.values_list("pk", flat=True),
    }
    assert set(ApiKey.objects.values_list("digest", flat=True)) <= texts
    refused = read_counter(service.server, "causeway_refusals_total", status="401")
    count = 0
    for text in texts:
        for prefix in ("", "sk-cw-", "mk-cw-"):
            headers = {"Authorization": f"Bearer {prefix}{text}".encode()}
            body = service.chat_body("one two")
            answers = (
                requests.post(f"{service.server}{CHAT}", json=body, headers=headers, timeout=60),
                requests.get(f"{service.server}/api/v1/key", headers=headers, timeout=60),
            )
            assert [answer.status_code for answer in answers] == [401, 401]
            count += 1
    assert not Generation.objects.exists()
    # The data plane counts its own refusals.
    assert read_counter(service.server, "causeway_refusals_total", status="401") == refused + count
    assert is_served()


def test_many_first_uses_at_once_renew_a_key_once(
    site: Site, together: Callable[..., list[Any]], eventually: Callable[..., None]
) -> None:
    """Two workers and both planes find the key by the old pepper at the same moment."""
    site.publish()
    peppers = f"{NEW},{os.environ['SECRET_KEY']}"
    keys = list(ApiKey.objects.order_by("pk"))
    before = set(KeyDigest.objects.values_list("digest", flat=True))
    headers = {"Authorization": f"Bearer {site.tenant.management_key}"}
    with serve("--workers", "2", KEY_PEPPERS=peppers, SECRET_KEY="s" * 40) as served:
        site.server = served.address

        def manage() -> int:
            address = f"{served.address}/api/v1/key"
            return requests.get(address, headers=headers, timeout=60).status_code

        def chat() -> int:
            return site.chat().status_code

        assert together(*[manage, chat] * 12) == [200] * 24
        eventually(lambda: KeyDigest.objects.count() == len(before) + len(keys))
        assert together(*[manage, chat] * 4) == [200] * 8
        refused = site.post(site.chat_body("one two"), key=f"{site.tenant.api_key[:-1]}x")
        assert refused.status_code == 401
    assert KeyDigest.objects.count() == len(before) + len(keys)
    assert before < set(KeyDigest.objects.values_list("digest", flat=True))
    assert list(ApiKey.objects.order_by("pk").values_list("digest", "updated_at")) == [
        (key.digest, key.updated_at) for key in keys
    ]
