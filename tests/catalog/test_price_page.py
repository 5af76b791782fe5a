"""The console's page of a price: every rate, errors at their field, a preview, a new version."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client

from catalog.models import ModelEndpoint, PriceVersion
from catalog.pricing import Price
from catalog.pricing.contract import render_lines, render_pricing
from config.audit.entries import AuditEntry
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.console import messages_of, page
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.inference.prices import read_pricing

RATES = {
    "rates-prompt": "1", "rates-completion": "2", "rates-image": "0", "rates-request": "0",
}  # fmt: skip
TIER = {"billable": "prompt", "price": "4", "unit": "token", "min_prompt_tokens": "200000"}
IMAGE = {"billable": "image", "variant": "1024x1024/high", "price": "0.167", "unit": "image"}


@pytest.fixture
def endpoint(db: None) -> ModelEndpoint:
    return factories.make_endpoint(
        factories.make_model(), factories.make_provider(), source="litellm"
    )


def fields_of(*rows: dict[str, Any], **rates: str) -> dict[str, Any]:
    """Returns the fields of the page: the rates, and these rows."""
    fields: dict[str, Any] = {**RATES, **{f"rates-{name}": text for name, text in rates.items()}}
    fields |= {"rules-TOTAL_FORMS": str(len(rows)), "rules-INITIAL_FORMS": "0"}
    for number, row in enumerate(rows):
        fields |= {f"rules-{number}-{name}": value for name, value in row.items()}
    return fields


def send(client: Client, endpoint: Any, fields: dict[str, Any], press: str = "preview") -> Any:
    return client.post(page(endpoint, "edit_price"), {**fields, press: "1"})


def save(client: Client, endpoint: Any, *rows: dict[str, Any], **rates: str) -> Any:
    """Previews a price and saves it; returns the page that follows."""
    fields = fields_of(*rows, **rates)
    shown = send(client, endpoint, fields)
    assert shown.status_code == 200
    assert "seen" in shown.context, errors_of(shown)
    fields |= {name: str(shown.context[name]) for name in ("seen", "basis")}
    return client.post(page(endpoint, "edit_price"), {**fields, "save": "1"}, follow=True)


def errors_of(response: Any) -> dict[str, list[str]]:
    """Returns the errors of a page by the name of their field."""
    found = {f"rates.{name}": list(text) for name, text in response.context["rates"].errors.items()}
    for number, form in enumerate(response.context["rules"].forms):
        found |= {f"{number}.{name}": list(text) for name, text in form.errors.items()}
    return found


def price_of(endpoint: Any) -> Price:
    endpoint.refresh_from_db()
    price: Price = endpoint.price.price
    return price


def test_a_price_is_previewed_and_saved_as_a_new_version(
    operator: Client, endpoint: ModelEndpoint
) -> None:
    first = endpoint.price
    before = snapshots.everything()
    shown = send(operator, endpoint, fields_of(TIER, IMAGE, prompt="1.5", cache_read="0.1"))
    [row] = shown.context["rows"]
    assert [str(change) for change in row.changes] == [
        "Prompt: $1 per million → $1.5 per million (+50 %)",
        "Cache read: – → $0.1 per million (-90 %)",
        "Prompt, above 200,000 prompt tokens: – → $4 per million (+300 %)",
        "Generated image, 1024x1024/high: – → $0.167 per image",
    ]
    assert ">$1.5 per million<" in shown.content.decode()
    assert snapshots.everything() == before

    done = save(operator, endpoint, TIER, IMAGE, prompt="1.5", cache_read="0.1")
    assert messages_of(done) == ["The new price is saved."]
    price = price_of(endpoint)
    assert render_pricing(price) == {
        "prompt": "0.0000015",
        "completion": "0.000002",
        "image": "0",
        "request": "0",
        "input_cache_read": "0.0000001",
        "overrides": [{"min_prompt_tokens": 200_000, "prompt": "0.000004"}],
    }
    assert render_lines(price) == [
        {"billable": "image", "unit": "image", "variant": "1024x1024/high", "price": "0.167"}
    ]
    assert PriceVersion.objects.get(pk=first.pk).prompt == Decimal("0.000001")
    # No list has set this price.
    assert (endpoint.source, endpoint.as_of) == ("", None)
    actors = AuditEntry.objects.filter(kind="catalog.priceversion").values_list("actor", flat=True)
    assert set(actors) == {"operator operator"}


@pytest.mark.parametrize(
    ("pricing", "lines"),
    [
        ({}, ()),
        ({"discount": 0.25, "request": "0.005", "image": "0.002"}, ()),
        (
            {
                "input_cache_write_1h": "0.000006",
                "internal_reasoning": "0.000003",
                "audio": "0.00004",
                "audio_output": "0.00008",
                "input_audio_cache": "0.0000004",
                "image_token": "0.00003",
                "image_output": "0.039",
                "web_search": "0.01",
                "overrides": [
                    {"min_prompt_tokens": 200_000, "prompt": "0.0000025", "completion": "0.00003"},
                    {"utc_start": 30, "utc_end": 2400, "prompt": "0.0000005"},
                    {"utc_days": ["saturday", "sunday"], "completion": "0.0000001"},
                ],
            },
            (
                {"billable": "second", "unit": "second", "price": "0.0001"},
                {"billable": "prompt", "unit": "token", "variant": "image", "price": "0.00001"},
                {
                    "billable": "search",
                    "unit": "search",
                    "variant": "unasked",
                    "price": "0.005",
                    "most": 60,
                },
                {
                    "billable": "search",
                    "unit": "search",
                    "price": "0.5",
                    "conditions": {"min_prompt_tokens": 1000},
                },
            ),
        ),
    ],
)
def test_the_page_shows_a_price_and_saves_it_unchanged(
    operator: Client, db: None, pricing: dict[str, Any], lines: tuple[dict[str, Any], ...]
) -> None:
    price = read_pricing({"prompt": "0.000001", "completion": "0.000002"} | pricing, *lines)
    endpoint = factories.make_endpoint(
        factories.make_model(), factories.make_provider(), price=price
    )
    shown = operator.get(page(endpoint, "edit_price"))
    fields: dict[str, Any] = {"rules-TOTAL_FORMS": str(len(price.rules))}
    fields |= {"rules-INITIAL_FORMS": fields["rules-TOTAL_FORMS"]}
    for form in (shown.context["rates"], *shown.context["rules"].forms):
        for field in form:
            value = field.value()
            if value not in (None, "", [], False):
                fields[field.html_name] = value
    again = send(operator, endpoint, fields)
    assert errors_of(again) == {} or not any(errors_of(again).values())
    assert again.context["has_changes"] is False
    assert "There is nothing to save." in again.content.decode()


@pytest.mark.parametrize(
    ("rows", "rates", "field", "text"),
    [
        ([], {"prompt": ""}, "rates.prompt", "This field is required."),
        ([], {"prompt": "-1"}, "rates.prompt", "greater than or equal to 0"),
        ([], {"prompt": "1000000000000"}, "rates.prompt", "no more than 6 digits"),
        ([], {"discount": "101"}, "rates.discount", "less than or equal to 100"),
        ([IMAGE | {"billable": ""}], {}, "0.billable", "This field is required."),
        ([IMAGE | {"billable": "video"}], {}, "0.billable", "video is not one of"),
        ([IMAGE | {"unit": "token"}], {}, "0.unit", "Must be 'image'."),
        ([TIER | {"unit": "image"}], {}, "0.unit", "Must be 'token'."),
        ([TIER | {"variant": "x"}], {}, "0.variant",
         "Must be one of 'audio', 'image', 'citation'."),
        ([IMAGE | {"price": ""}], {}, "0.price", "This field is required."),
        ([IMAGE | {"price": "x"}], {}, "0.price", "Enter a number."),
        ([IMAGE | {"price": "1000000"}], {}, "0.price", "no more than 6 digits"),
        ([TIER | {"min_prompt_tokens": "0"}], {}, "0.min_prompt_tokens", "from 1 to"),
        ([TIER | {"utc_start": "8 h"}], {}, "0.utc_start", "Must be a time such as 08:00."),
        ([TIER | {"utc_start": "08:00"}], {}, "0.utc_end", "Is missing"),
        ([TIER | {"utc_start": "24:00", "utc_end": "01:00"}], {}, "0.utc_start", "a time such as"),
        ([TIER | {"utc_start": "08:00", "utc_end": "08:00"}], {}, "0.utc_end",
         "Must differ from utc_start"),
        ([TIER | {"utc_days": ["someday"]}], {}, "0.utc_days", "someday is not one of"),
        ([IMAGE, IMAGE], {}, "1.billable", "Gives the same price as row 1"),
        ([{"billable": "prompt", "price": "1", "unit": "token"}], {}, "0.billable",
         "Gives the same price as Prompt"),
        ([TIER, TIER | {"price": "5"}], {}, "0.billable", "Never applies because of row 2"),
    ],
)  # fmt: skip
def test_an_error_stands_at_its_field_and_changes_nothing(
    operator: Client,
    endpoint: ModelEndpoint,
    rows: list[dict[str, Any]],
    rates: dict[str, str],
    field: str,
    text: str,
) -> None:
    before = snapshots.everything()
    for press in ("preview", "save"):
        shown = send(operator, endpoint, fields_of(*rows, **rates), press)
        found = {name: " ".join(texts) for name, texts in errors_of(shown).items()}
        assert field in found, found
        assert text in found[field]
        assert "seen" not in shown.context
    assert snapshots.everything() == before


def test_a_row_is_added_and_removed(operator: Client, endpoint: ModelEndpoint) -> None:
    before = snapshots.everything()
    shown = send(operator, endpoint, fields_of(TIER), "add")
    assert len(shown.context["rules"].forms) == 2
    assert "seen" not in shown.context
    # The new row stays empty, and the first one is taken away.
    shown = send(operator, endpoint, fields_of(TIER | {"DELETE": "on"}, {"unit": "token"}))
    assert shown.context["has_changes"] is False
    # A removed row may hold anything, and the errors of the others keep their numbers.
    shown = send(operator, endpoint, fields_of({"price": "x", "DELETE": "on"}, IMAGE, IMAGE))
    assert "Gives the same price as row 2" in " ".join(errors_of(shown)["2.billable"])
    assert snapshots.everything() == before


def test_what_was_not_previewed_is_not_saved(operator: Client, endpoint: ModelEndpoint) -> None:
    shown = send(operator, endpoint, fields_of(prompt="3"))
    before = snapshots.everything()
    seen = {name: str(shown.context[name]) for name in ("seen", "basis")}
    for fields in (fields_of(prompt="30") | seen, fields_of(prompt="3")):
        again = send(operator, endpoint, fields, "save")
        assert again.status_code == 200
        assert again.context["is_preview"] is True
    assert snapshots.everything() == before


def test_a_price_that_another_operator_has_set_is_not_replaced_unseen(
    operator: Client, endpoint: ModelEndpoint
) -> None:
    fields = fields_of(prompt="3")
    shown = send(operator, endpoint, fields)
    fields |= {name: str(shown.context[name]) for name in ("seen", "basis")}
    endpoint.reprice(factories.make_price("0.000007"))
    before = snapshots.everything()
    refused = send(operator, endpoint, fields, "save")
    assert refused.context["refusal"] == (
        "The price has changed since this page was opened. Nothing was saved. Open the page again."
    )
    assert snapshots.everything() == before


def test_finance_may_edit_a_price_and_a_viewer_may_not(
    endpoint: ModelEndpoint, viewer: Client, finance: Client
) -> None:
    before = snapshots.everything()
    assert viewer.get(page(endpoint, "edit_price")).status_code == 403
    assert send(viewer, endpoint, fields_of(prompt="3"), "save").status_code == 403
    assert snapshots.everything() == before
    for client, titles in ((viewer, []), (finance, ["Edit price"])):
        actions = client.get(page(endpoint)).context["actions_detail"]
        assert [action["title"] for action in actions] == titles
    assert messages_of(save(finance, endpoint, prompt="3")) == ["The new price is saved."]
    assert price_of(endpoint).text("prompt") == "0.000003"


def test_the_price_of_a_private_endpoint_has_the_same_page(
    operator: Client, tenant: Tenant
) -> None:
    draft = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    assert messages_of(save(operator, draft, TIER)) == ["The new price is saved."]
    assert len(price_of(draft).rules) == 1
    draft.remove()
    gone = operator.get(page(draft, "edit_price"))
    assert gone.status_code == 302
    assert not PrivateEndpoint.objects.filter(deleted_at=None).exists()


def test_a_price_with_too_many_rows_is_left_to_files(operator: Client, db: None) -> None:
    lines = [
        {"billable": "image", "unit": "image", "variant": f"{size}x1", "price": "0.1"}
        for size in range(61)
    ]
    endpoint = factories.make_endpoint(
        factories.make_model(), factories.make_provider(), price=read_pricing({}, *lines)
    )
    answer = operator.get(page(endpoint, "edit_price"), follow=True)
    assert messages_of(answer) == [
        "This price has 61 rows; the page takes 60. Change it by a catalogue file."
    ]


def test_amounts_are_labelled_with_their_unit(operator: Client, endpoint: ModelEndpoint) -> None:
    text = operator.get(page(endpoint, "edit_price")).content.decode()
    assert "USD per million tokens." in text
    assert "USD per image." in text
    assert re.search(r'name="rates-prompt"[^>]* value="1"|value="1"[^>]* name="rates-prompt"', text)
