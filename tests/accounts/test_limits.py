"""The limits of an organization in number, by every way that creates something."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.test import Client
from rest_framework.test import APIClient

from accounts.admin.organizations.limits import annotate_use, list_use
from accounts.models import (
    ApiKey,
    BroadcastDestination,
    ByokCredential,
    Guardrail,
    GuardrailShadow,
    Organization,
    OrganizationLimit,
    OrganizationLimitReached,
    Preset,
    Subscription,
    Workspace,
)
from accounts.patterns import compile_pattern, measure
from catalog.models import ModelAlias
from config.audit.entries import AuditEntry
from tests.support import factories
from tests.support.broadcast.destinations import CONFIG, make_destination
from tests.support.console import SUBMIT, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_key, make_workspace, send
from tests.support.operators.four_eyes import press

# A preset is made with 200, because the same call adds a version too.
CREATED = {200, 201}
HOOK = "https://hooks.example.com/causeway"
# Path and body that create one, the rows that the fixture makes first, and the model.
CREATIONS: dict[OrganizationLimit, tuple[str, dict[str, Any], int, Any]] = {
    OrganizationLimit.WORKSPACES: ("workspaces", {"name": "A", "slug": "{}"}, 1, Workspace),
    OrganizationLimit.KEYS: ("keys", {"name": "{}"}, 2, ApiKey),
    OrganizationLimit.CREDENTIALS: (
        "byok", {"provider": "acme", "key": "a-secret-of-acme-{}"}, 0, ByokCredential,
    ),
    OrganizationLimit.GUARDRAILS: ("guardrails", {"name": "{}"}, 0, Guardrail),
    OrganizationLimit.ALIASES: (
        "aliases", {"name": "{}", "targets": ["acme/falcon"]}, 0, ModelAlias,
    ),
    OrganizationLimit.PRESETS: ("presets/{}/chat/completions", {"temperature": 1}, 0, Preset),
    OrganizationLimit.WEBHOOKS: ("webhooks", {"url": HOOK}, 0, Subscription),
    OrganizationLimit.DESTINATIONS: (
        "observability/destinations",
        {"name": "{}", "type": "otel-collector", "config": CONFIG}, 0, BroadcastDestination,
    ),
}  # fmt: skip


@pytest.fixture(params=CREATIONS)
def limit(request: pytest.FixtureRequest, db: None) -> OrganizationLimit:
    factories.make_model("acme/falcon")
    factories.make_provider("acme")
    found: OrganizationLimit = request.param
    return found


def create(client: APIClient, limit: OrganizationLimit, name: str) -> Any:
    path, body, *_ = CREATIONS[limit]
    return send(client, "POST", path.format(name), json.dumps(body).replace("{}", name))


def count(tenant: Tenant, limit: OrganizationLimit) -> int:
    rows = CREATIONS[limit][3].objects.for_organization(tenant.organization.pk)
    return int(rows.count())


def assert_full(answer: Any, limit: OrganizationLimit, most: int) -> None:
    assert answer.status_code == 422, answer.content
    error = answer.json()["error"]
    assert error["metadata"] == {
        "error_type": "organization_limit_reached", "limit": limit.value, "maximum": most,
    }  # fmt: skip
    assert error["message"] == (
        f"organization_limit_reached: {limit} is {most} for this organization, which has {most} "
        f"{limit.noun}; 1 more would be too many. Delete some first, or ask the operator for a "
        "higher limit."
    )


def test_the_api_refuses_what_is_beyond_a_limit(
    management: APIClient, tenant: Tenant, limit: OrganizationLimit, settings: LazySettings
) -> None:
    most = CREATIONS[limit][2] + 2
    setattr(settings, limit, most)
    for name in ("one", "two"):
        assert create(management, limit, name).status_code in CREATED
    with snapshots.unchanged():
        assert_full(create(management, limit, "three"), limit, most)
    # Of one organization only.
    other = factories.make_tenant("Other")
    assert create(factories.client(other.management_key), limit, "one").status_code in CREATED
    # A higher limit of this one alone.
    tenant.organization.set_limits({limit: most + 1})
    assert create(management, limit, "three").status_code in CREATED
    assert_full(create(management, limit, "four"), limit, most + 1)
    # And a lower one, which leaves what there is.
    tenant.organization.set_limits({limit: 0})
    assert count(tenant, limit) == most + 1
    assert create(management, limit, "four").status_code == 422


@pytest.mark.django_db(transaction=True)
def test_concurrent_creations_do_not_pass_a_limit(
    tenant: Tenant, limit: OrganizationLimit, together: Callable[..., list[Any]]
) -> None:
    most = CREATIONS[limit][2] + 2
    tenant.organization.set_limits({limit: most})
    calls = (
        partial(create, factories.client(tenant.management_key), limit, f"number-{n}")
        for n in range(6)
    )
    answers = together(*calls)
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses[:2]) <= CREATED
    assert statuses[2:] == [422] * 4
    assert count(tenant, limit) == most


def test_what_is_deleted_does_not_count(tenant: Tenant, settings: LazySettings) -> None:
    settings.ORGANIZATION_MAX_WORKSPACES = 2
    settings.ORGANIZATION_MAX_KEYS = 3
    settings.ORGANIZATION_MAX_CREDENTIALS = settings.ORGANIZATION_MAX_DESTINATIONS = 1
    provider = factories.make_provider("acme")
    for _ in range(2):
        key = make_key(tenant)
        # The former secret of a key is no key of its own.
        key.rotate(overlap=60)
        key.revoke()
        factories.make_credential(tenant, provider).remove()
        workspace = make_workspace(tenant.organization)
        make_destination(workspace)
        workspace.close()
    assert Workspace.objects.filter(organization=tenant.organization).count() == 3


def test_commands_and_imports_refuse_what_is_beyond_a_limit(
    tenant: Tenant, settings: LazySettings, tmp_path: Path
) -> None:
    settings.ORGANIZATION_MAX_KEYS = 3
    settings.ORGANIZATION_MAX_ALIASES = 1
    factories.make_model("acme/falcon")
    keys, aliases, output = (tmp_path / name for name in ("keys", "aliases", "output"))
    keys.write_text('{"name": "a"}\n{"name": "b"}\n')
    rows = [json.dumps({"name": name, "targets": ["acme/falcon"]}) + "\n" for name in "ab"]
    aliases.write_text("".join(rows))
    pk = str(tenant.organization.pk)
    before = snapshots.everything()

    def refuse(*command: str) -> str:
        with pytest.raises(CommandError) as caught:
            call_command(*command, stdout=io.StringIO(), stderr=io.StringIO())
        assert snapshots.everything() == before
        assert caught.value.returncode == 1
        return str(caught.value)

    for_keys = "ORGANIZATION_MAX_KEYS is 3 for this organization, which has 2 API keys; 2 more"
    assert for_keys in refuse("import_keys", pk, str(keys), "--output", str(output))
    assert for_keys in refuse("create_api_key", pk, "--for-each", str(keys), f"--output={output}")
    assert not output.exists()
    assert "ORGANIZATION_MAX_ALIASES is 1" in refuse("import_aliases", pk, str(aliases))
    settings.ORGANIZATION_MAX_KEYS = 2
    assert "ORGANIZATION_MAX_KEYS is 2" in refuse("create_api_key", pk)


def test_the_console_refuses_what_is_beyond_a_limit(
    operator: Client, tenant: Tenant, settings: LazySettings
) -> None:
    settings.ORGANIZATION_MAX_WORKSPACES = 1
    form = {"organization": str(tenant.organization.pk), "name": "More", "slug": "more"}
    with snapshots.unchanged():
        answer = operator.post(listing(Workspace, "add"), form)
    assert "ORGANIZATION_MAX_WORKSPACES is 1 for this organization" in answer.content.decode()


def patterns(*texts: str) -> list[dict[str, Any]]:
    return [{"action": "flag", "pattern": text, "label": None} for text in texts]


def regex_rules(text: str) -> dict[str, Any]:
    rule = {"field": "model", "operator": "regex", "value": text}
    return {"enabled": True, "groups": [{"logic": "and", "rules": [rule]}]}


def test_compiled_patterns_have_a_limit_together(tenant: Tenant, settings: LazySettings) -> None:
    one, two = "a[0-9]{1,90}", "b[0-9]{1,90}"
    size = measure(compile_pattern(one))
    assert measure(compile_pattern(two)) == size > 1_000
    settings.ORGANIZATION_PATTERN_BYTES = size
    guardrail = make_guardrail(tenant.workspace, content_filters=patterns(one))
    # Equal patterns are compiled once.
    second = make_guardrail(tenant.workspace, content_filters=patterns(one))
    destination = make_destination(tenant.workspace, filter_rules=regex_rules(one))
    before = snapshots.everything()
    for refused in (
        partial(make_guardrail, tenant.workspace, content_filters=patterns(two)),
        partial(guardrail.edit, content_filters=patterns(one, two)),
        partial(GuardrailShadow.objects.start, guardrail, by="x", content_filters=patterns(two)),
        partial(make_destination, tenant.workspace, filter_rules=regex_rules(two)),
        partial(destination.edit, filter_rules=regex_rules(two)),
    ):
        with pytest.raises(OrganizationLimitReached) as caught:
            refused()
        assert caught.value.metadata == {
            "limit": "ORGANIZATION_PATTERN_BYTES", "maximum": size,
        }  # fmt: skip
        assert snapshots.everything() == before
    second.remove()
    destination.edit(filter_rules=None)
    # Its own patterns make room for those that replace them.
    guardrail.refresh_from_db()
    assert guardrail.edit(content_filters=patterns(two))
    # What is stored under a higher limit can be kept and enforced.
    settings.ORGANIZATION_PATTERN_BYTES = 2 * size
    shadow = GuardrailShadow.objects.start(guardrail, by="x", content_filters=patterns(one))
    settings.ORGANIZATION_PATTERN_BYTES = 0
    shadow.enforce()
    assert guardrail.edit(name="Renamed")
    organizations = Organization.objects.filter(pk=guardrail.organization_id)
    organization = organizations.annotate(**annotate_use()).get()
    assert list_use(organization)[-1].used == size


def test_the_api_names_the_limit_of_patterns(management: APIClient, settings: LazySettings) -> None:
    settings.ORGANIZATION_PATTERN_BYTES = 100
    body = {"name": "A", "content_filters": [{"action": "flag", "pattern": "a[0-9]{1,90}"}]}
    with snapshots.unchanged():
        answer = send(management, "POST", "guardrails", body)
    assert answer.status_code == 422
    assert answer.json()["error"]["metadata"] == {
        "error_type": "organization_limit_reached",
        "limit": "ORGANIZATION_PATTERN_BYTES",
        "maximum": 100,
    }


def test_an_operator_sees_and_changes_the_limits_of_one_organization(
    operator: Client, tenant: Tenant
) -> None:
    make_workspace(tenant.organization)
    dialog = page(tenant.organization, "limit_numbers")
    shown = operator.get(page(tenant.organization)).content.decode()
    for text in ("2 / 200", "2 / 10,000", "0 / 500", "0 / 1,000", "0 / 50", "0 / 20"):
        assert text in shown
    assert "0 / 4,194,304" in shown

    form = {"ORGANIZATION_MAX_KEYS": "20000", "ORGANIZATION_MAX_WORKSPACES": "1"}
    answer = press(operator, tenant.organization, "limit_numbers", **form)
    assert messages_of(answer) == ["The limits of Acme are changed."]
    shown = answer.content.decode()
    assert "2 / 1<" in shown
    assert "2 / 20,000" in shown
    entry = AuditEntry.objects.filter(kind="accounts.organization").latest("at")
    assert (entry.actor, entry.after) == (
        "operator operator",
        {"own_limits": {"ORGANIZATION_MAX_KEYS": 20000, "ORGANIZATION_MAX_WORKSPACES": 1}},
    )
    assert 'value="20000"' in operator.get(dialog).content.decode()
    operator.post(dialog, SUBMIT)
    assert Organization.objects.get(pk=tenant.organization.pk).own_limits is None


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "2147483648", "9" * 30])
def test_a_wrong_limit_changes_nothing(operator: Client, tenant: Tenant, text: str) -> None:
    with snapshots.unchanged():
        press(operator, tenant.organization, "limit_numbers", ORGANIZATION_MAX_KEYS=text)


def test_a_viewer_cannot_change_the_limits(viewer: Client, tenant: Tenant) -> None:
    with snapshots.unchanged():
        answer = press(viewer, tenant.organization, "limit_numbers", ORGANIZATION_MAX_KEYS="5")
    assert answer.status_code == 403
