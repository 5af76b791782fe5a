"""Properties of every page of the console."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import (
    ApiKey,
    BroadcastDestination,
    ByokCredential,
    Guardrail,
    Member,
    Organization,
    Preset,
    Workspace,
    workspace_for,
)
from catalog.models import LanguageModel, ModelAlias, ModelEndpoint, PriceVersion, Provider
from endpoints.models import PrivateEndpoint, Validation
from endusers.models import EndUser
from inference.models import Generation
from tests.support import factories
from tests.support.broadcast.destinations import make_destination
from tests.support.console import (
    SECRET,
    expected_status,
    fingerprint,
    listing,
    page,
    read_facts,
    urls,
)
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_member, make_preset

ROOMS: Final = ("accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference")
_BARE_TIME = re.compile(r"\d{4}-\d\d-\d\d[ \xa0]\d\d:\d\d(?::\d\d)?(?![\d:])(?![ \xa0]UTC)")
_TEXT = re.compile(r">\s*([^<>]*?)\s*<")
_ATTRIBUTE = re.compile(r"(By )?(Id|Is [a-z ]+|is [a-z]+|[A-Z][a-z ]* (id|url|zdr|byok))")


def test_pages_stand_on_few_classes_of_our_own() -> None:
    found = {
        model._meta.label: sum(base.__module__.startswith(ROOMS) for base in type(made).__mro__[1:])
        for model, made in admin.site._registry.items()
    }
    assert {label: count for label, count in found.items() if count > 4} == {}


def test_every_page_answers_and_shows_no_secret_no_bare_time_and_no_name_of_an_attribute(
    operator: Client, world: dict[str, Any], tenant: Tenant
) -> None:
    """Fetches each page once, and changes no row; a dialog names its object and its tenant."""
    held = (SECRET, tenant.api_key, tenant.management_key)
    before, names, found = fingerprint(), set(), []
    dialogs = 0

    for name, path in urls(world):
        names.add(name)
        answer = operator.get(path)
        text = answer.getvalue().decode()
        if answer.status_code != expected_status(name):
            found.append((path, answer.status_code))
        found += [(path, "a secret") for secret in held if secret in text]
        if answer["Content-Type"].startswith("text/html"):
            found += [(path, time) for time in find_bare_times(text)]
        if name.endswith(("_changelist", "_change", "_add")):
            found += [(path, each) for each in find_names_of_attributes(text)]
        if 'id="dialog-form"' in text:
            dialogs += 1
            found += [(path, fact) for fact in find_wrong_names(text, world[label_in(path)])]

    assert found == []
    assert fingerprint() == before
    assert dialogs > 50
    assert names >= {
        "accounts_apikey_revoke",
        "endpoints_privateendpoint_activate",
        "endpoints_privateendpoint_remove",
    }
    assert "In UTC." in operator.get(listing(ApiKey, "add")).content.decode()


def find_bare_times(content: str) -> list[str]:
    """Returns the times without a zone; an input has it in its help, attributes need none."""
    text = re.sub(r"<[^>]*>", "\n", content)
    return [*_BARE_TIME.findall(text), *re.findall("UTC UTC", text)]


def find_names_of_attributes(content: str) -> list[str]:
    texts = map(html.unescape, _TEXT.findall(content))
    return [text for text in texts if _ATTRIBUTE.fullmatch(text)]


def label_in(path: str) -> str:
    return ".".join(path.split("/")[2:4])


def find_wrong_names(content: str, row: Any) -> list[str]:
    """Returns what a dialog does not say of its object: its name first, and its organization's."""
    facts = read_facts(content)
    owner = row if isinstance(row, Organization) else getattr(row, "organization", None)
    found = [] if next(iter(facts.values()), None) == str(row) else ["no name of its object"]
    if facts.get("Organization") != (None if owner is None else str(owner)):
        found.append("another organization")
    return found


