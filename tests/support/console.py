"""Addresses, rows and observations for the tests of the operators' console."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client, RequestFactory
from django.urls import URLPattern, URLResolver, resolve, reverse
from django.utils import timezone
from django_otp.plugins.otp_totp.models import TOTPDevice

from accounts.models import ApiKey, Organization, Subscription
from billing.models import Account, ChainState, Deposit, GrantRequest, TopUp, Transfer
from catalog.models import ModelAlias
from config.audit import context as audit
from config.bulk.report import PlanRow
from config.changes.kinds import ChangeKind
from config.changes.proposals import Proposal, propose
from config.console.apps import discover_pages
from config.console.sign_in.models import SignInLimit
from config.credentials import Secret
from config.models import ChangeRule, Departure, Event, Lease
from endpoints.models import OwnModel, PrivateProvider
from endusers.models import EndUser
from inference.models import Feedback
from tests.support import factories
from tests.support.broadcast.destinations import make_destination
from tests.support.catalogue import make_proposal
from tests.support.database.snapshots import MEASUREMENTS
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_member, make_preset

# The routes register the pages; modules of tests read the registry before any route is loaded.
discover_pages()

SECRET = "canary-provider-secret-9f8e7d6c5b4a3210"
SUBMIT = {"_form_submitted": "True"}
TOKEN = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
SENDER = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
SECOND_FACTOR = "c0ffee" * 6
_FACTS = re.compile(r"<dt>(.*?)</dt><dd>(.*?)</dd>", re.DOTALL)


# The models whose rows no operator adds, and further ones whose rows no page deletes.
_ADDED_BY_NOBODY = (
    "accounts_delivery", "catalog_priceversion", "catalog_catalogproposal", "endpoints_validation",
    "inference_generation", "inference_feedback", "billing_account", "billing_transfer",
    "billing_excess", "billing_grantrequest", "billing_topup", "billing_deposit",
    "billing_chainstate", "config_auditentry", "config_departure", "config_event", "config_lease",
    "config_changeset", "config_changerule", "config_signinlimit", "otp_totp_totpdevice",
)  # fmt: skip
_REMOVED_OTHERWISE = (
    "accounts_organization", "accounts_workspace", "accounts_apikey", "accounts_byokcredential",
    "accounts_member", "accounts_guardrail", "accounts_preset", "accounts_subscription",
    "accounts_broadcastdestination", "catalog_provider", "catalog_modelalias",
    "catalog_languagemodel", "catalog_modelendpoint", "endpoints_ownmodel",
    "endpoints_privateendpoint", "endpoints_privateprovider", "endusers_enduser",
)  # fmt: skip
# What answers otherwise than with a page, to an operator who may do everything.
STATUSES = {
    "login": 302,
    "logout": 405,
    "saved_views": 405,
    "view_on_site": 404,
    "": 302,
    "accounts_guardrail_try_filters": 405,
    "accounts_guardrail_backtest": 405,
    "accounts_guardrail_backtest_new": 405,
    **{f"{model}_delete": 403 for model in (*_ADDED_BY_NOBODY, *_REMOVED_OTHERWISE)},
    **{f"{model}_add": 403 for model in _ADDED_BY_NOBODY},
}


# These routes answer with files or data, or they redirect.
NO_PAGES = {"jsi18n", "autocomplete", "search", "logout", "login", "view_on_site", ""}


def expected_status(name: str) -> int:
    """Returns the status of the page with that name for an operator who may do everything."""
    # The history of a row is a page of the audit log.
    return 302 if name.endswith("_history") else STATUSES.get(name, 200)


def make_world(tenant: Tenant) -> dict[str, Any]:
    """Creates a row of every model that has a page; each secret is ``SECRET``."""
    model, provider = factories.make_model(), factories.make_provider()
    provider.set_credential(Secret(SECRET))
    credential = factories.make_credential(tenant, provider, SECRET)
    public = factories.make_endpoint(model, provider)
    draft = factories.make_draft(tenant, model, provider, declared_region="europe")
    generation = factories.make_generation(tenant)
    somebody = User.objects.create_user("somebody")
    chain = ChainState.objects.create(chain_id=8453)
    payment = {
        "chain_id": chain.chain_id,
        "token": TOKEN,
        "token_symbol": "USDC",
        "token_decimals": 6,
        "sender": SENDER,
        "recipient": SENDER,
        "units": 5_000_123,
        "amount_nano": 5_000_123_000,
    }
    now = timezone.now()
    subscription, _ = Subscription.objects.create_subscription(
        organization=tenant.organization, form="slack", url=f"https://chat.example.com/{SECRET}"
    )
    top_up = TopUp.objects.create(
        organization=tenant.organization, expires_at=now, payable_until=now, **payment
    )
    deposit = Deposit.objects.create(
        status="under",
        finding="under",
        ordinal=0,
        tx_hash="0x" + "1" * 64,
        block_number=1,
        block_hash="0x" + "2" * 64,
        mined_at=now,
        top_up=top_up,
        **payment,
    )
    rows = (
        tenant.organization,
        tenant.workspace,
        ApiKey.objects.order_by("name")[0],
        credential,
        make_member(tenant.organization),
        make_guardrail(tenant.workspace),
        make_preset(tenant.workspace),
        make_destination(
            tenant.workspace,
            {"endpoint": "https://otel.example", "headers": {"Authorization": SECRET}},
        ),
        provider,
        model,
        public,
        public.price,
        ModelAlias.objects.create(organization=tenant.organization, name="a", targets=[model.slug]),
        make_proposal(public),
        draft,
        factories.make_validation(draft, credential),
        PrivateProvider.objects.create_provider(
            organization_id=tenant.organization.pk, name="Own Servers"
        ),
        OwnModel.objects.get(
            pk=factories.make_model("own/model", organization=tenant.organization).pk
        ),
        EndUser.objects.register(organization_id=tenant.organization.pk, user="customer-1"),
        generation,
        Feedback.objects.submit(generation, category="latency", comment="slow", by="key"),
        Account.objects.order_by("pk")[0],
        Transfer.objects.order_by("pk")[0],
        factories.make_excess(tenant, reference=generation.pk),
        GrantRequest.objects.create(
            organization=tenant.organization, amount_nano=1, requested_by="operator ann"
        ),
        chain,
        top_up,
        deposit,
        somebody,
        Group.objects.create(name="Helpers"),
        TOTPDevice.objects.create(user=somebody, name="app", key=SECOND_FACTOR),
        SignInLimit.objects.create(scope="address", network="::1", failures=1, resets_at=now),
        audit.record_import("ann", "test", organization_id=None, counts={"created": 1}),
        ChangeRule.objects.get_or_create(kind=ChangeKind.PRICES)[0],
        propose(
            Proposal(
                ChangeKind.PRICES,
                "price",
                "catalog.modelendpoint",
                "catalog.change_modelendpoint",
                str(public),
                str(public.pk),
                changes=[PlanRow("endpoint", str(public), "update", ())],
            ),
            by="operator ann",
            reason="A test.",
        ),
        Lease.objects.create(name="example", until=timezone.now()),
        Departure.objects.create(kind="audit", end=timezone.now(), files=[], seal="0"),
        Event.objects.order_by("pk")[0],
        subscription,
        subscription.send_test(),
    )
    return {row._meta.label_lower: row for row in rows}


def page(row: Any, verb: str = "change") -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{verb}", args=[str(row.pk)])


def listing(model: type[Any], verb: str = "changelist") -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{verb}")


def open_list(model: type[Any], query: str, operator: str = "operator") -> Any:
    """Returns what a list shows to an operator, without the page around it."""
    path = listing(model)
    request = RequestFactory().get(path + query)
    request.user, request.resolver_match = User.objects.get(username=operator), resolve(path)
    return admin.site._registry[model].get_changelist_instance(request)


def fingerprint() -> dict[str, Any]:
    """Returns the version of every row, so that even a write of the same values shows.

    Leaves out measurements, which a service that other tests left behind may still write, and
    sessions, which are written once a minute.
    """
    left_out = {apps.get_model(label)._meta.db_table for label in MEASUREMENTS}
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor)) - left_out - {"django_session"}
        found: dict[str, Any] = {table: [] for table in tables}
        cursor.execute(
            " UNION ALL ".join(
                f"SELECT '{table}', ctid::text, xmin::text, t::text"
                f" FROM {connection.ops.quote_name(table)} t"
                for table in tables
            )
        )
        for table, *row in sorted(cursor.fetchall()):
            found[table].append(row)
    return found


def count_written() -> dict[str, int]:
    """Returns how many rows this transaction has inserted, changed and deleted, by their table.

    Sessions, which keep an operator's messages, are left out.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_xact_user_tables"
            " WHERE n_tup_ins + n_tup_upd + n_tup_del > 0 AND relname <> 'django_session'"
        )
        return dict(cursor.fetchall())


