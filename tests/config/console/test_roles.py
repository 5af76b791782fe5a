from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.db import connection, transaction
from django.template.response import SimpleTemplateResponse
from django.urls import reverse

from accounts.models import Subscription
from catalog.aliases.changes import create_alias
from catalog.models import ModelEndpoint
from config.apps import Audience, Role, declarations
from config.console.sign_in import roles
from config.console.site import RefusalMiddleware
from tests.support import factories
from tests.support.console import STATUSES, SUBMIT, fingerprint, messages_of, page, urls
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press, sign_in
from tests.support.operators.powers import WRITES
from tests.support.suite.tiers import draw_examples

EVERYBODY = set(Role)
# Every role has these pages, for navigation and for the operator's own account.
OWN = {"index", "logout", "login", "password_change", "password_change_done", "jsi18n",
       "two_factor", "search", "saved_views",
       "app_list", "autocomplete", "view_on_site", ""}  # fmt: skip
# Every role may read these pages, and nobody may send them anything.
READ = {
    f"inference_generation_{name}" for name in ("live", "live_rows", "health", "errors")
}  # fmt: skip
LISTS = ("_changelist", "_history", "_export_file", "_export_csv")
OF_OPERATORS = (
    "auth_user", "auth_group", "otp_totp_totpdevice", "config_signinlimit", "config_changerule",
)  # fmt: skip


def held_by(role: Role) -> set[tuple[str, str]]:
    """Returns the permissions of a role, each with the label of its application."""
    rights = Group.objects.get(name=role).permissions
    return set(rights.values_list("content_type__app_label", "codename"))


def test_roles_have_their_permissions(db: None) -> None:
    roles.update_roles()
    before = fingerprint()
    roles.update_roles()

    assert fingerprint() == before
    assert set(Group.objects.values_list("name", flat=True)) == EVERYBODY
    for role in EVERYBODY:
        held = {
            (f"{right.content_type.app_label}.{right.content_type.model}", right.codename)
            for right in Group.objects.get(name=role).permissions.select_related("content_type")
        }
        assert held == {
            (f"{app}.{codename.partition('_')[2]}", codename)
            for app, codename in roles.permissions_of(role)
        }


def test_permissions_are_the_ones_that_django_creates(db: None) -> None:
    """A misspelt codename or name would create a second permission beside Django's."""
    roles.update_roles()
    for label, declaration in declarations().items():
        if declaration.audience is Audience.NOBODY:
            continue
        model = apps.get_model(label)
        found = Permission.objects.filter(
            content_type__app_label=model._meta.app_label,
            content_type__model=model._meta.model_name,
        )
        assert set(found.values_list("codename", "name")) == {
            (f"{verb}_{model._meta.model_name}", f"Can {verb} {model._meta.verbose_name_raw}")
            for verb in ("add", "change", "delete", "view")
        }


def test_every_model_declares_its_audience() -> None:
    """A new model needs an audience in its app's ``apps.py``, or an INTERNAL declaration."""
    models = {model._meta.label_lower for model in apps.get_models(include_auto_created=True)}
    proxies = {
        model._meta.label_lower
        for model in apps.get_models()
        if model._meta.proxy and model not in admin.site._registry
    }

    assert declarations().keys() == models - proxies


def test_every_page_has_an_audience() -> None:
    for model in admin.site._registry:
        assert declarations()[model._meta.label_lower].audience is not Audience.NOBODY


def test_update_keeps_permissions_that_an_operator_added(db: None) -> None:
    roles.update_roles()
    group = Group.objects.get(name=Role.READ_ONLY)
    group.permissions.add(Permission.objects.get(codename="add_organization"))

    roles.update_roles()

    assert group.permissions.filter(codename="add_organization").exists()


@pytest.mark.django_db(transaction=True)
def test_migrate_leaves_a_removed_permission_removed() -> None:
    roles.update_roles()
    group = Group.objects.get(name=Role.SUPPORT)
    group.permissions.remove(Permission.objects.get(codename="change_apikey"))

    call_command("migrate", verbosity=0)

    removed = {("accounts", "change_apikey")}
    assert held_by(Role.SUPPORT) == set(roles.permissions_of(Role.SUPPORT)) - removed


@pytest.mark.django_db(transaction=True)
def test_migrate_gives_the_permissions_of_a_new_model_to_the_roles() -> None:
    roles.update_roles()
    Permission.objects.filter(codename__endswith="_apikey").delete()

    call_command("migrate", verbosity=0)

    for role in EVERYBODY:
        assert held_by(role) == set(roles.permissions_of(role))


@pytest.fixture
def _bare_refusals(settings: Any) -> None:
    """Refuses without the page that explains it, which takes longer than all else."""
    name = f"{RefusalMiddleware.__module__}.{RefusalMiddleware.__name__}"
    settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if each != name]


@pytest.mark.usefixtures("_bare_refusals")
@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_role_sees_only_its_pages(world: dict[str, Any], role: str) -> None:
    client = sign_in("ann", role)
    wrong = []
    for name, path in draw_examples(list(urls(world))):
        status = client.get(path).status_code
        if name in OWN:
            expected = STATUSES.get(name, 200)
            # An operator who sees no model of an application gets 404 for its list.
            if (
                name == "app_list"
                and role != Role.ADMINISTRATOR
                and re.search("/(auth|otp_totp)/", path)
            ):
                expected = 404
        elif name.startswith(OF_OPERATORS) and role != Role.ADMINISTRATOR:
            expected = 403
        elif STATUSES.get(name) is not None:
            expected = STATUSES[name]
        elif name.endswith("_history"):
            expected = 302
        elif name in READ or name.endswith(
            ("_changelist", "_change", "_export_file", "_export_csv")
        ):
            expected = 200
        else:
            expected = 200 if role in WRITES.get(name, set()) else 403
        if status != expected:
            wrong.append((name, status, expected))

    assert wrong == []


