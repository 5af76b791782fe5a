"""Requests with an Idempotency-Key: one upstream call and one charge, whoever repeats them."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import requests
from django.conf import LazySettings
from django.db.models import F

from accounts.models import ApiKey, Guardrail, Workspace
from billing.models import Transfer
from catalog.models import ModelEndpoint
from inference.models import Generation, IdempotentRequest, KeptAnswer
from inference.repeats.clearing import clear_expired
from inference.repeats.key_uses import KeyUses
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.inference.repeats import (
    KEY,
    is_replayed,
    keep_answers,
    send,
    wait_until_kept,
)
from tests.support.inference.site import (
    ASKED,
    MESSAGES,
    RESPONSES,
    TEXT,
    Site,
    content_of,
    events_of,
)
from tests.support.ledger import assert_in_order


def wait_until_ended(site: Site) -> None:
    site.eventually(lambda: not IdempotentRequest.objects.filter(ended_at=None).exists())


def another_model(site: Site, behaviour: str) -> str:
    """Publishes another model; returns its name."""
    model = factories.make_model("acme/other")
    site.publish(behaviour, model=model)
    return str(model.slug)


def refusal(answer: requests.Response, status: int = 409) -> dict[str, Any]:
    """Returns what a refused request is told."""
    assert answer.status_code == status
    metadata: dict[str, Any] = answer.json()["error"]["metadata"]
    return metadata


def make_wav(seconds: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(16_000 * seconds))
    return file.getvalue()


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeat_gets_the_kept_answer_without_a_call_or_a_charge(kept: Site, stream: bool) -> None:
    body = kept.chat_body("one two", stream=stream)
    first = send(kept, body)
    assert not is_replayed(first)
    kept.settled()
    wait_until_kept(kept)
    with unchanged():
        again = send(kept, body)

    assert (again.status_code, again.content) == (200, first.content)
    assert is_replayed(again)
    for name in ("Content-Type", "X-Generation-Id"):
        assert again.headers[name] == first.headers[name]
    assert again.headers["X-Request-Id"] != first.headers["X-Request-Id"]
    assert len(kept.dialled()) == 1
    assert_in_order()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [TEXT, MESSAGES, RESPONSES])
def test_each_face_replays_the_very_bytes(kept: Site, path: str, stream: bool) -> None:
    body = {"model": kept.model.slug, "stream": stream, **ASKED[path]}
    first = send(kept, body, path=path)
    assert first.status_code == 200, first.text
    wait_until_kept(kept)
    again = send(kept, body, path=path)
    assert (is_replayed(again), again.content) == (True, first.content)
    assert len(kept.dialled()) == 1


def test_an_embedding_is_replayed(kept: Site) -> None:
    body = {"model": kept.model.slug, "input": ["one", "two"]}
    first = send(kept, body, path="/api/v1/embeddings")
    again = send(kept, body, path="/api/v1/embeddings")
    assert (is_replayed(again), again.json()) == (True, first.json())


def test_what_is_stored_of_a_request_tells_nothing_without_the_pepper(
    published: Site, settings: LazySettings
) -> None:
    """Otherwise a reader of the database could try out what was asked."""
    send(published, key="first")
    send(published, key="second")
    settings.KEY_PEPPERS = ["p" * 32, *settings.KEY_PEPPERS]
    send(published, key="third")
    published.eventually(lambda: IdempotentRequest.objects.exclude(ended_at=None).count() == 3)
    rows = IdempotentRequest.objects.order_by("id").values_list("fingerprint", flat=True)
    first, second, third = map(bytes, rows)
    assert first == second != third


def test_without_kept_answers_a_repeat_is_refused_with_the_generation(published: Site) -> None:
    first = send(published)
    published.settled()
    wait_until_ended(published)
    with unchanged():
        again = send(published)

    assert refusal(again) == {
        "error_type": "idempotent_answer_not_kept",
        "generation_id": first.json()["id"],
    }
    assert again.headers["X-Generation-Id"] == first.json()["id"]
    assert again.headers["x-should-retry"] == "false"
    assert "Retry-After" not in again.headers
    assert len(published.dialled()) == 1
    assert not KeptAnswer.objects.exists()


@pytest.mark.parametrize("is_kept", [False, True])
def test_another_body_with_the_key_is_refused(published: Site, is_kept: bool) -> None:
    if is_kept:
        keep_answers(published.tenant)
    send(published, published.chat_body("one two"))
    published.settled()
    wait_until_ended(published)
    with unchanged():
        for body in (published.chat_body("one twp"), published.chat_body("one two", stream=True)):
            assert refusal(send(published, body), 422)["error_type"] == "idempotency_key_reused"
    assert len(published.dialled()) == 1


def test_a_key_belongs_to_one_api_key_and_one_route(kept: Site, neighbour: Tenant) -> None:
    _, other = ApiKey.objects.create_key(workspace=kept.tenant.workspace, name="other")
    answers = [
        send(kept),
        send(kept, by=other.reveal()),
        send(kept, by=neighbour.api_key),
        send(kept, {"model": kept.model.slug, **ASKED[TEXT]}, path=TEXT),
    ]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert not any(map(is_replayed, answers))
    assert len(kept.dialled()) == 4


def test_a_key_belongs_to_the_region_by_which_the_first_request_came(
    kept: Site, settings: Any
) -> None:
    settings.REGION_HOSTS = {"eu.example.com": "europe"}
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, *settings.REGION_HOSTS]
    ModelEndpoint.objects.update(region="europe")
    first = send(kept)
    kept.settled()
    wait_until_kept(kept)
    with unchanged():
        through = send(kept, headers={"Host": "eu.example.com"})

    assert refusal(through, 422)["error_type"] == "idempotency_key_reused"
    assert not is_replayed(through)
    assert len(kept.dialled()) == 1
    again = send(kept)
    assert (is_replayed(again), again.content) == (True, first.content)
    assert send(kept, key="another", headers={"Host": "eu.example.com"}).status_code == 200


@pytest.mark.parametrize(
    "key",
    ["", "x" * 256, "tab\there", "caf\u00e9", "bell\x07"],
    ids=["0", "256", "tab", "é", "ctl"],
)
def test_a_malformed_key_is_refused(published: Site, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    answer = published.post(published.chat_body(), headers=headers)
    assert answer.status_code == 400, answer.text
    published.assert_nothing_happened()
    assert not IdempotentRequest.objects.exists()


@pytest.mark.parametrize("key", ["x", "x" * 255, "! ~"])
def test_the_longest_and_the_shortest_key_are_accepted(published: Site, key: str) -> None:
    assert send(published, key=key).status_code == 200


def test_a_request_that_is_refused_frees_its_key(site: Site) -> None:
    assert send(site).status_code in (402, 404)
    assert not IdempotentRequest.objects.exists()
    site.publish()
    assert send(site).status_code == 200


def test_a_malformed_request_does_not_use_its_key(published: Site) -> None:
    assert send(published, published.chat_body(temperature="warm")).status_code == 400
    assert send(published).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_without_a_charge_frees_its_key(kept: Site, stream: bool) -> None:
    body = kept.chat_body("one two", stream=stream)
    slug = another_model(kept, "sim-status-500")
    failed = send(kept, {**body, "model": slug})
    assert failed.status_code == 502
    assert not IdempotentRequest.objects.exists()
    again = send(kept, {**body, "model": slug})
    assert (again.status_code, is_replayed(again)) == (502, False)
    assert send(kept, body).status_code == 200
    # The answers of errors are copied after the request has left its worker's counts.
    kept.eventually(lambda: read_counter(kept.server, "causeway_buffered_bytes") == 0)


def test_a_second_request_joins_the_one_that_runs(
    kept: Site, together: Callable[..., list[Any]]
) -> None:
    slug = another_model(kept, "sim-slow:1,0.02")
    for stream in (False, True):
        body = {**kept.chat_body("one two three"), "model": slug, "stream": stream}
        key = f"join {stream}"
        answers = together(*[lambda: send(kept, body, key=key)] * 6)  # noqa: B023
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert sum(map(is_replayed, answers)) == 5
    assert len(kept.dialled()) == 2
    kept.wait_for_settlement()
    assert Transfer.objects.filter(kind="usage").count() == 2
    assert_in_order()


def test_a_second_request_without_kept_answers_does_not_wait(site: Site) -> None:
    site.publish("sim-slow:2,0.02")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, site)
        site.eventually(lambda: Generation.objects.filter(status="pending").exists())
        metadata = refusal(send(site))
        assert metadata["error_type"] == "idempotent_request_running"
        assert first.result().status_code == 200
    assert metadata["generation_id"] == first.result().json()["id"]
    assert len(site.dialled()) == 1


def test_those_who_joined_a_request_that_fails_run_it_themselves(
    kept: Site, together: Callable[..., list[Any]]
) -> None:
    slug = another_model(kept, "sim-status-500")
    body = {**kept.chat_body(), "model": slug}
    answers = together(*[lambda: send(kept, body)] * 4)
    assert {answer.status_code for answer in answers} == {502}
    assert not IdempotentRequest.objects.exists()
    assert_in_order()


def test_a_request_waits_for_another_one_no_longer_than_it_says(kept: Site) -> None:
    slug = another_model(kept, "sim-held")
    body = {**kept.chat_body(), "model": slug}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, kept, body)
        kept.eventually(lambda: len(kept.dialled()) == 1)
        second = send(kept, body, headers={"X-Request-Timeout": "0.5"})
        kept.upstream.release()
        assert first.result().status_code == 200
    assert refusal(second)["error_type"] == "idempotent_request_running"
    assert is_replayed(send(kept, body))


def leave_early(site: Site, body: dict[str, Any]) -> str:
    """Reads the first events of a stream and closes the connection; returns the generation."""
    with send(site, body, stream=True) as answer:
        assert answer.status_code == 200
        next(answer.iter_content(64))
        return answer.headers["X-Generation-Id"]


def test_a_caller_who_lost_its_connection_gets_the_whole_stream_again(kept: Site) -> None:
    slug = another_model(kept, "sim-slow:0,0.1")
    words = " ".join(["word"] * 10)
    body = {**kept.chat_body(words, stream=True), "model": slug}
    generation_id = leave_early(kept, body)

    again = send(kept, body)

    assert is_replayed(again)
    assert again.headers["X-Generation-Id"] == generation_id
    assert content_of(events_of(again.text)).count("word") == 10
    row = kept.settled()
    assert (row.status, row.pk) == ("completed", generation_id)
    assert len(kept.dialled()) == 1
    assert_in_order()


def test_a_caller_who_left_is_charged_as_ever_where_nothing_is_kept(site: Site) -> None:
    site.publish("sim-slow:0,0.1")
    body = site.chat_body(" ".join(["word"] * 40), stream=True)
    generation_id = leave_early(site, body)
    row = site.settled()
    assert (row.status, row.prompt_tokens is None) == ("cancelled", False)
    assert refusal(send(site, body))["generation_id"] == generation_id


def test_a_key_outlives_a_request_that_takes_longer_than_its_lifetime(
    site: Site, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker may die, or its caller read slowly, between the charge and the end of the use."""

    async def never_end(self: KeyUses, organization_id: UUID, generation_id: str) -> None:
        return

    settings.IDEMPOTENCY_TTL = 1
    monkeypatch.setattr(KeyUses, "end", never_end)
    site.publish("sim-slow:2,0.02")
    assert send(site).status_code == 200
    site.settled()
    assert clear_expired() == 0
    assert send(site).status_code == 409
    assert len(site.dialled()) == 1


