"""The routes of aliases: whatever is refused changes nothing, and nobody sees another's."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from catalog.aliases import changes
from catalog.aliases.changes import MAX_PATTERNS
from catalog.models import ModelAlias
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant

PATH = "/api/v1/aliases"


@pytest.fixture(autouse=True)
def models(db: None) -> None:
    for slug in ("acme/falcon", "acme/hawk", "acme/owl:free"):
        factories.make_model(slug)
    factories.make_model("acme/dodo", is_listed=False)


def create(client: APIClient, name: Any = "fast", targets: Any = ("acme/falcon",)) -> Any:
    targets = list(targets) if isinstance(targets, tuple) else targets
    return client.post(PATH, {"name": name, "targets": targets}, format="json")


def test_aliases_are_created_read_changed_and_deleted(management: APIClient) -> None:
    answer = create(management, targets=("acme/falcon:nitro", "acme/hawk-2026-01-01"))
    assert answer.status_code == 201, answer.json()
    made = answer.json()["data"]
    assert (made["name"], made["targets"]) == (
        "fast",
        ["acme/falcon:nitro", "acme/hawk-2026-01-01"],
    )
    one = f"{PATH}/{made['id']}"
    assert management.get(one).json()["data"] == made
    assert management.get(PATH).json() == {"data": [made], "total_count": 1}
    assert management.get(PATH, {"name": "fast"}).json()["total_count"] == 1
    assert management.get(PATH, {"name": "slow"}).json()["total_count"] == 0
    changed = management.patch(one, {"name": "quick*"}, format="json").json()["data"]
    assert changed == {**made, "name": "quick*", "updated_at": changed["updated_at"]}
    changed = management.patch(one, {"targets": ["acme/owl:free"]}, format="json").json()["data"]
    assert changed["targets"] == ["acme/owl:free"]
    same = management.patch(one, {}, format="json").json()["data"]
    assert same == changed
    assert management.delete(one).json() == {"deleted": True}
    assert management.get(one).status_code == management.delete(one).status_code == 404


@pytest.mark.parametrize(
    ("name", "targets", "status", "text"),
    [
        ("", ("acme/falcon",), 400, "name"),
        (None, ("acme/falcon",), 400, "name"),
        (5, ("acme/falcon",), 400, "name"),
        ("a" * 256, ("acme/falcon",), 400, "name"),
        (" fast", ("acme/falcon",), 400, "white space"),
        ("fa\nst", ("acme/falcon",), 400, "control characters"),
        ("fa\0st", ("acme/falcon",), 400, "control characters"),
        ("fa\u200bst", ("acme/falcon",), 400, "control characters"),
        ("**", ("acme/falcon",), 400, "at most one *"),
        ("@preset/fast", ("acme/falcon",), 400, "presets"),
        ("fast", (), 400, "targets"),
        ("fast", None, 400, "targets"),
        ("fast", "acme/falcon", 400, "targets"),
        ("fast", (5,), 400, "targets"),
        ("fast", ("acme/falcon", "acme/falcon"), 400, "once"),
        ("fast", tuple(f"acme/{n}" for n in range(11)), 400, "targets"),
        ("fast", ("acme/no-such",), 404, "no model 'acme/no-such'"),
        ("fast", ("acme/dodo",), 404, "no model 'acme/dodo'"),
        ("fast", ("acme/falcon", "other"), 404, "not another alias"),
        ("fast", ("acme/falcon:online",), 400, ":online"),
        ("fast", ("falcon",), 404, "no model 'falcon'"),
        ("acme/falcon", ("acme/hawk",), 422, "is the name of a model"),
        ("acme/falcon-2026-01-01", ("acme/hawk",), 422, "is the name of a model"),
        ("acme/falcon:nitro", ("acme/hawk",), 422, "is the name of a model"),
        ("other", ("acme/hawk",), 409, "already"),
    ],
)
def test_a_refused_alias_changes_nothing(
    management: APIClient, tenant: Tenant, name: Any, targets: Any, status: int, text: str
) -> None:
    assert create(management, "other").status_code == 201
    stored = changes.create_alias(
        organization_id=tenant.organization.pk, name="mine", targets=["acme/hawk"]
    )
    before = snapshots.everything()
    answer = create(management, name, targets)
    assert answer.status_code == status, answer.json()
    assert text in answer.json()["error"]["message"]
    body = {"name": name, "targets": list(targets) if isinstance(targets, tuple) else targets}
    answer = management.patch(f"{PATH}/{stored.pk}", body, format="json")
    assert answer.status_code == status, answer.json()
    assert snapshots.everything() == before


@pytest.mark.parametrize("length", [1, 254, 255])
def test_a_name_has_up_to_255_characters(management: APIClient, length: int) -> None:
    assert create(management, "é" * length).status_code == 201


def test_an_unknown_field_is_refused(management: APIClient) -> None:
    body = {"name": "fast", "targets": ["acme/falcon"], "organization": None}
    answer = management.post(PATH, body, format="json")
    assert (answer.status_code, "organization" in answer.json()["error"]["message"]) == (400, True)


def test_a_foreign_alias_is_not_found(management: APIClient) -> None:
    other = factories.make_tenant("Other")
    theirs = create(factories.client(other.management_key)).json()["data"]
    operators = changes.create_alias(organization_id=None, name="all", targets=["acme/falcon"])
    before = snapshots.everything()
    for key in (theirs["id"], operators.pk, uuid4(), "fast"):
        one = f"{PATH}/{key}"
        answers = [
            management.get(one),
            management.patch(one, {"name": "x"}, format="json"),
            management.delete(one),
        ]
        assert [answer.status_code for answer in answers] == [404, 404, 404]
    assert management.get(PATH).json()["total_count"] == 0
    assert snapshots.everything() == before
    # Both may have the same name.
    assert create(management).status_code == create(management, "all").status_code == 201


def fill(organization_id: Any, count: int, name: str) -> None:
    ModelAlias.objects.bulk_create(
        ModelAlias(organization_id=organization_id, name=name.format(n), targets=["acme/falcon"])
        for n in range(count)
    )


def test_an_organization_has_a_limited_number_of_patterns(
    management: APIClient, tenant: Tenant
) -> None:
    name = "pattern-{}-*"
    fill(factories.make_tenant("Other").organization.pk, MAX_PATTERNS, name)
    fill(tenant.organization.pk, MAX_PATTERNS - 1, name)
    assert create(management, name.format("last")).status_code == 201
    before = snapshots.everything()
    answer = create(management, name.format("more"))
    assert answer.status_code == 422
    assert answer.json()["error"]["metadata"]["error_type"] == "alias_limit"
    assert snapshots.everything() == before
