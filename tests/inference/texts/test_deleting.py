"""Texts that are deleted: on request, when their time is over, and while they wait in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from prometheus_client import REGISTRY

from accounts.models import ApiKey, Workspace
from inference.models import Generation, StoredText, TextDeletion, TextKey
from inference.texts.deleting import clear_texts, delete_texts
from tests.support import factories
from tests.support.database.locks import locked, waiting
from tests.support.database.snapshots import everything
from tests.support.factories import Tenant
from tests.support.governance import make_workspace
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


def test_a_management_key_deletes_one_text(logged: Site) -> None:
    logged.publish()
    first, second = send(logged, 2)
    key = logged.tenant.management_key
    for _ in range(2):
        answer = ask_content(logged, first, key=key, method="DELETE")
        assert (answer.status_code, answer.json()) == (200, {"deleted": True})
    assert left() == {second}
    assert ask_content(logged, first).status_code == 404
    assert ask_content(logged, second, key=key).status_code == 200


def test_others_cannot_read_or_delete_it(logged: Site, neighbour: Tenant) -> None:
    logged.publish()
    [generation_id] = send(logged)
    logged.settled()
    other, secret = ApiKey.objects.create_key(workspace=logged.tenant.workspace, name="other")
    before = everything()
    for key, method, status in (
        (logged.tenant.api_key, "DELETE", 403),
        (secret.reveal(), "GET", 404),
        (secret.reveal(), "DELETE", 403),
        (neighbour.api_key, "GET", 404),
        (neighbour.management_key, "GET", 404),
        (neighbour.management_key, "DELETE", 404),
    ):
        answer = ask_content(logged, generation_id, key=key, method=method)
        assert answer.status_code == status, (method, answer.text)
        if status == 404:
            assert answer.json()["error"]["message"] == "The generation does not exist."
    assert everything() == before
    assert other.pk


@pytest.mark.parametrize("scope", ["key", "workspace", "organization"])
def test_a_scope_is_deleted_and_nothing_else(logged: Site, neighbour: Tenant, scope: str) -> None:
    logged.publish()
    log_texts(neighbour)
    tenant = logged.tenant
    workspace = make_workspace(tenant.organization, is_observability_io_logging_enabled=True)
    keys = [tenant.api_key, neighbour.api_key]
    for place in (tenant.workspace, workspace):
        keys.append(ApiKey.objects.create_key(workspace=place, name="more")[1].reveal())
    mine, foreign, beside, elsewhere = (
        logged.post(logged.chat_body(), key=key).headers["X-Generation-Id"] for key in keys
    )
    wait_until_stored(logged, 4)
    key = ApiKey.objects.get(pk=Generation.objects.get(pk=mine).api_key_id)
    wanted: dict[str, Any] = {
        "key": {"api_key_id": key.pk}, "workspace": {"workspace_id": tenant.workspace.pk},
        "organization": {},
    }[scope]  # fmt: skip
    gone = {"key": {mine}, "workspace": {mine, beside}, "organization": {mine, beside, elsewhere}}
    assert delete_texts(tenant.organization.pk, by="test", **wanted) == len(gone[scope])
    assert left() == {mine, foreign, beside, elsewhere} - gone[scope]
    own = TextKey.objects.filter(organization_id=tenant.organization.pk)
    assert own.exists() is (scope != "organization")
    assert TextDeletion.objects.get().deleted_by == "test"


def test_the_deletion_of_the_key_makes_a_copy_of_the_table_useless(logged: Site) -> None:
    logged.publish()
    [generation_id] = send(logged)
    copy = StoredText.objects.get()
    delete_texts(logged.tenant.organization.pk, by="test")
    TextDeletion.objects.all().delete()
    copy.save(force_insert=True)  # as a restored table has it
    assert ask_content(logged, generation_id).status_code == 404
    [later] = send(logged)
    assert ask_content(logged, later).status_code == 200
    assert ask_content(logged, generation_id).status_code == 404


def test_what_waits_in_a_worker_is_not_stored_after_its_deletion(
    logged: Site, is_served: Callable[[], bool]
) -> None:
    logged.publish()
    send(logged)
    organization_id = logged.tenant.organization.pk

    def delete() -> None:
        try:
            delete_texts(organization_id, by="test")
        finally:
            connection.close()

    # The worker cannot store by the key while its row is locked; requests go on meanwhile.
    with locked(TextKey.objects.filter(organization_id=organization_id)):
        assert logged.chat("waits").status_code == 200
        assert is_served()
        logged.eventually(lambda: not Generation.objects.filter(status="pending").exists())
        deletion = Thread(target=delete)
        deletion.start()
        logged.eventually(lambda: waiting() > 0)
    deletion.join()
    # The next second is after the deletion.
    logged.eventually(lambda: time.time() >= int(deleted_at().timestamp()) + 1)
    last = logged.chat("last").headers["X-Generation-Id"]
    logged.eventually(lambda: left() == {last})


def deleted_at() -> datetime:
    return TextDeletion.objects.get().deleted_at


def test_texts_wait_while_the_database_does_not_take_them(logged: Site) -> None:
    logged.publish()
    send(logged)
    with locked(TextKey.objects.filter(organization_id=logged.tenant.organization.pk)):
        ids = [logged.chat(f"number {n}").headers["X-Generation-Id"] for n in range(3)]
        logged.eventually(lambda: not Generation.objects.filter(status="pending").exists())
        assert StoredText.objects.count() == 1
    wait_until_stored(logged, 4)
    assert set(ids) < left()


def test_a_locked_key_delays_no_other_tenant(logged: Site, neighbour: Tenant) -> None:
    logged.publish()
    log_texts(neighbour)
    mine = TextKey.objects.filter(organization_id=logged.tenant.organization.pk)
    send(logged)
    with locked(mine):
        waits = logged.chat("waits").headers["X-Generation-Id"]
        answers = [logged.post(logged.chat_body(), key=neighbour.api_key) for _ in range(3)]
        theirs = {answer.headers["X-Generation-Id"] for answer in answers}
        logged.eventually(lambda: theirs < left())
        assert waits not in left()
    logged.eventually(lambda: waits in left())


def test_what_does_not_fit_is_lost_and_the_request_is_served(
    logged: Site, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logged.publish()
    send(logged)
    settings.ORGANIZATION_IO_LOGGING_BYTES = 1_000
    before = lost("buffer")
    answers = [logged.chat("x" * 2_000, stream=stream) for stream in (False, True)]
    # The input fits, and the events of its answer do not.
    answers.append(logged.chat("x" * 400, stream=True))
    assert [(each.status_code, "xxx" in each.text) for each in answers] == [(200, True)] * 3
    settings.ORGANIZATION_IO_LOGGING_BYTES = 1_000_000
    send(logged)
    assert lost("buffer") == before + 3
    assert StoredText.objects.count() == 2
    assert f"outputs of organization {logged.tenant.organization.pk} are not stored" in caplog.text


def test_texts_leave_when_their_time_is_over(logged: Site, settings: Any) -> None:
    logged.publish()
    first, second, third = send(logged, 3)
    for generation_id, days in ((first, 31), (second, 8)):
        StoredText.objects.filter(pk=generation_id).update(
            created_at=F("created_at") - timedelta(days=days)
        )
    assert [ask_content(logged, each).status_code for each in (first, second)] == [404, 200]
    assert clear_texts() == 1
    assert left() == {second, third}
    log_texts(logged.tenant, io_logging_retention_days=7)
    assert ask_content(logged, second).status_code == 404
    assert clear_texts() == 1
    settings.IO_LOGGING_DAYS = 0
    assert clear_texts() == 1
    assert left() == set()


def test_texts_of_a_deleted_workspace_leave(logged: Site, management: Any) -> None:
    logged.publish()
    [generation_id] = send(logged)
    workspace = Workspace.objects.get(pk=logged.tenant.workspace.pk)
    workspace.close(confirm_default=True)
    assert ask_content(logged, generation_id, key=logged.tenant.management_key).status_code == 404
    assert clear_texts() == 1


def test_a_deletion_that_was_killed_is_finished_later(logged: Site) -> None:
    logged.publish()
    [generation_id] = send(logged)
    row = StoredText.objects.get()
    deletion = TextDeletion.objects.create(
        organization_id=row.organization_id, api_key_id=row.api_key_id, deleted_by="test",
        deleted_at=row.created_at,
    )  # fmt: skip
    assert ask_content(logged, generation_id).status_code == 404
    assert clear_texts() == 1
    deletion.refresh_from_db()
    assert deletion.is_finished
    TextDeletion.objects.update(deleted_at=F("deleted_at") - timedelta(days=32))
    assert clear_texts() == 0
    assert not TextDeletion.objects.exists()


def test_the_keys_of_texts_are_encrypted_anew(logged: Site, settings: Any) -> None:
    logged.publish()
    answer = logged.chat()
    read_content(logged, answer)
    key = TextKey.objects.get()
    assert key.rewrap() is False
    settings.CREDENTIAL_KEYS = [bytes(range(32)), *settings.CREDENTIAL_KEYS]
    assert key.rewrap() is True
    settings.CREDENTIAL_KEYS = settings.CREDENTIAL_KEYS[:1]
    assert read_content(logged, answer)["error"] is None
    settings.CREDENTIAL_KEYS = [bytes(32)]
    assert ask_content(logged, answer.headers["X-Generation-Id"]).status_code == 404


def test_a_tenant_without_texts_can_delete_them(tenant: Tenant) -> None:
    assert delete_texts(tenant.organization.pk, by="test") == 0
    assert factories.make_generation(tenant).pk