def test_a_key_is_forgotten_after_its_lifetime(kept: Site) -> None:
    send(kept)
    kept.settled()
    wait_until_ended(kept)
    IdempotentRequest.objects.update(expires_at=F("expires_at") - timedelta(seconds=601))
    KeptAnswer.objects.update(expires_at=F("expires_at") - timedelta(seconds=601))

    answer = send(kept, kept.chat_body("another body"))

    assert (answer.status_code, is_replayed(answer)) == (200, False)
    assert len(kept.dialled()) == 2


def test_the_duty_deletes_what_has_expired_and_nothing_else(kept: Site) -> None:
    for key in ("old", "new"):
        send(kept, key=key)
    wait_until_ended(kept)
    kept.wait_for_settlement()
    past = F("expires_at") - timedelta(seconds=601)
    old = IdempotentRequest.objects.get(key="old")
    IdempotentRequest.objects.filter(pk=old.pk).update(expires_at=past)
    KeptAnswer.objects.filter(generation_id=old.generation_id).update(expires_at=past)
    assert clear_expired() == 2
    assert IdempotentRequest.objects.get().key == "new"
    assert KeptAnswer.objects.get().generation_id != old.generation_id


def test_the_key_of_a_request_that_runs_is_not_forgotten(site: Site) -> None:
    site.publish("sim-slow:2,0.02")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(send, site)
        site.eventually(lambda: Generation.objects.filter(status="pending").exists())
        IdempotentRequest.objects.update(expires_at=F("expires_at") - timedelta(days=1))
        assert clear_expired() == 0
        assert send(site).status_code == 409
        assert first.result().status_code == 200
    assert len(site.dialled()) == 1