def test_the_faults_of_a_page_are_found(tenant: Tenant) -> None:
    text = "<p title='2026-01-02 03:04'>2026-01-02 03:04, 2026-01-02 03:05 UTC</p><i> Is zdr </i>"
    assert find_bare_times(text) == ["2026-01-02 03:04"]
    assert find_names_of_attributes(text) == ["Is zdr"]
    organization = tenant.organization
    dialog = f"<dt>Name</dt><dd>{organization}</dd><dt>Organization</dt><dd>{organization}</dd>"
    assert find_wrong_names(dialog, organization) == []
    faults = ["no name of its object", "another organization"]
    assert find_wrong_names("<dt>Name</dt><dd>Other</dd>", organization) == faults


def test_every_page_redirects_anonymous_visitors_to_the_login(
    db: None, world: dict[str, Any]
) -> None:
    stranger = Client()

    for name, path in urls(world):
        if name in ("login", "logout", "jsi18n"):
            continue
        response = stranger.get(path)
        assert (response.status_code, path) == (302, path)
        assert response["Location"].startswith(("/admin/login/", path))


def test_pages_have_a_content_security_policy_and_load_nothing_from_other_hosts(
    operator: Client, world: dict[str, Any]
) -> None:
    for path in ("/admin/", "/admin/login/", page(world["endpoints.privateendpoint"])):
        response = operator.get(path)
        assert "script-src 'self' 'unsafe-eval';" in response["Content-Security-Policy"] + ";"
        assert "Content-Security-Policy-Report-Only" not in response
        sources = re.findall(r'(?:src|<link[^>]+href|hx-get)="([^"]+)"', response.content.decode())
        assert [source for source in sources if not source.startswith("/")] == []

    assert "unsafe-eval" not in operator.get("/docs")["Content-Security-Policy"]


MENU = {
    "Organizations": ["Organizations"],
    "Keys": ["Keys"],
    "End users": ["End users"],
    "Endpoints": [
        "Public endpoints", "Private endpoints", "Validations", "Own models", "Own providers",
    ],
    "Models": ["Models", "Aliases"],
    "Providers": ["Providers"],
    "Requests": ["Requests", "Live", "Health", "Errors", "Feedback"],
    "Money": ["Accounts", "Ledger", "Grants", "Top-ups", "Deposits", "Under review", "Chains"],
    "Alerts": ["Webhooks", "Deliveries", "Destinations"],
    "Operators": [
        "Operators", "Roles", "Sign-ins", "Second factors", "Change sets", "Change rules", "Audit",
    ],
    "System": ["Events", "Partitions", "Leases", "Proposals"],
}  # fmt: skip


def test_the_menu_has_twelve_entries_whose_pages_are_tabs(operator: Client) -> None:
    response = operator.get("/admin/")
    [section] = response.context["sidebar_navigation"]
    assert [item["title"] for item in section["items"]] == ["Overview", *MENU]
    groups = {
        group["name"]: [page["name"] for page in group["models"]]
        for group in response.context["app_list"]
    }
    assert groups.pop("More") != []
    assert groups == MENU
    for item in section["items"][1:]:
        answer = operator.get(item["link"])
        titles = MENU[item["title"]]
        bar = answer.context["tab_bar"]
        assert (bar is None) == (len(titles) == 1)
        for title, link, _ in [] if bar is None else bar.tabs:
            shown = operator.get(link).context
            assert [name for name, _, here in shown["tab_bar"].tabs if here] == [title]
            active = [
                each["title"] for each in shown["sidebar_navigation"][0]["items"] if each["active"]
            ]
            assert active == [item["title"]]


