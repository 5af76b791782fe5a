"""The console's page of presets."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from accounts.models import Preset
from tests.support.console import SUBMIT, change, listing, messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import make_preset

BODY = {
    "model": "acme/falcon",
    "messages": [{"role": "system", "content": "Be kind."}],
    "temperature": 0.25,
}


def test_add_a_preset(operator: Client, tenant: Tenant) -> None:
    form = {"workspace": str(tenant.workspace.pk), "slug": "support", "body": json.dumps(BODY)}
    answer = operator.post(listing(Preset, "add"), form, follow=True)
    preset = Preset.objects.get()
    assert answer.status_code == 200
    version = preset.designated_version
    assert version is not None
    assert json.loads(version.config) == {"model": "acme/falcon", "temperature": 0.25}
    assert version.system_prompt == "Be kind."
    assert "Be kind." in operator.get(page(preset)).content.decode()


@pytest.mark.parametrize(
    ("slug", "body"),
    [
        ("A B", "{}"), ("support", ""), ("support", "{"), ("support", "[]"),
        ("support", '{"temperature": 3}'), ("support", '{"preset": "x"}'),
    ],
)  # fmt: skip
def test_add_refuses_what_the_api_refuses(
    operator: Client, tenant: Tenant, slug: str, body: str
) -> None:
    form = {"workspace": str(tenant.workspace.pk), "slug": slug, "body": body}
    with snapshots.unchanged():
        assert operator.post(listing(Preset, "add"), form).status_code == 200


def test_change_the_name(operator: Client, tenant: Tenant) -> None:
    preset = make_preset(tenant.workspace)
    change(operator, preset, {"name": "Support desk", "description": ""})
    preset.refresh_from_db()
    assert preset.name == "Support desk"


def test_versions_and_status(operator: Client, tenant: Tenant) -> None:
    preset = make_preset(tenant.workspace, temperature=0.25)

    def act(verb: str, **form: str) -> list[str]:
        answer = operator.post(page(preset, verb), {**SUBMIT, **form}, follow=True)
        preset.refresh_from_db()
        return messages_of(answer)

    assert act("add_version", body=json.dumps(BODY)) == ["Version 2 applies now."]
    assert act("designate", version="1") == ["Version 1 applies now."]
    assert act("designate", version="1") == ["Version 1 applies already."]
    assert act("designate", version="7") == [
        "designated_version: The preset has no version of this number."
    ]
    assert act("change_status", status="disabled") == ["The preset is disabled."]
    assert preset.status == "disabled"
    assert act("add_version", body="{")[0].startswith("The body is not valid JSON")
    assert preset.versions.count() == 2
    operator.post(page(preset, "remove"), SUBMIT)
    assert not Preset.objects.exists()