def test_an_answer_that_cannot_be_decrypted_is_none(kept: Site) -> None:
    first = send(kept)
    wait_until_kept(kept)
    row = KeptAnswer.objects.get()
    assert b"one" not in bytes(row.sealed)
    sealed = bytes(row.sealed)
    KeptAnswer.objects.update(sealed=sealed[:-1] + bytes((sealed[-1] ^ 1,)))
    assert refusal(send(kept))["generation_id"] == first.json()["id"]
    assert len(kept.dialled()) == 1


def test_an_answer_of_another_generation_cannot_be_put_in_its_place(kept: Site) -> None:
    send(kept, kept.chat_body("a secret"), key="one")
    send(kept, kept.chat_body("the other"), key="two")
    wait_until_kept(kept, 2)
    one, two = KeptAnswer.objects.order_by("id")
    KeptAnswer.objects.filter(pk=two.pk).update(sealed=one.sealed)
    assert send(kept, kept.chat_body("the other"), key="two").status_code == 409


def test_a_large_answer_is_not_kept(kept: Site, settings: Any) -> None:
    settings.KEPT_ANSWER_BYTES = 200
    for stream in (False, True):
        body = kept.chat_body("one two", stream=stream)
        key = f"large {stream}"
        assert send(kept, body, key=key).status_code == 200
        wait_until_ended(kept)
        assert send(kept, body, key=key).status_code == 409
    assert not KeptAnswer.objects.exists()
    assert len(kept.dialled()) == 2


