"""Bulk import of private endpoints: a file is applied whole or refused with every problem."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from accounts.models import ByokCredential
from catalog.aliases.names import ModelNotFound
from catalog.models import LanguageModel, PriceVersion, Provider
from config.bulk.problems import ImportRefused
from config.bulk.report import ImportPlan, Report
from config.bulk.rows import MAX_LINE
from endpoints import imports
from endpoints.models import Attestation, Draft, EndpointLimitReached, PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.importing import KIND, PRICING, encoded, load, load_bytes
from tests.support.factories import Tenant

NO_SETTINGS = {
    "context_length": 131_072,
    "max_prompt_tokens": None,
    "max_completion_tokens": None,
    "quantization": "unknown",
}


def counts(report: Report) -> tuple[int, int, int]:
    assert set(report.created) == set(report.updated) == set(report.unchanged) == {KIND}
    return report.created[KIND], report.updated[KIND], report.unchanged[KIND]


def refusal(tenant: Tenant, data: bytes) -> list[str]:
    """Returns the problems of a refused file; asserts that the import changed nothing."""
    with snapshots.unchanged(), pytest.raises(ImportRefused) as caught:
        load_bytes(tenant, data)
    return caught.value.problems


def test_an_import_stores_every_field(tenant: Tenant, row: dict[str, Any]) -> None:
    report = load(tenant, row | {"base_url": "https://llm.example.com:443/v1/"})
    assert (counts(report), report.dry_run) == ((1, 0, 0), False)
    stored = PrivateEndpoint.objects.get()
    assert (stored.organization, stored.status) == (tenant.organization, "draft")
    assert stored.model.canonical_slug == "acme/falcon-2026-01-01"
    assert (stored.provider.slug, stored.provider_name) == ("acme", "Acme AI")
    assert stored.upstream_model_id == "sim-echo"
    assert stored.base_url == "https://llm.example.com/v1"
    assert (stored.declared_region, stored.declared_zdr) == ("europe", True)
    assert stored.price.price == factories.make_price("0.0000005", "0.0000015")
    assert stored.price.subject_id == stored.pk
    assert (stored.idempotency_key, stored.validation) == (None, None)
    attestation = Attestation.objects.get()
    assert stored.attestation == attestation
    assert attestation.endpoint == stored
    assert attestation.declarations == (True, "europe")
    assert attestation.stated_by == "import_private_endpoints"


def test_an_imported_draft_equals_a_created_draft(
    tenant: Tenant, model: LanguageModel, provider: Provider, row: dict[str, Any]
) -> None:
    load(tenant, row)
    imported = PrivateEndpoint.objects.get()
    price = factories.make_price("0.0000005", "0.0000015")
    declared = {"declared_region": "europe", "declared_zdr": True}
    created = factories.make_draft(
        tenant, model, provider, **declared, price=price, by=imports.ACTOR
    )
    own = {"id", "created_at", "updated_at", "price_id", "attestation_id"}
    (first, second) = (
        {name: value for name, value in vars(endpoint).items() if name not in own}
        for endpoint in (imported, PrivateEndpoint.objects.get(pk=created.pk))
    )
    assert {**first, "_state": None} == {**second, "_state": None}
    assert created.attestation is not None
    assert imported.attestation is not None
    assert imported.attestation.declarations == created.attestation.declarations
    assert imported.attestation.stated_by == created.attestation.stated_by


def test_absent_fields_declare_nothing_and_take_the_list_price(
    tenant: Tenant, model: LanguageModel, provider: Provider, request_body: dict[str, Any]
) -> None:
    other = factories.make_provider("other")
    factories.make_endpoint(model, provider, price=factories.make_price("0.3", "0.4"))
    factories.make_endpoint(model, other, price=factories.make_price("0.1", "0.2"))
    unpriced = factories.make_model("acme/owl")
    third = factories.make_provider("third")
    load(
        tenant,
        request_body,
        request_body | {"provider_slug": "third"},
        request_body | {"model_permaslug": unpriced.canonical_slug},
    )
    found = list(PrivateEndpoint.objects.order_by("created_at"))
    assert [endpoint.provider for endpoint in found] == [provider, third, provider]
    assert [endpoint.price.price for endpoint in found] == [
        factories.make_price("0.3", "0.4"),
        factories.make_price("0.1", "0.2"),
        factories.make_price("0", "0"),
    ]
    assert [(row.declared_region, row.declared_zdr) for row in found] == [(None, None)] * 3
    assert Attestation.objects.count() == 0


def test_a_plan_shows_what_a_draft_without_a_price_will_cost(
    tenant: Tenant, model: LanguageModel, provider: Provider, request_body: dict[str, Any]
) -> None:
    factories.make_endpoint(model, provider, price=factories.make_price("0.3", "0.4"))
    unpriced = factories.make_model("acme/owl").canonical_slug
    planned = ImportPlan(2)
    limited = {"settings": {"max_completion_tokens": 512}, "model_permaslug": unpriced}
    with snapshots.unchanged():
        load(tenant, request_body, request_body | limited, dry_run=True, on_row=planned.add)
    place = ["Upstream model: – → sim-echo", "Base URL: – → https://llm.example.com/v1"]
    assert [[str(each) for each in row.changes] for row in planned.rows] == [
        [
            "Prompt: – → $300,000 per million",
            "Completion: – → $400,000 per million",
            *place,
        ],
        ["Price: – → free", "Largest completion: – → 512", *place],
    ]


def test_drafts_keep_the_order_of_the_file(tenant: Tenant, row: dict[str, Any]) -> None:
    names = [f"deployment-{number}" for number in (3, 1, 2)]
    load(tenant, *(row | {"upstream_model_id": name} for name in names))
    found = PrivateEndpoint.objects.order_by("created_at")
    assert [endpoint.upstream_model_id for endpoint in found] == names


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.removesuffix(b"\n"),
        lambda data: b"\n \n" + data + b"\n",
    ],
)
def test_line_ends_blank_lines_and_a_byte_order_mark_are_accepted(
    tenant: Tenant, row: dict[str, Any], spoil: Any
) -> None:
    assert counts(load_bytes(tenant, spoil(encoded(row)))) == (1, 0, 0)
    assert counts(load(tenant, row)) == (0, 0, 1)


def test_an_empty_file_changes_nothing(tenant: Tenant) -> None:
    assert counts(load(tenant)) == (0, 0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"base_url": "https://LLM.example.com/v1/"},
        {"pricing": {"prompt": "0.00000050", "completion": "0.0000015"}},
    ],
)
def test_a_second_import_changes_nothing(
    tenant: Tenant, row: dict[str, Any], changes: dict[str, Any]
) -> None:
    load(tenant, row)
    with snapshots.unchanged():
        assert counts(load(tenant, row | changes)) == (0, 0, 1)


def test_null_counts_as_absent(tenant: Tenant, request_body: dict[str, Any]) -> None:
    assert counts(load(tenant, request_body)) == (1, 0, 0)
    line = request_body | {"pricing": None, "settings": None, "lines": None, "timeouts": None}
    assert counts(load(tenant, line)) == (0, 0, 1)


def test_fields_that_a_line_omits_stay_unchanged(
    tenant: Tenant, row: dict[str, Any], request_body: dict[str, Any]
) -> None:
    load(tenant, row)
    with snapshots.unchanged():
        assert counts(load(tenant, request_body)) == (0, 0, 1)


def test_changed_declarations_update_a_draft(tenant: Tenant, row: dict[str, Any]) -> None:
    load(tenant, row)
    assert counts(load(tenant, row | {"declared_zdr": False, "declared_region": None})) == (0, 1, 0)
    stored = PrivateEndpoint.objects.get()
    assert (stored.declared_region, stored.declared_zdr) == (None, False)
    assert [attestation.declarations for attestation in Attestation.objects.order_by("id")] == [
        (True, "europe"),
        (False, None),
    ]
    assert stored.attestation == Attestation.objects.latest("id")
    assert PriceVersion.objects.filter(subject_id=stored.pk).count() == 1


def test_changed_declarations_clear_the_validation_and_a_changed_price_does_not(
    tenant: Tenant, row: dict[str, Any], credential: ByokCredential
) -> None:
    load(tenant, row)
    endpoint = PrivateEndpoint.objects.get()
    factories.make_validation(endpoint, credential)
    load(tenant, row | {"pricing": {"prompt": "1", "completion": "2"}})
    endpoint.refresh_from_db()
    assert endpoint.validation is not None
    load(tenant, row | {"declared_zdr": None})
    endpoint.refresh_from_db()
    assert endpoint.validation is None


def test_a_changed_price_adds_a_version_and_keeps_the_old_one(
    tenant: Tenant, row: dict[str, Any]
) -> None:
    load(tenant, row)
    stored = PrivateEndpoint.objects.get()
    old = stored.price
    pricing = {**PRICING, "cache_read": "0.25"}
    assert counts(load(tenant, row | {"pricing": pricing})) == (0, 1, 0)
    stored.refresh_from_db()
    assert stored.price.cache_read == Decimal("0.25")
    assert set(PriceVersion.objects.filter(subject_id=stored.pk)) == {old, stored.price}
    assert counts(load(tenant, row | {"pricing": pricing})) == (0, 0, 1)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_dry_run_reports_and_changes_nothing(
    tenant: Tenant, row: dict[str, Any], is_first: bool
) -> None:
    if not is_first:
        load(tenant, row | {"declared_zdr": False})
    with snapshots.unchanged():
        report = load(tenant, row, dry_run=True)
        assert report.dry_run is True
        assert counts(report) == ((1, 0, 0) if is_first else (0, 1, 0))


@pytest.mark.parametrize("status", ["active", "disabled"])
def test_an_activated_endpoint_is_accepted_only_unchanged(
    tenant: Tenant, row: dict[str, Any], credential: ByokCredential, status: str
) -> None:
    load(tenant, row)
    endpoint = PrivateEndpoint.objects.get()
    factories.make_validation(endpoint, credential)
    endpoint.activate()
    if status == "disabled":
        endpoint.disable()
    with snapshots.unchanged():
        assert counts(load(tenant, row)) == (0, 0, 1)
    for changes in (
        {"declared_zdr": False},
        {"pricing": {"prompt": "1", "completion": "1"}},
        {"settings": {"fallback": "any"}},
    ):
        other = row | {"upstream_model_id": "other"}
        assert refusal(tenant, encoded(other, row | changes)) == [
            f"line 2: the endpoint is {status}; only a draft can be changed"
        ]


@pytest.mark.parametrize(
    "change",
    [
        {"declared_zdr": False},
        {"settings": {"fallback": "any"}},
        {"pricing": {"prompt": "1", "completion": "1"}},
    ],
)
def test_a_draft_activated_during_the_import_is_refused(
    tenant: Tenant,
    row: dict[str, Any],
    credential: ByokCredential,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
) -> None:
    load(tenant, row)
    factories.make_validation(PrivateEndpoint.objects.get(), credential)
    write = imports._write

    def activate_and_write(*arguments: Any) -> None:
        PrivateEndpoint.objects.get(upstream_model_id="sim-echo").activate()
        write(*arguments)

    monkeypatch.setattr(imports, "_write", activate_and_write)
    data = encoded(row | {"upstream_model_id": "other"}, row | change)
    assert refusal(tenant, data) == [
        "line 2: The private endpoint is active; this needs it to be draft."
    ]


def test_a_deleted_endpoint_is_not_matched(tenant: Tenant, row: dict[str, Any]) -> None:
    load(tenant, row)
    PrivateEndpoint.objects.get().remove()
    assert counts(load(tenant, row)) == (1, 0, 0)


def test_another_organization_is_not_touched(tenant: Tenant, row: dict[str, Any]) -> None:
    other = factories.make_tenant("Other")
    load(other, row)
    assert counts(load(tenant, row | {"declared_zdr": False})) == (1, 0, 0)
    assert PrivateEndpoint.objects.get(organization=other.organization).declared_zdr is True


def test_an_endpoint_stored_twice_may_occur_twice(
    tenant: Tenant, model: LanguageModel, provider: Provider, request_body: dict[str, Any]
) -> None:
    first = factories.make_draft(tenant, model, provider, declared_zdr=True)
    second = factories.make_draft(tenant, model, provider, declared_zdr=False)
    lines = [request_body | {"declared_zdr": True}, request_body | {"declared_zdr": False}]
    assert counts(load(tenant, *lines)) == (0, 0, 2)
    assert counts(load(tenant, lines[0], lines[0])) == (0, 1, 1)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.declared_zdr, second.declared_zdr) == (True, True)
    assert refusal(tenant, encoded(lines[0], lines[1], lines[0])) == [
        "line 3: the same endpoint as line 1"
    ]


CONTROL = "must not contain control characters"
UNSTORABLE = "must not contain NUL or lone surrogates"
INVISIBLE = "upstream_model_id: Must be visible text without control characters."
NO_TOOLS = (
    "parameters_invalid: declared_parameters: tool_choice needs tools, which is neither declared "
    "nor tested."
)
NO_DECIMAL = "must be a decimal such as 0.0000005, below 1000000"
FAULTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"model_permaslug": "acme/none"}, ["There is no model 'acme/none' in the catalogue."]),
    ({"model_permaslug": "acme/falcon"}, [
        "model_permaslug: The permanent slug of 'acme/falcon' is 'acme/falcon-2026-01-01'.",
    ]),
    ({"provider_slug": "none"}, ["There is no provider 'none' in the catalogue."]),
    ({"base_url": None}, ["invalid_base_url: base_url is required for Acme AI."]),
    ({"provider_slug": "azure"}, [
        "invalid_base_url: Azure takes its URL from the credential; leave base_url out.",
    ]),
    ({"base_url": "http://llm.example.com"}, [
        "invalid_base_url: the URL must begin with https://",
    ]),
    ({"base_url": "https://10.0.0.1"}, [
        "invalid_base_url: the address or the port of the URL is not allowed",
    ]),
    ({"upstream_model_id": "a\nb"}, [INVISIBLE]),
    ({"model_permaslug": "a\u0085", "provider_slug": "\x7f"}, [
        f"model_permaslug {CONTROL}", f"provider_slug {CONTROL}",
    ]),
    ({"upstream_model_id": "\ud800"}, [f"upstream_model_id {UNSTORABLE}"]),
    *(
        ({"model": {"name": "x", "base_model": f"acme/falcon{char}"}}, [f"base_model {UNSTORABLE}"])
        for char in "\0\ud800"
    ),
    ({"settings": {"reported_model": "\ud800"}}, [f"reported_model {UNSTORABLE}"]),
    ({"settings": {"\udc00": 1}}, [f"\ufffd {UNSTORABLE}"]),
    ({"declared_parameters": ["tools", "\0"]}, [f"declared_parameters {UNSTORABLE}"]),
    ({"pricing": {"prompt": "-1", "completion": "1e-6"}}, [
        f"pricing.prompt {NO_DECIMAL}", f"pricing.completion {NO_DECIMAL}",
    ]),
    ({"pricing": {**PRICING, "cache_read": "1000000"}}, [f"pricing.cache_read {NO_DECIMAL}"]),
    ({"pricing": {**PRICING, "cache_write": ""}}, [f"pricing.cache_write {NO_DECIMAL}"]),
    ({"pricing": {"prompt": "1"}}, [
        "Object missing required field `completion` - at `$.pricing`",
    ]),
    ({"pricing": {**PRICING, "images": "0"}}, [
        "Object contains unknown field `images` - at `$.pricing`",
    ]),
    ({"pricing": {**PRICING, "prompt": 1}}, ["Expected `str`, got `int` - at `$.pricing.prompt`"]),
    ({"upstream_model_id": " "}, [INVISIBLE]),
    ({"upstream_model_id": "\u200b\u3000"}, [INVISIBLE]),
    ({"provider_slug": " "}, ["There is no provider ' ' in the catalogue."]),
    ({"pricing": []}, ["Expected `object | null`, got `array` - at `$.pricing`"]),
    ({"declared_zdr": "yes"}, ["Expected `bool | null`, got `str` - at `$.declared_zdr`"]),
    ({"declared_region": "mars"}, ["Invalid enum value 'mars' - at `$.declared_region`"]),
    ({"upstream_model_id": ""}, [
        "Expected `str` of length >= 1 - at `$.upstream_model_id`",
    ]),
    ({"upstream_model_id": "a" * 256}, [
        "Expected `str` of length <= 255 - at `$.upstream_model_id`",
    ]),
    ({"activate": {"workspace_id": "x"}}, ["Object contains unknown field `activate`"]),
    ({"note": 1}, ["Object contains unknown field `note`"]),
    ({"upstream_model_id": "new", "declared_parameters": ["tool_choice"]}, [NO_TOOLS]),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "problems"), FAULTS)
def test_a_problem_is_reported_with_its_line(
    tenant: Tenant,
    cloud: Provider,
    row: dict[str, Any],
    changes: dict[str, Any],
    problems: list[str],
) -> None:
    data = encoded(row) + b"\n" + encoded(row | changes, row | {"upstream_model_id": "other"})
    assert refusal(tenant, data) == [f"line 3: {problem}" for problem in problems]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "Object missing required field `model_permaslug`"),
        (b'{"provider_slug": "a", "provider_slug": "b"}', "a key is named twice in one object"),
        (b"[" * 60_000, "nested too deeply"),
        (b"\xff", "not UTF-8; what follows was not read"),
        (b"x" * (MAX_LINE + 1), "longer than 65536 bytes; what follows was not read"),
    ],
)
def test_a_malformed_line_is_refused(
    tenant: Tenant, row: dict[str, Any], line: bytes, problem: str
) -> None:
    assert refusal(tenant, encoded(row) + line + b"\n") == [f"line 2: {problem}"]


def test_the_same_endpoint_twice_is_refused(tenant: Tenant, row: dict[str, Any]) -> None:
    same = row | {"base_url": "https://LLM.example.com/v1/", "declared_zdr": False}
    other = row | {"base_url": "https://other.example.com/v1"}
    assert refusal(tenant, encoded(row, other, same)) == ["line 3: the same endpoint as line 1"]


def test_all_problems_are_reported_together(tenant: Tenant, row: dict[str, Any]) -> None:
    data = encoded(row, row | {"provider_slug": "none"}, row | {"note": 1}, row)
    assert refusal(tenant, data) == [
        "line 3: Object contains unknown field `note`",
        "line 2: There is no provider 'none' in the catalogue.",
        "line 4: the same endpoint as line 1",
    ]


def test_at_most_100_problems_are_reported(tenant: Tenant, row: dict[str, Any]) -> None:
    problems = refusal(tenant, encoded(*[row | {"note": 1}] * 250))
    assert problems == [
        *(f"line {line}: Object contains unknown field `note`" for line in range(1, 101)),
        "… and 150 more",
    ]


def test_the_limit_applies_to_the_whole_file(row: dict[str, Any], db: None) -> None:
    tenant = factories.make_tenant(endpoint_limit=3)
    load(tenant, row)
    more = [row | {"upstream_model_id": f"deployment-{number}"} for number in range(3)]
    assert refusal(tenant, encoded(*more)) == [
        "endpoint_limit_reached: the organization has 1 of 3 private endpoints; 3 more do not fit."
    ]
    assert counts(load(tenant, row, *more[:2])) == (2, 0, 1)
    (problem,) = refusal(tenant, encoded(row, *more))
    assert problem == (
        "endpoint_limit_reached: the organization has 3 private endpoints, which is its limit. "
        "Delete one first."
    )


def test_an_unlisted_model_is_accepted_for_a_stored_endpoint_only(
    tenant: Tenant, model: LanguageModel, provider: Provider, row: dict[str, Any]
) -> None:
    load(tenant, row)
    model.delist()
    assert counts(load(tenant, row)) == (0, 0, 1)
    assert refusal(tenant, encoded(row | {"upstream_model_id": "other"})) == [
        "line 1: There is no model 'acme/falcon-2026-01-01' in the catalogue."
    ]


def test_an_export_is_imported_unchanged(
    tenant: Tenant,
    model: LanguageModel,
    provider: Provider,
    cloud: Provider,
    credential: ByokCredential,
) -> None:
    public = factories.make_price("0.1", "0.2", image="0.5", request="0.25", cache_write="0.125")
    factories.make_endpoint(model, provider, price=public)
    factories.make_draft(tenant, model, provider)
    factories.make_draft(tenant, model, provider)
    factories.make_draft(tenant, model, cloud, base_url=None, declared_region="us", fallback="any")
    active = factories.make_draft(
        tenant,
        model,
        provider,
        upstream_model_id="ключ",
        declared_zdr=False,
        price=factories.make_price("1", "0.0000005", cache_read="0"),
    )
    factories.make_validation(active, credential)
    active.activate()
    # The tools are not declared, but tested.
    active.tested_parameters = ["tools"]
    active.save_fields("tested_parameters")
    active.edit(fallback="none", declared_parameters=["tool_choice"])
    factories.make_draft(tenant, model, provider, upstream_model_id="gone").remove()
    provider.delist()
    data = b"".join(imports.export(tenant.organization.pk))
    assert [json.loads(line) for line in data.splitlines()][2:] == [
        {
            "model_permaslug": "acme/falcon-2026-01-01",
            "provider_slug": "azure",
            "upstream_model_id": "sim-echo",
            "base_url": None,
            "declared_region": "us",
            "declared_zdr": None,
            "pricing": {
                "prompt": "0.1",
                "completion": "0.2",
                "image": "0.5",
                "request": "0.25",
                "cache_write": "0.125",
            },
            "settings": {**NO_SETTINGS, "fallback": "any"},
        },
        {
            "model_permaslug": "acme/falcon-2026-01-01",
            "provider_slug": "acme",
            "upstream_model_id": "ключ",
            "base_url": "https://llm.example.com/v1",
            "declared_region": None,
            "declared_zdr": False,
            "pricing": {
                "prompt": "1",
                "completion": "0.0000005",
                "cache_read": "0",
                "cache_write": "1.25",
            },
            "settings": {**NO_SETTINGS, "fallback": "none"},
            "declared_parameters": ["tool_choice"],
        },
    ]
    with snapshots.unchanged():
        assert counts(load_bytes(tenant, data)) == (0, 0, 4)


def test_settings_travel_with_an_export(tenant: Tenant, row: dict[str, Any]) -> None:
    load(tenant, row | {"settings": {"fallback": "none"}}, row | {"upstream_model_id": "other"})
    data = b"".join(imports.export(tenant.organization.pk))
    other = factories.make_tenant("Other")
    assert counts(load_bytes(other, data)) == (2, 0, 0)
    assert b"".join(imports.export(other.organization.pk)) == data
    stored = PrivateEndpoint.objects.filter(organization=other.organization)
    assert list(stored.order_by("created_at", "id").values_list("fallback", flat=True)) == [
        "none", None,
    ]  # fmt: skip


def test_a_plan_names_the_settings_that_change(tenant: Tenant, row: dict[str, Any]) -> None:
    names = ["temperature", "top_p", "top_k", "seed", "stop", "logprobs", "tools", "tool_choice"]
    stated = {"excluded_parameters": names, "string_content": True, "reported_model": "falcon"}
    load(tenant, row | {"settings": stated})
    planned = ImportPlan(1)
    changed = {**stated, "reported_model": "other"}
    load(tenant, row | {"settings": changed}, dry_run=True, on_row=planned.add)
    assert [str(each) for each in planned.rows[0].changes] == [
        'Settings: removed → added: "reported_model": "falcon" → "reported_model": "other"'
    ]


def test_changed_settings_update_a_draft(tenant: Tenant, row: dict[str, Any]) -> None:
    stated = row | {"settings": {"fallback": "none"}}
    load(tenant, row)
    assert counts(load(tenant, stated)) == (0, 1, 0)
    assert PrivateEndpoint.objects.get().fallback == "none"
    for unstated in (row, row | {"settings": {}}, stated):
        assert counts(load(tenant, unstated)) == (0, 0, 1)
    assert counts(load(tenant, row | {"settings": {"fallback": None}})) == (0, 1, 0)
    assert PrivateEndpoint.objects.get().fallback is None
    assert refusal(tenant, encoded(row | {"settings": {"fallback": "some"}})) == [
        "line 1: settings.fallback must be null or one of none, listed, any"
    ]
    assert refusal(tenant, encoded(row | {"declared_parameters": ["tool_choice"]})) == [
        f"line 1: {NO_TOOLS}"
    ]


def test_create_drafts_creates_all_or_none(tenant: Tenant, request_body: dict[str, Any]) -> None:
    good = Draft(**request_body)
    bad = replace(good, model_permaslug="acme/none")
    with snapshots.unchanged():
        with pytest.raises(ModelNotFound):
            PrivateEndpoint.objects.create_drafts(
                organization_id=tenant.organization.pk, drafts=[good, bad]
            )
        limit = tenant.organization.private_endpoint_limit
        with pytest.raises(EndpointLimitReached):
            PrivateEndpoint.objects.create_drafts(
                organization_id=tenant.organization.pk, drafts=[good] * (limit + 1)
            )