def read_facts(content: str) -> dict[str, str]:
    """Returns what a dialog says of its object, by its titles."""
    return {html.unescape(name): html.unescape(text) for name, text in _FACTS.findall(content)}


def messages_of(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def report_of(response: Any) -> list[str]:
    """Returns the summary of a bulk action and the lines of its details, sorted."""
    [message] = messages_of(response)
    return parse_report(message)


def parse_report(message: str) -> list[str]:
    """Returns the summary in the message of a bulk action, and the lines of its details, sorted."""
    summary, *lines = re.findall(r"<(?:p|li)>(.*?)</(?:p|li)>", message)
    return [html.unescape(text) for text in (summary, *sorted(lines))]


def urls(world: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name and an address of every route of the console."""
    for pattern in admin.site.get_urls():
        if isinstance(pattern, URLResolver):
            prefix = str(pattern.pattern)
            row = world[prefix.strip("/").replace("/", ".")]
            for inner in pattern.url_patterns:
                assert isinstance(inner, URLPattern)
                path = str(inner.pattern)
                path = path.replace("<path:object_id>", str(row.pk)).replace("<id>", str(row.pk))
                yield inner.name or "", f"/admin/{prefix}{path}"
        elif pattern.name == "app_list":
            for label in sorted({model._meta.app_label for model in admin.site._registry}):
                yield "app_list", reverse("admin:app_list", args=[label])
        elif pattern.name == "view_on_site":
            kind = ContentType.objects.get_for_model(Organization)
            row = world["accounts.organization"]
            yield "view_on_site", reverse("admin:view_on_site", args=[kind.pk, row.pk])
        elif pattern.name == "autocomplete":
            query = "?app_label=accounts&model_name=apikey&field_name=workspace&term=def"
            yield "autocomplete", reverse("admin:autocomplete") + query
        elif pattern.name == "search":
            yield "search", reverse("admin:search") + "?s=keys"
        elif pattern.name is not None:
            yield pattern.name, reverse(f"admin:{pattern.name}")


def dialogs() -> list[tuple[str, str]]:
    """Returns the label of the model and the name of every action that asks in a dialog."""
    pages: dict[Any, Any] = admin.site._registry
    return [
        (model._meta.label_lower, name)
        for model, made in pages.items()
        for name in made.actions_detail
        if hasattr(getattr(made, name), "dialog")
    ]


def page_paths(world: dict[str, Any]) -> list[str]:
    """Returns the addresses that answer with a page to an operator who may do everything."""
    return [
        path
        for name, path in urls(world)
        if name not in NO_PAGES
        and not name.endswith("_export_csv")
        and expected_status(name) == 200
    ]


def read_form(form: Any) -> dict[str, Any]:
    """Returns what the form of a page would send unchanged."""
    found = {}
    for name in form.fields:
        value = form[name].value()
        if value is None or value is False:
            continue
        if value is True:
            value = "on" if form[name].widget_type == "checkbox" else "true"
        found[name] = value
    return found


def change(client: Client, row: Any, form: dict[str, str]) -> Any:
    """Submits the form of a page with the hidden fields of its read-only tables."""
    formsets = [shown.formset for shown in client.get(page(row)).context["inline_admin_formsets"]]
    counts = {
        f"{formset.prefix}-{name}": str(count)
        for formset in formsets
        for name, count in (
            ("TOTAL_FORMS", formset.total_form_count()),
            ("INITIAL_FORMS", formset.initial_form_count()),
        )
    }
    return client.post(page(row), form | counts)