def test_an_organization_loses_only_its_own_oldest_answers(
    kept: Site, neighbour: Tenant, settings: Any
) -> None:
    keep_answers(neighbour)
    settings.ORGANIZATION_KEPT_BYTES = 3 * 16_384
    send(kept, key="theirs", by=neighbour.api_key)
    for number in range(5):
        send(kept, key=f"{number}")
    wait_until_ended(kept)
    states = [is_replayed(send(kept, key=f"{number}")) for number in range(5)]
    assert states == [False, False, True, True, True]
    assert is_replayed(send(kept, key="theirs", by=neighbour.api_key))


@pytest.mark.parametrize("by", ["request", "workspace"])
def test_nothing_is_kept_under_zero_data_retention(site: Site, by: str) -> None:
    site.publish(zdr=True)
    keep_answers(site.tenant)
    body = site.chat_body()
    if by == "request":
        body["provider"] = {"zdr": True}
    else:
        make_guardrail(
            site.tenant.workspace,
            pk=site.tenant.workspace.default_guardrail_id,
            enforce_zdr_other=True,
        )
    first = send(site, body)
    assert first.status_code == 200, first.text
    wait_until_ended(site)
    assert not KeptAnswer.objects.exists()
    assert refusal(send(site, body))["generation_id"] == first.json()["id"]