@pytest.fixture
def _bare_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers with empty pages: a status is known before its page is rendered."""
    monkeypatch.setattr(SimpleTemplateResponse, "rendered_content", "")


@pytest.mark.usefixtures("_bare_refusals", "_bare_pages")
@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_role_posts_only_where_the_table_allows_it(world: dict[str, Any], role: str) -> None:
    client = sign_in("ann", role)
    before = fingerprint()
    wrong = []
    for name, path in draw_examples(list(urls(world))):
        # Who may read what a list shows may send it anything; every role may what a reader may.
        is_list = name.endswith(LISTS) and not name.startswith(OF_OPERATORS)
        if name in OWN or (is_list and role != Role.READ_ONLY):
            continue
        with transaction.atomic():
            status = client.post(path, {**SUBMIT, "post": "yes"}).status_code
            transaction.set_rollback(True)
        may = role in WRITES.get(name, set())
        if name.endswith(LISTS):
            may = role == Role.ADMINISTRATOR or not name.startswith(OF_OPERATORS)
        if name in READ:
            assert status == 405
            continue
        if (status != 403) != may:
            wrong.append((name, status))

    assert wrong == []
    assert fingerprint() == before


@pytest.mark.django_db(transaction=True)
def test_migrate_creates_the_roles() -> None:
    Group.objects.all().delete()
    call_command("migrate", verbosity=0)

    assert set(Group.objects.values_list("name", flat=True)) == EVERYBODY
    for role in EVERYBODY:
        assert held_by(role) == set(roles.permissions_of(role))


def test_every_page_in_the_table_exists(world: dict[str, Any]) -> None:
    names = {name for name, _ in urls(world)}

    assert WRITES.keys() <= names
    assert connection.in_atomic_block


@pytest.mark.parametrize("role", [Role.FINANCE, Role.ADMINISTRATOR])
def test_finance_changes_only_the_rates_of_an_endpoint(db: None, role: str) -> None:
    endpoint = factories.make_endpoint(factories.make_model(), factories.make_provider())
    endpoint.is_moderated = True
    endpoint.save_fields("is_moderated")
    rates = {"prompt": "250000", "completion": "500000", "image": "0", "request": "0"}
    page = reverse("admin:catalog_modelendpoint_change", args=[endpoint.pk])
    answer = sign_in("ann", role).post(page, {**rates, "zdr": "on", "quantization": "fp8"})

    assert answer.status_code == 302
    found = ModelEndpoint.objects.select_related("price").get()
    assert found.price.price.text("prompt") == "0.25"
    stated = (found.is_listed, found.is_moderated, found.zdr, found.quantization)
    assert stated == (
        (True, True, False, None) if role == Role.FINANCE else (True, False, True, "fp8")
    )


def test_roles_that_care_for_tenants_change_nothing_of_the_operators(tenant: Tenant) -> None:
    """An operator's alias is one of all tenants; its events wake who is on call."""
    model = factories.make_model()
    alias = create_alias(organization_id=None, name="gpt", targets=[model.slug])
    theirs = create_alias(organization_id=tenant.organization.pk, name="gpt", targets=[model.slug])
    receiver, _ = Subscription.objects.create_subscription(
        organization=None, form="webhook", name="On call", url="https://hooks.example.com/a",
        kinds=["deposit.in_review"],
    )  # fmt: skip
    client = sign_in("ann", Role.SUPPORT)
    before = fingerprint()
    form = {"name": "gpt", "targets": "acme/other"}
    for row in (alias, receiver):
        assert client.post(page(row), form).status_code == 403
        assert "admin:action" not in client.get(page(row)).content.decode()
    refusal = (
        "What belongs to no organization is the operator's own, and your role may not change it. "
        "Nothing was changed."
    )
    for row, verb in ((alias, "remove"), (receiver, "disable"), (receiver, "remove")):
        assert messages_of(press(client, row, verb)) == [refusal]
    added = client.post(reverse("admin:catalog_modelalias_add"), {**form, "name": "gpt-5"})
    assert refusal in html.unescape(added.content.decode())
    lines = SimpleUploadedFile("a.jsonl", b'{"name": "gpt-5", "targets": ["acme/falcon"]}')
    sent = client.post(reverse("admin:catalog_modelalias_import_file"), {"file": lines})
    assert refusal in html.unescape(sent.content.decode())
    assert fingerprint() == before

    assert messages_of(press(client, theirs, "remove")) == ["gpt is deleted."]
    administrator = sign_in("bob")
    assert messages_of(press(administrator, alias, "remove")) == ["gpt is deleted."]
    assert messages_of(press(administrator, receiver, "remove")) == ["The subscription is deleted."]


def test_every_page_with_rows_of_the_operators_names_who_may_change_them() -> None:
    """Roles other than the administrator must not change what applies to all tenants."""
    for model, found in admin.site._registry.items():
        column = {field.name: field for field in model._meta.fields}.get("organization")
        if column is None or not column.null or found.own_permission:
            continue
        powers = declarations()[model._meta.label_lower].permissions
        assert not powers.get(Role.SUPPORT), f"{found} needs own_permission"
