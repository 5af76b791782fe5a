"""Texts that are deleted: on request, when their time is over, and while they wait in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from prometheus_client import REGISTRY

from accounts.models import ApiKey, Workspace
from inference.models import Generation, KeptAnswer, StoredText, TextDeletion, TextKey
from inference.texts.deleting import clear_texts, delete_texts
from tests.support import factories
from tests.support.database.locks import locked, waiting
from tests.support.database.snapshots import everything
from tests.support.factories import Tenant
from tests.support.governance import make_workspace
from tests.support.inference import repeats
from tests.support.inference.repeats import keep_answers
from tests.support.inference.site import Site
from tests.support.texts.logged import (
    ask_content,
    log_texts,
    read_content,
    wait_until_stored,
)


def lost(reason: str) -> float:
    return REGISTRY.get_sample_value("causeway_dropped_texts_total", {"reason": reason}) or 0


def send(site: Site, count: int = 1) -> list[str]:
    """Sends requests, waits until their texts are stored, and returns their ids."""
    ids = [site.chat().headers["X-Generation-Id"] for _ in range(count)]
    site.eventually(lambda: left() >= set(ids))
    return ids


def left() -> set[str]:
    return set(StoredText.objects.values_list("pk", flat=True))


def test_a_management_key_deletes_one_text(storing: Site) -> None:
    first, second = send(storing, 2)
    key = storing.tenant.management_key
    for _ in range(2):
        answer = ask_content(storing, first, key=key, method="DELETE")
        assert (answer.status_code, answer.json()) == (200, {"deleted": True})
    assert left() == {second}
    assert ask_content(storing, first).status_code == 404
    assert ask_content(storing, second, key=key).status_code == 200


def test_others_cannot_read_or_delete_it(storing: Site, neighbour: Tenant) -> None:
    [generation_id] = send(storing)
    storing.settled()
    other, secret = ApiKey.objects.create_key(workspace=storing.tenant.workspace, name="other")
    before = everything()
    for key, method, status in (
        (storing.tenant.api_key, "DELETE", 403),
        (secret.reveal(), "GET", 404),
        (secret.reveal(), "DELETE", 403),
        (neighbour.api_key, "GET", 404),
        (neighbour.management_key, "GET", 404),
        (neighbour.management_key, "DELETE", 404),
    ):
        answer = ask_content(storing, generation_id, key=key, method=method)
        assert answer.status_code == status, (method, answer.text)
        if status == 404:
            assert answer.json()["error"]["message"] == "The generation does not exist."
    assert everything() == before
    assert other.pk


@pytest.mark.parametrize("scope", ["generation", "key", "workspace", "organization"])
def test_a_scope_is_deleted_and_nothing_else(storing: Site, neighbour: Tenant, scope: str) -> None:
    """So are the answers that are kept for repeats."""
    log_texts(neighbour)
    tenant = storing.tenant
    keep_answers(neighbour)
    keep_answers(tenant)
    workspace = make_workspace(
        tenant.organization,
        is_observability_io_logging_enabled=True,
        is_answer_storage_enabled=True,
    )
    keys = [tenant.api_key, neighbour.api_key]
    for place in (tenant.workspace, workspace):
        keys.append(ApiKey.objects.create_key(workspace=place, name="more")[1].reveal())
    mine, foreign, beside, elsewhere = (
        repeats.send(storing, by=key).headers["X-Generation-Id"] for key in keys
    )
    wait_until_stored(storing, 4)
    repeats.wait_until_kept(storing, 4)
    key = ApiKey.objects.get(pk=Generation.objects.get(pk=mine).api_key_id)
    wanted: dict[str, Any] = {
        "generation": {"generation_id": mine}, "key": {"api_key_id": key.pk},
        "workspace": {"workspace_id": tenant.workspace.pk}, "organization": {},
    }[scope]  # fmt: skip
    gone = {
        "generation": {mine},
        "key": {mine},
        "workspace": {mine, beside},
        "organization": {mine, beside, elsewhere},
    }
    assert delete_texts(tenant.organization.pk, by="test", **wanted) == len(gone[scope])
    assert left() == {mine, foreign, beside, elsewhere} - gone[scope]
    assert set(KeptAnswer.objects.values_list("generation_id", flat=True)) == left()
    again = [repeats.send(storing, by=key) for key in keys]
    assert [each.status_code for each in again] == [
        200 if each in left() else 409 for each in (mine, foreign, beside, elsewhere)
    ]
    own = TextKey.objects.filter(organization_id=tenant.organization.pk)
    assert own.exists() is (scope != "organization")
    assert TextDeletion.objects.get().deleted_by == "test"


def test_the_deletion_of_the_key_makes_a_copy_of_the_table_useless(storing: Site) -> None:
    [generation_id] = send(storing)
    copy = StoredText.objects.get()
    delete_texts(storing.tenant.organization.pk, by="test")
    TextDeletion.objects.all().delete()
    copy.save(force_insert=True)  # as a restored table has it
    assert ask_content(storing, generation_id).status_code == 404
    [later] = send(storing)
    assert ask_content(storing, later).status_code == 200
    assert ask_content(storing, generation_id).status_code == 404


def test_what_waits_in_a_worker_is_not_stored_after_its_deletion(
    storing: Site, is_served: Callable[[], bool]
) -> None:
    send(storing)
    organization_id = storing.tenant.organization.pk

    def delete() -> None:
        try:
            delete_texts(organization_id, by="test")
        finally:
            connection.close()

    # The worker cannot store by the key while its row is locked; requests go on meanwhile.
    with locked(TextKey.objects.filter(organization_id=organization_id)):
        assert storing.chat("waits").status_code == 200
        assert is_served()
        storing.wait_for_settlement()
        deletion = Thread(target=delete)
        deletion.start()
        storing.eventually(lambda: waiting() > 0)
    deletion.join()
    # The next second is after the deletion.
    storing.eventually(lambda: time.time() >= int(deleted_at().timestamp()) + 1)
    last = storing.chat("last").headers["X-Generation-Id"]
    storing.eventually(lambda: left() == {last})


def test_an_answer_that_comes_after_its_deletion_is_not_kept(site: Site) -> None:
    keep_answers(site.tenant)
    site.publish("sim-slow:1,0.02")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(repeats.send, site)
        site.eventually(lambda: Generation.objects.filter(status="pending").exists())
        delete_texts(site.tenant.organization.pk, by="test")
        assert first.result().status_code == 200
    again = repeats.send(site)
    assert again.json()["error"]["metadata"]["error_type"] == "idempotent_answer_not_kept"
    assert not KeptAnswer.objects.exists()


def deleted_at() -> datetime:
    return TextDeletion.objects.get().deleted_at


def test_texts_wait_while_the_database_does_not_take_them(storing: Site) -> None:
    send(storing)
    with locked(TextKey.objects.filter(organization_id=storing.tenant.organization.pk)):
        ids = [storing.chat(f"number {n}").headers["X-Generation-Id"] for n in range(3)]
        storing.wait_for_settlement()
        assert StoredText.objects.count() == 1
    wait_until_stored(storing, 4)
    assert set(ids) < left()


def test_a_locked_key_delays_no_other_tenant(storing: Site, neighbour: Tenant) -> None:
    log_texts(neighbour)
    mine = TextKey.objects.filter(organization_id=storing.tenant.organization.pk)
    send(storing)
    with locked(mine):
        waits = storing.chat("waits").headers["X-Generation-Id"]
        answers = [storing.post(storing.chat_body(), key=neighbour.api_key) for _ in range(3)]
        theirs = {answer.headers["X-Generation-Id"] for answer in answers}
        storing.eventually(lambda: theirs < left())
        assert waits not in left()
    storing.eventually(lambda: waits in left())


def test_what_does_not_fit_is_lost_and_the_request_is_served(
    storing: Site, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    send(storing)
    settings.ORGANIZATION_IO_LOGGING_BYTES = 1_000
    before = lost("buffer")
    answers = [storing.chat("x" * 2_000, stream=stream) for stream in (False, True)]
    # The input fits, and the events of its answer do not.
    answers.append(storing.chat("x" * 400, stream=True))
    assert [(each.status_code, "xxx" in each.text) for each in answers] == [(200, True)] * 3
    settings.ORGANIZATION_IO_LOGGING_BYTES = 1_000_000
    send(storing)
    assert lost("buffer") == before + 3
    assert StoredText.objects.count() == 2
    assert f"outputs of organization {storing.tenant.organization.pk} are not stored" in caplog.text


def test_texts_leave_when_their_time_is_over(storing: Site, settings: Any) -> None:
    first, second, third = send(storing, 3)
    for generation_id, days in ((first, 31), (second, 8)):
        StoredText.objects.filter(pk=generation_id).update(
            created_at=F("created_at") - timedelta(days=days)
        )
    assert [ask_content(storing, each).status_code for each in (first, second)] == [404, 200]
    assert clear_texts() == 1
    assert left() == {second, third}
    log_texts(storing.tenant, io_logging_retention_days=7)
    assert ask_content(storing, second).status_code == 404
    assert clear_texts() == 1
    settings.IO_LOGGING_DAYS = 0
    assert clear_texts() == 1
    assert left() == set()


def test_texts_of_a_deleted_workspace_leave(storing: Site, management: Any) -> None:
    [generation_id] = send(storing)
    workspace = Workspace.objects.get(pk=storing.tenant.workspace.pk)
    workspace.close(confirm_default=True)
    assert ask_content(storing, generation_id, key=storing.tenant.management_key).status_code == 404
    assert clear_texts() == 1


def test_a_deletion_that_was_killed_is_finished_later(storing: Site) -> None:
    [generation_id] = send(storing)
    row = StoredText.objects.get()
    deletion = TextDeletion.objects.create(
        organization_id=row.organization_id, api_key_id=row.api_key_id, deleted_by="test",
        deleted_at=row.created_at,
    )  # fmt: skip
    assert ask_content(storing, generation_id).status_code == 404
    assert clear_texts() == 1
    deletion.refresh_from_db()
    assert deletion.is_finished
    TextDeletion.objects.update(deleted_at=F("deleted_at") - timedelta(days=32))
    assert clear_texts() == 0
    assert not TextDeletion.objects.exists()


def test_the_keys_of_texts_are_encrypted_anew(storing: Site, settings: Any) -> None:
    answer = storing.chat()
    read_content(storing, answer)
    key = TextKey.objects.get()
    assert key.rewrap() is False
    settings.CREDENTIAL_KEYS = [bytes(range(32)), *settings.CREDENTIAL_KEYS]
    assert key.rewrap() is True
    settings.CREDENTIAL_KEYS = settings.CREDENTIAL_KEYS[:1]
    assert read_content(storing, answer)["error"] is None
    settings.CREDENTIAL_KEYS = [bytes(32)]
    assert ask_content(storing, answer.headers["X-Generation-Id"]).status_code == 404


def test_a_tenant_without_texts_can_delete_them(tenant: Tenant) -> None:
    assert delete_texts(tenant.organization.pk, by="test") == 0
    assert factories.make_generation(tenant).pk