@pytest.mark.parametrize("by", ["switch", "policy"])
def test_a_kept_answer_is_not_given_once_it_may_not_be_kept(kept: Site, by: str) -> None:
    first = send(kept)
    wait_until_ended(kept)
    kept.settled()
    workspace = Workspace.objects.get(pk=kept.tenant.workspace.pk)
    if by == "switch":
        workspace.edit(is_answer_storage_enabled=False)
    else:
        Guardrail.objects.edit_workspace_default(workspace, enforce_zdr_other=True)
    with unchanged():
        assert refusal(send(kept))["generation_id"] == first.json()["id"]
    assert len(kept.dialled()) == 1


@pytest.mark.parametrize("change", [{"disabled": True}, {"expires_at": "2020-01-01T00:00:00Z"}])
def test_a_key_that_may_not_be_used_any_more_gets_no_answer_again(
    kept: Site, change: dict[str, Any]
) -> None:
    send(kept)
    wait_until_kept(kept)
    ApiKey.objects.filter(name="inference", organization=kept.tenant.organization).update(**change)
    assert send(kept).status_code == 401


def test_a_form_with_another_boundary_is_the_same_request(kept: Site) -> None:
    model = factories.make_model(
        "acme/hears", input_modalities=["audio"], output_modalities=["transcription"]
    )
    kept.publish("sim-tokens:40,7", model=model)
    sound = make_wav(1)
    answers = [
        kept.post(
            None,
            path="/api/v1/audio/transcriptions",
            headers={"Idempotency-Key": KEY},
            data={"model": model.slug},
            files={"file": ("a.wav", data, "audio/wav")},
        )
        for data in (sound, sound, sound + bytes(2))
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 422], answers[0].text
    assert [is_replayed(answer) for answer in answers] == [False, True, False]


def test_counting_tokens_is_the_same_each_time(published: Site) -> None:
    body = {"model": published.model.slug, "messages": [{"role": "user", "content": "one two"}]}
    path = "/api/v1/messages/count_tokens"
    counts = [send(published, body, path=path) for _ in range(2)]
    assert [count.status_code for count in counts] == [200, 200]
    assert counts[0].json() == counts[1].json()
    assert not IdempotentRequest.objects.exists()


def test_a_request_whose_worker_died_has_its_key_until_it_is_swept(kept: Site) -> None:
    """A generation that is swept without a charge frees the key, one that was charged does not."""
    send(kept)
    kept.settled()
    wait_until_kept(kept)
    KeptAnswer.objects.all().delete()
    IdempotentRequest.objects.update(ended_at=None)
    Generation.objects.update(status="failed", error_type="abandoned")
    assert refusal(send(kept))["error_type"] == "idempotent_answer_not_kept"
    Generation.objects.update(prompt_tokens=None, completion_tokens=None, cost_nano=0)
    assert send(kept).status_code == 200
    assert len(kept.dialled()) == 2


def test_a_key_whose_worker_died_before_admission_is_free_after_a_minute(published: Site) -> None:
    send(published)
    published.settled()
    wait_until_ended(published)
    IdempotentRequest.objects.update(generation_id="gen-0-never", ended_at=None)
    assert send(published).status_code == 409
    IdempotentRequest.objects.update(claimed_at=F("claimed_at") - timedelta(seconds=61))
    assert send(published).status_code == 200
