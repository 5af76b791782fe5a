"""What needs a second person: forms, deletions, imports and proposals of price lists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from accounts.models import Guardrail
from catalog import imports
from catalog.models import ModelAlias, ModelEndpoint, Provider
from config.apps import Role
from config.audit.entries import AuditEntry
from config.changes.kinds import ChangeKind
from config.changes.models import ChangeSet
from config.changes.proposals import IMPORT, Proposal, propose, read_sealed
from config.console import uploads
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.catalogue import make_proposal
from tests.support.console import change, fingerprint, listing, messages_of, page, read_form
from tests.support.database import snapshots
from tests.support.endpoints.creating import body_of
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail
from tests.support.operators.four_eyes import WHY, approve, decide, demand, press, proposed, sign_in
from tests.support.simulator.server import Simulator

CANARY = "canary-four-eyes-secret-7c1d5e9a2b84"


@pytest.fixture
def ann(db: None) -> Client:
    return sign_in("ann")


@pytest.fixture
def bob(ann: Client) -> Client:
    return sign_in("bob")


@pytest.fixture
def provider(db: None) -> Provider:
    """Returns a provider; a second person is demanded for credentials."""
    demand(ChangeKind.CREDENTIALS)
    return factories.make_provider()


@pytest.fixture
def active(tenant: Tenant, simulator: Simulator) -> PrivateEndpoint:
    model, provider = factories.make_model(), factories.make_provider()
    return factories.make_active(tenant, model, provider, base_url=simulator.base_url)


def initial(client: Client, row: Any) -> dict[str, Any]:
    return read_form(client.get(page(row)).context["adminform"].form)


def everything_stored() -> str:
    """Returns all rows of all tables as text."""
    return json.dumps(fingerprint(), default=str)


def test_a_base_url_and_a_secret_wait_without_being_shown(
    ann: Client, bob: Client, provider: Provider
) -> None:
    before = snapshots.everything()
    sent = {**initial(ann, provider), "base_url": "https://new.example.com/v1", "secret": CANARY}
    change(ann, provider, {**sent, **WHY})
    made = proposed()
    assert snapshots.everything() == before
    shown = bob.get(page(made)).content.decode()
    for text in ("https://new.example.com/v1", "a new secret, …2b84", "Base URL"):
        assert text in shown
    assert CANARY not in shown
    assert CANARY not in everything_stored()
    assert read_sealed(made) == {"secret": [CANARY]}

    assert decide(bob, made) == "It is changed."
    provider.refresh_from_db()
    assert provider.base_url == "https://new.example.com/v1"
    assert provider.reveal_credential().reveal() == CANARY
    assert made.sealed_arguments is None
    assert CANARY not in everything_stored()
    entries = AuditEntry.objects.filter(kind="catalog.provider")
    assert {(each.actor, each.action) for each in entries} == {
        ("operator bob", f"{made}, proposed by operator ann")
    }


def test_fields_that_need_no_second_person_are_saved_at_once(
    ann: Client, provider: Provider
) -> None:
    change(ann, provider, {**initial(ann, provider), "name": "Another name"})
    provider.refresh_from_db()
    assert provider.name == "Another name"
    assert not ChangeSet.objects.exists()


def test_a_form_without_a_reason_is_refused(ann: Client, provider: Provider) -> None:
    before = fingerprint()
    answer = change(ann, provider, {**initial(ann, provider), "base_url": "https://b.example.com/"})
    assert "Say why in the field Reason" in answer.content.decode()
    assert fingerprint() == before


def test_any_change_of_the_row_closes_a_proposed_form(
    ann: Client, bob: Client, provider: Provider
) -> None:
    sent = {**initial(ann, provider), "base_url": "https://new.example.com/v1"}
    change(ann, provider, {**sent, **WHY})
    Provider.objects.filter(pk=provider.pk).update(name="Renamed", headquarters="DE")
    with snapshots.unchanged():
        made, text = approve(bob)
        assert text.startswith("Changed since it was proposed: name, headquarters.")
        assert made.status == "outdated"


def test_a_row_that_is_gone_closes_its_change_set(ann: Client, bob: Client, tenant: Tenant) -> None:
    alias = ModelAlias.objects.create(
        organization=tenant.organization, name="a", targets=[factories.make_model().slug]
    )
    demand(ChangeKind.DELETIONS)
    press(ann, alias, "remove", **WHY)
    ModelAlias.objects.filter(pk=alias.pk).delete()
    made, text = approve(bob)
    assert (made.status, text) == ("outdated", "The object no longer exists. Nothing was changed.")


def test_the_form_is_checked_again(ann: Client, bob: Client, provider: Provider) -> None:
    add = reverse("admin:catalog_provider_add")
    sent = {
        "name": "New", "slug": "new-provider", "dialect": "openai", "is_listed": "on",
        "base_url": "https://new.example.com/v1", "secret": CANARY, "datacenters": "",
    }  # fmt: skip
    assert ann.post(add, {**sent, **WHY}).status_code == 302
    provider.slug = "new-provider"
    provider.save_fields("slug")
    with snapshots.unchanged():
        made, text = approve(bob)
        assert text.startswith("This is no longer valid. Nothing was changed. Slug: ")
        assert made.status == "proposed"
    provider.slug = "another"
    provider.save_fields("slug")
    assert decide(bob, made) == "New is added."
    assert Provider.objects.get(slug="new-provider").reveal_credential().reveal() == CANARY


@pytest.mark.parametrize("way", ["form", "file"])
def test_a_credential_that_was_entered_meanwhile_goes_to_no_other_host(
    ann: Client, bob: Client, tenant: Tenant, way: str
) -> None:
    """The provider had none when its new host was proposed."""
    provider = factories.make_provider(base_url="https://api.example.com/v1")
    demand(ChangeKind.CREDENTIALS)
    if way == "form":
        sent = {**initial(ann, provider), "base_url": "https://listener.example/v1"}
        change(ann, provider, {**sent, **WHY})
    else:
        content = json.loads(imports.export()[0])
        content["providers"][0]["base_url"] = "https://listener.example/v1"
        upload(ann, json.dumps(content).encode())
    made = proposed()
    factories.make_credential(tenant, provider)
    with snapshots.unchanged():
        text = decide(bob, made)
        assert "The host changes, and credentials of organizations at this provider" in text
        assert made.status == "proposed"


def test_rates_on_the_page_of_an_endpoint_wait(ann: Client) -> None:
    """An approver who may write more fields changes no field that was not proposed."""
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    endpoint.is_moderated = True
    endpoint.save_fields("is_moderated")
    demand(ChangeKind.PRICES)
    finance = sign_in("fin", Role.FINANCE)
    rates = {"prompt": "250000", "completion": "500000", "image": "0", "request": "0"}
    change(finance, endpoint, {**rates, **WHY})
    shown = ann.get(page(proposed())).content.decode()
    assert "$250,000 per million" in shown
    made, text = approve(ann)
    assert (made.status, text) == ("applied", "It is changed.")
    found = ModelEndpoint.objects.select_related("price").get()
    assert (found.price.price.text("prompt"), found.is_moderated) == ("0.25", True)


def test_a_role_cannot_approve_fields_that_it_may_not_write(ann: Client) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    demand(ChangeKind.PRICES)
    finance = sign_in("fin", Role.FINANCE)
    sent = {**initial(ann, endpoint), "prompt": "250000", "quantization": "fp8"}
    change(ann, endpoint, {**sent, **WHY})
    with snapshots.unchanged():
        made, text = approve(finance)
        assert text.startswith("Your role may not write all fields of this")
        assert made.status == "proposed"


def test_a_new_endpoint_needs_a_second_person_for_its_price(ann: Client, bob: Client) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    demand(ChangeKind.PRICES)
    sent = {
        "model": str(model.pk), "provider": str(provider.pk), "upstream_model_id": "m",
        "region": "global", "prompt": "1", "completion": "2",
        "image": "0", "request": "0", "supported_parameters": "",
    }  # fmt: skip
    ann.post(reverse("admin:catalog_modelendpoint_add"), {**sent, **WHY})
    assert not ModelEndpoint.objects.exists()
    made, text = approve(bob)
    assert (made.status, text) == ("applied", f"{model} at {provider} is added.")
    assert ModelEndpoint.objects.get().price.price.text("prompt") == "0.000001"


def test_the_guardrail_of_a_workspace_needs_a_second_person(
    ann: Client, bob: Client, tenant: Tenant
) -> None:
    assigned = make_guardrail(tenant.workspace)
    shared = Guardrail.objects.edit_workspace_default(tenant.workspace, description="Old.")
    demand(ChangeKind.GUARDRAILS)
    change(ann, assigned, {**initial(ann, assigned), "description": "New."})
    assigned.refresh_from_db()
    assert assigned.description == "New."
    change(ann, shared, {**initial(ann, shared), "description": "New.", **WHY})
    shared.refresh_from_db()
    assert shared.description == "Old."
    made, _ = approve(bob)
    shared.refresh_from_db()
    assert (made.organization_id, shared.description) == (tenant.organization.pk, "New.")


@pytest.mark.parametrize(
    ("noun", "name", "was", "value"),
    [("organization", "requires_zdr", False, "on"), ("workspace", "fallback", None, "any")],
)
def test_preferences_of_an_organization_need_a_second_person(
    ann: Client, bob: Client, tenant: Tenant, noun: str, name: str, was: Any, value: str
) -> None:
    demand(ChangeKind.GUARDRAILS)
    row = getattr(tenant, noun)
    change(ann, row, {**initial(ann, row), name: value, **WHY})
    row.refresh_from_db()
    assert getattr(row, name) == was
    approve(bob)
    row.refresh_from_db()
    assert getattr(row, name) == (True if value == "on" else value)


def test_the_fallback_of_a_private_endpoint_needs_a_second_person(
    ann: Client, bob: Client, active: PrivateEndpoint
) -> None:
    demand(ChangeKind.GUARDRAILS)
    with snapshots.unchanged():
        press(ann, active, "limit_fallback", fallback="any", **WHY)
    [row] = proposed().changes
    assert (row["outcome"], row["changes"]) == ("update", [["Fallback", "–", "any", "", ""]])
    made, text = approve(bob)
    assert (made.status, text) == ("applied", "The fallback is saved.")
    active.refresh_from_db()
    assert active.fallback == "any"


def test_a_deletion_waits(ann: Client, bob: Client, tenant: Tenant) -> None:
    guardrail = make_guardrail(tenant.workspace)
    demand(ChangeKind.DELETIONS)
    shown = ann.get(page(guardrail, "remove")).content.decode()
    assert (
        '<p class="cw-panel mb-4" role="note">Another operator (Administrator or Support) '
        "must approve this." in shown
    )
    assert "Propose" in shown
    with snapshots.unchanged():
        assert "Reason" in press(ann, guardrail, "remove").content.decode()
        assert not ChangeSet.objects.exists()
        press(ann, guardrail, "remove", **WHY)
    made, text = approve(bob)
    assert (made.status, text) == ("applied", f"{guardrail} is deleted.")
    assert not Guardrail.objects.exists()


@pytest.mark.parametrize(("given", "shown"), [({"release": "on"}, "yes"), ({}, "no")])
def test_a_deletion_shows_whether_it_releases_the_model(
    ann: Client, bob: Client, active: PrivateEndpoint, given: dict[str, str], shown: str
) -> None:
    demand(ChangeKind.DELETIONS)
    with snapshots.unchanged():
        press(ann, active, "remove", **given, **WHY)
    assert proposed().changes[0]["changes"] == [
        ["Private endpoint", str(active), "deleted", "", ""],
        ["Release the model", "–", shown, "", ""],
    ]
    assert approve(bob)[0].status == "applied"
    active.refresh_from_db()
    assert (active.released_at is not None) == (shown == "yes")


def test_a_release_is_no_deletion(ann: Client, bob: Client, active: PrivateEndpoint) -> None:
    active.remove()
    demand(ChangeKind.DELETIONS)
    with snapshots.unchanged():
        press(ann, active, "release", **WHY)
    [row] = proposed().changes
    assert row["outcome"] == "update"
    assert row["changes"] == [["Model", str(active.model), "not private any more", "", ""]]
    assert approve(bob)[1] == f"{active.model} is not private any more."


def test_selected_endpoints_wait_one_by_one(ann: Client, bob: Client, tenant: Tenant) -> None:
    provider = factories.make_provider()
    rows = [factories.make_draft(tenant, factories.make_model(), provider) for _ in range(2)]
    demand(ChangeKind.DELETIONS)
    chosen = {"action": "remove_selected", "_selected_action": [str(row.pk) for row in rows]}
    asked = ann.post(listing(PrivateEndpoint), chosen)
    assert "Another operator must approve this." in asked.content.decode()
    with snapshots.unchanged():
        ann.post(listing(PrivateEndpoint), {**chosen, "confirmed": "yes"})
        assert not ChangeSet.objects.exists()
        ann.post(listing(PrivateEndpoint), {**chosen, "confirmed": "yes", **WHY})
        assert ChangeSet.objects.count() == 2
    for made in ChangeSet.objects.all():
        assert decide(bob, made) == "It is done."
    assert not PrivateEndpoint.objects.filter(deleted_at=None).exists()


@pytest.mark.parametrize("way", ["page", "list"])
def test_the_deletion_of_an_operator_waits(ann: Client, bob: Client, way: str) -> None:
    leaving = User.objects.create_user("leaving")
    demand(ChangeKind.DELETIONS)
    if way == "page":
        path, sent = page(leaving, "delete"), {"post": "yes"}
        asked = ann.get(path)
    else:
        path = listing(User)
        sent = {"action": "delete_selected", "_selected_action": str(leaving.pk), "post": "yes"}
        asked = ann.post(path, {name: sent[name] for name in ("action", "_selected_action")})
    assert "Another operator must approve this." in asked.content.decode()
    answer = ann.post(path, sent, follow=True)
    assert messages_of(answer)[0].startswith("Another operator must approve this. Say why")
    assert not ChangeSet.objects.exists()
    ann.post(path, {**sent, **WHY})
    assert User.objects.filter(pk=leaving.pk).exists()
    made, text = approve(bob)
    assert (made.status, text) == ("applied", "It is deleted.")
    assert not User.objects.filter(pk=leaving.pk).exists()


def test_the_deletion_of_a_group_waits(ann: Client, bob: Client) -> None:
    group = Group.objects.create(name="Helpers")
    demand(ChangeKind.DELETIONS)
    ann.post(page(group, "delete"), {"post": "yes", **WHY})
    assert Group.objects.filter(pk=group.pk).exists()
    approve(bob)
    assert not Group.objects.filter(pk=group.pk).exists()


def upload(client: Client, data: bytes) -> Any:
    """Sends a catalogue file, and confirms its preview with a reason."""
    path = reverse("admin:catalog_modelendpoint_import_file")
    shown = client.post(path, {"file": SimpleUploadedFile("new.json", data)})
    signed = shown.context["signed_upload"]
    return client.post(path, {"signed_upload": signed, **WHY}, follow=True)


def upload_draft(client: Client, tenant: Tenant, draft: dict[str, Any]) -> None:
    """Sends a file with one private endpoint, and confirms its preview with a reason."""
    path = reverse("admin:endpoints_privateendpoint_import_file")
    file = SimpleUploadedFile("e.jsonl", json.dumps(draft).encode())
    shown = client.post(path, {"file": file, "organization": str(tenant.organization.pk)})
    client.post(path, {"signed_upload": shown.context["signed_upload"], **WHY})


def test_a_draft_with_a_fallback_needs_a_second_person(
    ann: Client, bob: Client, tenant: Tenant
) -> None:
    draft = body_of(factories.make_model(), factories.make_provider())
    demand(ChangeKind.GUARDRAILS)
    with snapshots.unchanged():
        upload_draft(ann, tenant, {**draft, "settings": {"fallback": "any"}})
    [row] = proposed().changes
    assert ["Fallback", "–", "any", "", ""] in row["changes"]
    assert approve(bob)[0].status == "applied"
    assert PrivateEndpoint.objects.get().fallback == "any"


def test_an_import_waits_and_is_planned_again(ann: Client, bob: Client) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    content = json.loads(imports.export()[0])
    content["endpoints"][0]["pricing"]["prompt"] = "0.000009"
    data = json.dumps(content).encode()
    demand(ChangeKind.PRICES)
    with snapshots.unchanged():
        upload(ann, data)
        first = proposed()
    assert "$9 per million" in bob.get(page(first)).content.decode()

    endpoint.is_moderated = True
    endpoint.save_fields("is_moderated")
    assert decide(bob, first).startswith("Changed since it was proposed: what the file changes.")
    upload(ann, data)
    made, text = approve(bob)
    assert (made.status, text.partition(".")[0]) == ("applied", "The file was imported")
    assert made.sealed_arguments is None
    found = ModelEndpoint.objects.select_related("price").get()
    assert found.price.price.text("prompt") == "0.000009"
    entry = AuditEntry.objects.get(kind="import")
    assert (entry.actor, entry.action) == ("operator bob", f"{made}, proposed by operator ann")


def test_a_file_that_removes_one_of_many_parameters_names_it(ann: Client, bob: Client) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    names = [f"parameter_{number:02}" for number in range(20)]
    endpoint.supported_parameters = names
    endpoint.save_fields("supported_parameters")
    content = json.loads(imports.export()[0])
    content["endpoints"][0]["supported_parameters"] = names[:-1]
    demand(ChangeKind.PRICES)
    with snapshots.unchanged():
        upload(ann, json.dumps(content).encode())
        made = proposed()
    label = "Supported parameters: removed → added"
    assert made.changes[0]["changes"] == [[label, names[-1], "–", "", ""]]
    assert label in bob.get(page(made)).content.decode()


def test_a_file_shows_the_host_of_its_new_provider_and_the_price_of_its_draft(
    ann: Client, bob: Client, tenant: Tenant
) -> None:
    model, provider = factories.make_model(), factories.make_provider()
    content = json.loads(imports.export()[0])
    made = {"slug": "made", "name": "Made", "base_url": "https://listener.example/v1"}
    content["providers"] = [{**content["providers"][0], **made}]
    draft = {**body_of(model, provider), "pricing": {"prompt": "0.000009", "completion": "0"}}
    demand(ChangeKind.PRICES)
    with snapshots.unchanged():
        upload(ann, json.dumps(content).encode())
        upload_draft(ann, tenant, draft)
    catalogue, drafts = ChangeSet.objects.order_by("pk")
    for change_set, texts in (
        (catalogue, ["Base URL", "https://listener.example/v1", "Dialect", "openai"]),
        (drafts, ["$9 per million", "Upstream model", draft["upstream_model_id"]]),
    ):
        text = bob.get(page(change_set)).content.decode()
        assert [each for each in texts if f">{each}<" not in text] == []


def test_a_file_of_which_rows_would_be_hidden_is_not_proposed(
    ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "SHOWN", 1)
    factories.make_endpoint(factories.make_model(), factories.make_provider())
    content = json.loads(imports.export()[0])
    content["endpoints"][0]["pricing"]["prompt"] = "0.000009"
    content["providers"][0]["name"] = "Another name"
    data = json.dumps(content).encode()
    path = reverse("admin:catalog_modelendpoint_import_file")
    planned = ann.post(path, {"file": SimpleUploadedFile("new.json", data)})
    assert planned.context["hidden"] == 1
    demand(ChangeKind.PRICES)
    with snapshots.unchanged():
        for sent in (
            {"file": SimpleUploadedFile("new.json", data)},
            {"signed_upload": planned.context["signed_upload"], **WHY},
        ):
            [refusal] = ann.post(path, sent).context["refusals"]
            assert refusal == (
                "2 rows change, and who approves a file sees at most 1. Send it in smaller files, "
                "or use the import command."
            )
    assert not ChangeSet.objects.exists()


def test_an_import_of_a_page_without_a_file_is_refused(ann: Client, bob: Client) -> None:
    proposal = Proposal(
        kind=ChangeKind.PRICES,
        operation=IMPORT,
        page="accounts.member",
        needs="accounts.change_member",
        subject="import of members.csv",
        arguments={"name": "members.csv", "organization": None},
    )
    propose(proposal, by="operator ann", reason="The file has no page.")
    with snapshots.unchanged():
        made, text = approve(bob)

        assert text == "Your role may not do this itself, so it may not decide about it."
        assert made.status == "proposed"


def test_a_proposal_of_a_price_list_needs_a_second_person(ann: Client, bob: Client) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    proposal = make_proposal(endpoint)
    demand(ChangeKind.PRICES)
    press(ann, proposal, "approve", **WHY)
    proposal.refresh_from_db()
    assert proposal.status == "waiting"
    made, text = approve(bob)
    proposal.refresh_from_db()
    assert (made.status, proposal.status) == ("applied", "approved")
    assert text == "The changes are applied."


def test_a_rotation_waits(ann: Client, bob: Client, tenant: Tenant) -> None:
    credential = factories.make_credential(tenant, factories.make_provider())
    demand(ChangeKind.CREDENTIALS)
    with snapshots.unchanged():
        press(ann, credential, "rotate", secret=CANARY, **WHY)
    assert CANARY not in bob.get(page(proposed())).content.decode()
    made, _ = approve(bob)
    credential.refresh_from_db()
    assert (made.status, credential.reveal().reveal()) == ("applied", CANARY)


def test_a_rotation_validates_the_endpoints_at_its_approval(
    ann: Client, bob: Client, tenant: Tenant, simulator: Simulator
) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider)
    place = {"base_url": simulator.base_url}
    endpoint = factories.make_active(tenant, factories.make_model(), provider, **place)
    demand(ChangeKind.CREDENTIALS)
    asked = len(simulator.requests)
    before = snapshots.everything()
    press(ann, credential, "rotate", secret="bad-credential-0123456789", revalidate="on", **WHY)
    assert len(simulator.requests) == asked
    refused = proposed()
    shown = bob.get(page(refused)).content.decode()
    assert "validated with the new secret at the approval" in shown
    assert "does not pass with the new secret" in decide(bob, refused)
    assert (refused.status, snapshots.everything()) == ("proposed", before)
    decide(bob, refused, "reject")

    press(ann, credential, "rotate", secret=CANARY, revalidate="on", **WHY)
    made, text = approve(bob)
    assert made.status == "applied"
    assert text == "The secret is replaced. Endpoints validated with it: 1."
    credential.refresh_from_db()
    endpoint.refresh_from_db()
    assert credential.reveal().reveal() == CANARY
    assert endpoint.validation is not None
    assert endpoint.validation.credential_version == credential.version


def test_a_button_says_that_a_form_proposes(ann: Client, tenant: Tenant) -> None:
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, factories.make_provider("other"))
    carol = sign_in("carol", Role.READ_ONLY)
    saving = ["Save", "Save and continue editing", "Save and add another"]
    assert buttons(ann, page(provider)) == saving
    demand(ChangeKind.CREDENTIALS)
    assert buttons(ann, page(credential)) == ["Propose"]
    assert buttons(ann, page(provider)) == ["Save or propose"]
    assert buttons(ann, reverse("admin:catalog_provider_add")) == ["Propose"]
    shown = ann.get(page(credential)).content.decode()
    assert "Another operator (Administrator) must approve this." in shown
    assert "must approve" not in carol.get(page(credential)).content.decode()
    assert buttons(carol, page(credential)) == []


def buttons(client: Client, path: str) -> list[str]:
    """Returns the texts of the buttons that send the form of a page."""
    found = re.findall(
        r'<button[^>]*name="_(?:save|continue|addanother)"[^>]*>(.*?)</button>',
        client.get(path).content.decode(),
        re.DOTALL,
    )
    return [" ".join(text.split()) for text in found]


def test_new_credential_keys_encrypt_what_waits(
    ann: Client, bob: Client, settings: Any, provider: Provider
) -> None:
    change(ann, provider, {**initial(ann, provider), "secret": CANARY, **WHY})
    settings.CREDENTIAL_KEYS = [b"n" * 32, *settings.CREDENTIAL_KEYS]
    call_command("rotate_credential_keys")
    settings.CREDENTIAL_KEYS = settings.CREDENTIAL_KEYS[:1]
    assert read_sealed(proposed()) == {"secret": [CANARY]}
    settings.CREDENTIAL_KEYS = [b"o" * 32]
    with snapshots.unchanged():
        made, text = approve(bob)
        assert text.startswith("None of CREDENTIAL_KEYS decrypts what was proposed.")
        assert made.status == "proposed"