def test_index_offers_only_what_the_operator_may_see(db: None) -> None:
    user = User.objects.create_user("auditor", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_generation"))
    client = Client()
    client.force_login(user)

    response = client.get("/admin/")

    [group] = response.context["app_list"]
    assert [page["name"] for page in group["models"]] == ["Requests", "Live", "Health", "Errors"]


def _each(make: Callable[[Organization], object]) -> Callable[[Tenant, int], None]:
    """Returns a function that makes a number of organizations, each with a row."""

    def run(tenant: Tenant, count: int) -> None:
        for number in range(count):
            make(Organization.objects.create_organization(name=f"Organization {number}"))

    return run


def _default(organization: Organization) -> Workspace:
    return workspace_for(organization.pk, None)


def _make_used_guardrail(organization: Organization) -> None:
    guardrail = make_guardrail(_default(organization))
    guardrail.assign_members([make_member(organization)], by="test")


def _credentials(tenant: Tenant, count: int) -> None:
    for _ in range(count):
        factories.make_credential(tenant, factories.make_provider())


def _endpoints(tenant: Tenant, count: int) -> None:
    for _ in range(count):
        model, provider = factories.make_model(), factories.make_provider()
        factories.make_endpoint(model, provider)
        draft = factories.make_draft(tenant, model, provider)
        credential = factories.make_credential(tenant, provider)
        validation = factories.make_validation(draft, credential)
        factories.make_generation(tenant)
        draft.validation = validation
        draft.save_fields("validation")


def _end_users(tenant: Tenant, count: int) -> None:
    for _ in range(count):
        user = f"user {EndUser.objects.count()}"
        EndUser.objects.register(organization_id=tenant.organization.pk, user=user)


@pytest.mark.parametrize(
    ("model", "make"),
    [
        (Organization, _each(lambda owner: None)),
        (Workspace, _each(lambda owner: Workspace.objects.create(
            organization=owner, name="More", slug="more"))),
        (ApiKey, _each(lambda owner: ApiKey.objects.create_key(
            workspace=_default(owner), name="key"))),
        (ByokCredential, _credentials),
        (Member, _each(make_member)),
        (Guardrail, _each(_make_used_guardrail)),
        (ModelAlias, _each(lambda owner: ModelAlias.objects.create(
            organization=owner, name="fast", targets=["acme/falcon"]))),
        (Preset, _each(lambda owner: make_preset(_default(owner)))),
        (BroadcastDestination, _each(lambda owner: make_destination(_default(owner)))),
        (Provider, _endpoints),
        (LanguageModel, _endpoints),
        (ModelEndpoint, _endpoints),
        (PriceVersion, _endpoints),
        (PrivateEndpoint, _endpoints),
        (Validation, _endpoints),
        (EndUser, _end_users),
        (Generation, _endpoints),
    ],
)  # fmt: skip
def test_list_makes_the_same_queries_for_3_rows_and_for_10(
    operator: Client, tenant: Tenant, model: type[Any], make: Callable[[Tenant, int], None]
) -> None:
    counts = []
    for added in (3, 7):
        make(tenant, added)
        operator.get(listing(model))
        with CaptureQueriesContext(connection) as queries:
            response = operator.get(listing(model))
        assert response.status_code == 200
        counts.append(len(queries))

    assert counts[0] == counts[1]
    assert response.context["cl"].result_count >= 10


@pytest.mark.parametrize("label", sorted(m._meta.label for m in admin.site._registry))
def test_search_accepts_any_text(operator: Client, world: dict[str, Any], label: str) -> None:
    model = apps.get_model(label)
    pk = world[model._meta.label_lower].pk

    for term in ("%", "1", "ünï'\"\\", "acme default", str(pk)):
        assert operator.get(listing(model), {"q": term}).status_code == 200


def test_search_finds_a_row_by_its_id(operator: Client, world: dict[str, Any]) -> None:
    for label in ("accounts.apikey", "endpoints.privateendpoint", "endusers.enduser"):
        row = world[label]
        response = operator.get(listing(type(row)), {"q": str(row.pk)})
        assert list(response.context["cl"].result_list) == [row]


def test_money_is_shown_in_full(operator: Client, tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, cost_nano=12_000)

    assert "$0.000012" in operator.get(page(generation)).content.decode()
    assert "$0.000012" in operator.get(listing(Generation)).content.decode()
