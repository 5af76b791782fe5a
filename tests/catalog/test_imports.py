"""Tests that a catalogue file is applied completely or refused with the place of each fault."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from catalog import imports
from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider
from config.bulk.problems import ImportRefused
from config.bulk.report import RowOutcome
from config.credentials import Secret
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.database.locks import at_once, beside, waiting
from tests.support.machine.waiting import wait_until
from tests.support.operators import commands

FILE: dict[str, Any] = {
    "providers": [
        {
            "slug": "acme",
            "name": "Acme AI",
            "dialect": "openai",
            "base_url": "https://api.acme.example/v1/",
            "data_policy": {"training": True, "retains_prompts": False},
            "datacenters": ["US"],
            "headquarters": "US",
            "privacy_policy_url": "https://acme.example/privacy",
            "terms_of_service_url": None,
            "status_page_url": None,
        },
        {
            "slug": "cloud",
            "name": "Cloud",
            "dialect": "azure",
            "base_url": None,
            "data_policy": {"training": False, "retains_prompts": True},
        },
    ],
    "models": [
        {
            "id": "acme/falcon",
            "canonical_slug": "acme/falcon-2026-06-01",
            "name": "Acme: Falcon",
            "created": 1780272000,
            "description": "Fast.",
            "context_length": 131072,
            "architecture": {
                "input_modalities": ["text"],
                "output_modalities": ["text"],
                "modality": "text->text",
                "tokenizer": "Other",
                "instruct_type": None,
            },
            "supported_parameters": ["temperature"],
            "default_parameters": {"temperature": 1},
            "expiration_date": "2027-01-31",
        },
        {
            "id": "acme/owl",
            "canonical_slug": "acme/owl-2026-06-01",
            "name": "Acme: Owl",
            "created": 0,
            "context_length": None,
            "architecture": {
                "input_modalities": ["text"],
                "output_modalities": ["embeddings"],
                "modality": None,
            },
        },
    ],
    "endpoints": [
        {
            "model": "acme/falcon-2026-06-01",
            "provider": "acme",
            "upstream_model_id": "falcon",
            "pricing": {"prompt": "0.0000005", "completion": "0.0000015", "input_cache_read": "0"},
            "max_completion_tokens": 16384,
            "region": "us",
            "zdr": True,
        },
        {
            "model": "acme/owl-2026-06-01",
            "provider": "cloud",
            "upstream_model_id": "owl",
            "pricing": {"prompt": "1", "completion": "0"},
        },
    ],
}
ALL_NEW = {"providers": 2, "models": 2, "endpoints": 2}
NONE = {"providers": 0, "models": 0, "endpoints": 0}


def load(file: dict[str, Any], *, dry_run: bool = False) -> imports.Report:
    return imports.apply(imports.parse(json.dumps(file).encode()), dry_run=dry_run)


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    """Returns a copy of the file with one member replaced."""
    file = copy.deepcopy(FILE)
    place: Any = file
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return file


def refusal(file: dict[str, Any]) -> list[str]:
    """Checks that the import is refused and changes nothing; returns the reported problems."""
    before = snapshots.everything()
    with pytest.raises(ImportRefused) as caught:
        load(file)
    assert snapshots.everything() == before
    return caught.value.problems


def test_import_stores_every_field(db: None) -> None:
    report = load(FILE)
    assert (report.created, report.updated, report.unchanged) == (ALL_NEW, NONE, NONE)
    acme = Provider.objects.get(slug="acme")
    assert (acme.name, acme.dialect, acme.base_url) == (
        "Acme AI",
        "openai",
        "https://api.acme.example/v1",
    )
    assert (acme.trains_on_prompts, acme.retains_prompts) == (True, False)
    assert (acme.datacenters, acme.headquarters) == (["US"], "US")
    assert acme.privacy_policy_url == "https://acme.example/privacy"
    assert Provider.objects.get(slug="cloud").base_url is None
    falcon = LanguageModel.objects.get(slug="acme/falcon")
    assert falcon.canonical_slug == "acme/falcon-2026-06-01"
    assert falcon.default_parameters == {"temperature": 1}
    assert str(falcon.expiration_date) == "2027-01-31"
    endpoint = ModelEndpoint.objects.get(upstream_model_id="falcon")
    assert (endpoint.model, endpoint.provider) == (falcon, acme)
    assert (endpoint.region, endpoint.zdr, endpoint.max_completion_tokens) == ("us", True, 16384)
    assert endpoint.price.price == factories.make_price("0.0000005", "0.0000015", cache_read="0")
    assert endpoint.price.subject_id == endpoint.pk
    assert ModelEndpoint.objects.get(upstream_model_id="owl").region == "global"


def test_limits_of_a_provider_stay_when_the_file_does_not_name_them(db: None) -> None:
    load(changed("providers", 0, "requests_per_minute", value=60))
    Provider.objects.filter(slug="acme").update(tokens_per_minute=1000)

    def limits() -> Any:
        rows = Provider.objects.filter(slug="acme")
        return rows.values_list("requests_per_minute", "tokens_per_minute").get()

    assert load(FILE).unchanged == ALL_NEW
    assert limits() == (60, 1000)
    exported = json.loads(imports.export()[0])
    assert load(exported).unchanged == ALL_NEW
    [acme] = [row for row in exported["providers"] if row["slug"] == "acme"]
    assert (acme["requests_per_minute"], acme["tokens_per_minute"]) == (60, 1000)
    assert load(changed("providers", 0, "requests_per_minute", value=None)).updated == NONE | {
        "providers": 1
    }
    assert limits() == (None, 1000)


@pytest.mark.parametrize("limit", [0, -1, 2**31, 1.5, "60"])
def test_a_limit_of_a_provider_is_a_positive_number(db: None, limit: Any) -> None:
    [problem] = refusal(changed("providers", 0, "tokens_per_minute", value=limit))
    assert "tokens_per_minute" in problem


def test_a_second_import_changes_nothing(db: None) -> None:
    load(FILE)
    before = snapshots.everything()
    report = load(FILE)
    assert (report.created, report.updated, report.unchanged) == (NONE, NONE, ALL_NEW)
    assert snapshots.everything() == before


@pytest.mark.parametrize("is_first", [True, False])
def test_a_dry_run_reports_and_changes_nothing(db: None, is_first: bool) -> None:
    if not is_first:
        load(changed("providers", 0, "name", value="Before"))
    before = snapshots.everything()
    report = load(FILE, dry_run=True)
    assert report.dry_run is True
    assert report.created == (ALL_NEW if is_first else NONE)
    assert report.updated == (NONE if is_first else NONE | {"providers": 1})
    assert snapshots.everything() == before


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        (("providers", 0, "name"), "Acme 2", "providers"),
        (("providers", 0, "data_policy", "training"), False, "providers"),
        (("providers", 1, "headquarters"), "DE", "providers"),
        (("models", 0, "name"), "Falcon 2", "models"),
        (("models", 0, "id"), "acme/falcon-2", "models"),
        (("models", 1, "architecture", "output_modalities"), ["text"], "models"),
        (("endpoints", 0, "zdr"), False, "endpoints"),
        (("endpoints", 0, "pricing", "prompt"), "0.0000006", "endpoints"),
    ],
)
def test_import_updates_only_the_changed_row(
    db: None, path: tuple[str | int, ...], value: Any, kind: str
) -> None:
    load(FILE)
    before = snapshots.everything()
    report = load(changed(*path, value=value))
    assert (report.created, report.updated) == (NONE, NONE | {kind: 1})
    assert report.unchanged == ALL_NEW | {kind: 1}
    after = snapshots.everything()
    label = {
        "providers": "catalog.Provider",
        "models": "catalog.LanguageModel",
        "endpoints": "catalog.ModelEndpoint",
    }[kind]
    assert sum(row not in before[label] for row in after[label]) == 1
    report = load(changed(*path, value=value))
    assert (report.created, report.updated, report.unchanged) == (NONE, NONE, ALL_NEW)


def test_import_stores_a_new_price_as_a_new_version(db: None) -> None:
    load(FILE)
    endpoint = ModelEndpoint.objects.get(upstream_model_id="falcon")
    old = endpoint.price
    load(changed("endpoints", 0, "pricing", "prompt", value="0.25"))
    endpoint.refresh_from_db()
    assert endpoint.price_id != old.pk
    assert endpoint.price.prompt == Decimal("0.25")
    assert PriceVersion.objects.get(pk=old.pk).prompt == Decimal("0.0000005")
    assert PriceVersion.objects.filter(subject_id=endpoint.pk).count() == 2
    load(changed("endpoints", 0, "pricing", "prompt", value="0.250"))
    assert PriceVersion.objects.filter(subject_id=endpoint.pk).count() == 2


@pytest.mark.parametrize("change", ["update", "save", "delete", "bulk delete"])
def test_database_refuses_to_change_or_delete_a_price_version(db: None, change: str) -> None:
    load(FILE)
    version = PriceVersion.objects.latest("pk")
    before = snapshots.everything()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        match change:
            case "update":
                PriceVersion.objects.filter(pk=version.pk).update(prompt=0)
            case "save":
                version.prompt = Decimal(0)
                version.save(update_fields=["prompt"])
            case "delete":
                PriceVersion.objects.filter(pk=version.pk)._raw_delete("default")
            case _:
                PriceVersion.objects.all()._raw_delete("default")
    assert snapshots.everything() == before


def test_import_lists_an_unlisted_row_again(db: None) -> None:
    load(FILE)
    provider = Provider.objects.get(slug="acme")
    factories.change(provider, is_listed=False)
    assert load(FILE).updated == NONE | {"providers": 1}
    provider.refresh_from_db()
    assert provider.is_listed is True


def test_import_keeps_the_secret_of_a_provider(db: None) -> None:
    load(FILE)
    provider = Provider.objects.get(slug="acme")
    provider.set_credential(Secret("operator-secret-0123456789"))
    load(changed("providers", 0, "name", value="Acme 2"))
    provider.refresh_from_db()
    assert provider.reveal_credential() == Secret("operator-secret-0123456789")


def test_import_makes_a_provider_keyless_and_an_export_says_so(db: None) -> None:
    load(FILE)
    file = changed("providers", 0, "keyless", value=True)
    assert load(file).updated == NONE | {"providers": 1}
    provider = Provider.objects.get(slug="acme")
    assert (provider.is_keyless, provider.has_credential) == (True, True)
    exported = json.loads(imports.export()[0])
    assert [row.get("keyless") for row in exported["providers"]] == [True, None]
    assert load(exported).unchanged == ALL_NEW
    # A file without the member leaves what is stored.
    assert load(FILE).unchanged == ALL_NEW
    assert Provider.objects.get(slug="acme").is_keyless is True
    assert load(changed("providers", 0, "keyless", value=False)).updated == NONE | {"providers": 1}
    assert Provider.objects.get(slug="acme").has_credential is False


def test_import_never_makes_a_provider_with_a_credential_keyless(db: None) -> None:
    load(FILE)
    Provider.objects.get(slug="acme").set_credential(Secret("operator-secret-0123456789"))
    text = (
        "providers[0]: keyless: the provider 'acme' has a credential; mark it as keyless in the "
        "console, which forgets the credential"
    )
    assert refusal(changed("providers", 0, "keyless", value=True)) == [text]
    problem = refusal(changed("providers", 1, "keyless", value=True))[0]
    assert "keyless must not be true" in problem


def test_import_takes_the_url_of_a_network_that_is_allowed_to_its_provider(db: None) -> None:
    load(FILE)
    file = changed("providers", 0, "base_url", value="http://10.0.0.5:8000/v1")
    assert "the address or the port of the URL is not allowed" in refusal(file)[0]
    Provider.objects.filter(slug="acme").update(allowed_networks=["10.0.0.5/32"])
    assert load(file).updated == NONE | {"providers": 1}
    assert load(json.loads(imports.export()[0])).unchanged == ALL_NEW


def test_import_keeps_rows_that_the_file_does_not_name(db: None) -> None:
    load(FILE)
    before = snapshots.everything()
    assert load({"providers": [FILE["providers"][0]]}).unchanged == NONE | {"providers": 1}
    assert load({}).unchanged == NONE
    assert snapshots.everything() == before


def test_an_endpoint_may_refer_to_stored_rows(db: None) -> None:
    load({"providers": FILE["providers"], "models": FILE["models"]})
    assert load({"endpoints": FILE["endpoints"]}).created == NONE | {"endpoints": 2}


def test_two_models_may_swap_their_public_names(db: None) -> None:
    load(FILE)
    file = changed("models", 0, "id", value="acme/owl")
    file["models"][1]["id"] = "acme/falcon"
    assert load(file).updated == NONE | {"models": 2}
    assert LanguageModel.objects.get(slug="acme/owl").canonical_slug == "acme/falcon-2026-06-01"
    assert LanguageModel.objects.get(slug="acme/falcon").canonical_slug == "acme/owl-2026-06-01"


def test_import_does_not_block_inserts_that_refer_to_its_rows(
    transactional_db: None, together: Callable[..., list[Any]]
) -> None:
    tenant = factories.make_tenant()
    load(FILE)

    def create() -> str:
        with transaction.atomic(), connection.cursor() as cursor:
            # PostgreSQL checks the foreign keys at commit and then locks the referenced rows.
            cursor.execute("SET lock_timeout = '2s'")
            model, provider = LanguageModel.objects.all()[0], Provider.objects.get(slug="acme")
            return str(factories.make_draft(tenant, model, provider).pk)

    with transaction.atomic():
        report = load(changed("models", 0, "name", value="Changed"))
        assert report.updated == NONE | {"models": 1}
        [made] = together(create)
        assert PrivateEndpoint.objects.filter(pk=made).exists()
    assert LanguageModel.objects.filter(name="Changed").exists()


def prices_of(endpoint: ModelEndpoint) -> list[str]:
    """Returns the prompt rates that an endpoint has had, the present one last."""
    endpoint.refresh_from_db()
    versions = PriceVersion.objects.filter(subject_id=endpoint.pk).order_by("pk")
    assert endpoint.price_id == versions[len(versions) - 1].pk
    return [each.price.text("prompt") for each in versions]


def test_a_price_that_is_set_during_an_import_stays(transactional_db: None) -> None:
    load(FILE)
    endpoint = ModelEndpoint.objects.get(upstream_model_id="falcon")
    other = ModelEndpoint.objects.get(upstream_model_id="owl")
    saving: list[Future[Any]] = []
    with ExitStack() as threads:

        def save_meanwhile(kind: str, row: str, outcome: RowOutcome, changes: Any = ()) -> None:
            if kind == "endpoints" and outcome is RowOutcome.UPDATE:
                reprice = partial(endpoint.reprice, factories.make_price("0.7"))
                saving.append(threads.enter_context(beside(reprice)))
                wait_until(lambda: waiting() or saving[0].done())

        file = json.dumps(changed("endpoints", 0, "zdr", value=False)).encode()
        report = imports.apply(imports.parse(file), on_row=save_meanwhile)
    assert report.updated == NONE | {"endpoints": 1}
    assert prices_of(endpoint) == ["0.0000005", "0.7"]
    assert endpoint.zdr is False
    assert prices_of(other) == ["1"]


def test_an_import_reads_the_price_that_it_has_waited_for(transactional_db: None) -> None:
    load(FILE)
    endpoint = ModelEndpoint.objects.get(upstream_model_id="falcon")
    file = changed("endpoints", 0, "zdr", value=False)
    with ExitStack() as threads, transaction.atomic():
        endpoint.reprice(factories.make_price("0.7"))
        report = threads.enter_context(beside(partial(load, file)))
        wait_until(waiting, "the import does not wait")
    assert (report.result().created, report.result().updated) == (NONE, NONE | {"endpoints": 1})
    assert prices_of(endpoint) == ["0.0000005", "0.7", "0.0000005"]


def test_of_two_first_imports_at_once_the_second_changes_nothing(transactional_db: None) -> None:
    """No row of an empty catalogue can be locked."""
    reports = at_once(*[lambda: load(FILE)] * 2, held=imports._TAKE_TURNS)
    found = [(each.created, each.unchanged) for each in reports]
    assert sorted(found, key=str) == sorted([(ALL_NEW, NONE), (NONE, ALL_NEW)], key=str)


def test_a_new_model_may_take_the_former_name_of_another(db: None) -> None:
    load(FILE)
    file = changed("models", 0, "id", value="acme/falcon-1")
    file["models"].append({**FILE["models"][0], "canonical_slug": "acme/falcon-2027-01-01"})
    report = load(file)
    assert (report.created, report.updated) == (NONE | {"models": 1}, NONE | {"models": 1})
    taken = LanguageModel.objects.get(slug="acme/falcon")
    assert taken.canonical_slug == "acme/falcon-2027-01-01"


PROMPT = "endpoints[0]: pricing.prompt"
DECIMAL = "must be a decimal such as 0.0000005, below 1000000"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (
            ("providers", 0, "dialect"),
            "x",
            (
                "providers[0]: dialect 'x' is none of openai, "
                "anthropic, gemini, azure, bedrock, vertex"
            ),
        ),
        (("providers", 0, "base_url"), None, "providers[0]: base_url is required for this dialect"),
        (("providers", 1, "base_url"), "https://x.example",
         "providers[1]: base_url must be null: this dialect takes its URL from the credential"),
        (("providers", 0, "base_url"), "https://10.0.0.1/v1",
         "providers[0]: base_url: the address or the port of the URL is not allowed"),
        (("providers", 0, "base_url"), "ftp://x.example",
         "providers[0]: base_url: the URL must begin with https://"),
        (("providers", 1, "slug"), "acme",
         "providers[1]: repeats providers[0] (acme); remove one of them"),
        (("models", 1, "id"), "acme/falcon",
         "models[1]: repeats models[0] (acme/falcon); remove one of them"),
        (("endpoints", 0, "model"), "acme/falcon",
         "endpoints[0]: no model has canonical_slug 'acme/falcon'"),
        (("endpoints", 1, "provider"), "Cloud", "endpoints[1]: no provider has slug 'Cloud'"),
        *(
            (("endpoints", 0, "pricing", "prompt"), text, f"{PROMPT}: {DECIMAL}")
            for text in (
                *("", "-1", "1e-6", ".5", "1.", " 1", "1\n", "٣", "NaN", "1000000"),
                "0." + "1" * 31,
            )
        ),
    ],
)  # fmt: skip
def test_import_refuses_a_fault_and_names_its_place(
    db: None, path: tuple[str | int, ...], value: Any, problem: str
) -> None:
    assert refusal(changed(*path, value=value)) == [problem]


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("providers", 0, "slug"), "", "providers[0]"),
        (("providers", 0, "slug"), 5, "providers[0]"),
        (("providers", 0, "slug"), "a" * 256, "providers[0]"),
        (("providers", 0, "unknown"), 1, "providers[0]"),
        (("providers", 0, "headquarters"), "us", "providers[0]"),
        (("providers", 0, "datacenters"), ["USA"], "providers[0]"),
        (("providers", 0, "privacy_policy_url"), "javascript:alert(1)", "providers[0]"),
        (("providers", 0, "data_policy"), {"training": "no"}, "providers[0]"),
        (("providers", 1), "cloud", "providers[1]"),
        (("models", 0, "id"), "falcon", "models[0]"),
        (("models", 0, "id"), "acme/falcon\n", "models[0]"),
        (("models", 0, "created"), -1, "models[0]"),
        (("models", 0, "created"), 1.5, "models[0]"),
        (("models", 0, "context_length"), 0, "models[0]"),
        (("models", 0, "expiration_date"), "31.01.2027", "models[0]"),
        (("models", 0, "architecture"), None, "models[0]"),
        (("endpoints", 0, "pricing"), {"prompt": "1"}, "endpoints[0]"),
        (("endpoints", 0, "pricing", "prompt"), 0.5, "endpoints[0]"),
        (("endpoints", 0, "region"), "x" * 17, "endpoints[0]"),
        (("endpoints", 0, "zdr"), 1, "endpoints[0]"),
        (("endpoints", 0, "max_completion_tokens"), 0, "endpoints[0]"),
        (("models", 0, "architecture", "tokenizer"), "x" * 65, "models[0]"),
        (("models", 0, "architecture", "instruct_type"), "x" * 65, "models[0]"),
        (("models", 0, "architecture", "modality"), "x" * 256, "models[0]"),
        (("models", 0, "architecture", "input_modalities"), ["x" * 33], "models[0]"),
        (("models", 0, "architecture", "output_modalities"), ["x" * 33], "models[0]"),
        (("models", 0, "supported_parameters"), ["x" * 65], "models[0]"),
        (("models", 0, "supported_voices"), ["x" * 256], "models[0]"),
        (("endpoints", 0, "quantization"), "x" * 17, "endpoints[0]"),
        (("endpoints", 0, "supported_parameters"), ["x" * 65], "endpoints[0]"),
        (("providers", 0, "name"), "Acme\0", "providers[0]"),
        (("providers", 0, "slug"), "\x1b]0;x\x07", "providers[0]"),
        (("providers", 0, "base_url"), "https://api.acme.example/\0", "providers[0]"),
        (("providers", 0, "status_page_url"), "https://acme.example/\0", "providers[0]"),
        (("models", 0, "id"), "acme/\x9b", "models[0]"),
        (("models", 0, "description"), "Fast.\0", "models[0]"),
        (("models", 0, "supported_parameters"), ["\x7f"], "models[0]"),
        (("models", 0, "default_parameters"), {"a": [{"b\0": 1}]}, "models[0]"),
        (("models", 0, "per_request_limits"), {"a": ["\0"]}, "models[0]"),
        (("endpoints", 0, "quantization"), "\n", "endpoints[0]"),
    ],
)
def test_import_refuses_a_malformed_row_and_names_its_place(
    db: None, path: tuple[str | int, ...], value: Any, place: str
) -> None:
    # Rows that refer to the malformed row are reported after it.
    assert refusal(changed(*path, value=value))[0].startswith(f"{place}: ")


def test_import_stores_values_of_the_maximum_length(db: None) -> None:
    file = changed("models", 0, "supported_parameters", value=["x" * 64])
    file["models"][0]["architecture"] |= {
        "tokenizer": "t" * 64, "instruct_type": "i" * 64, "input_modalities": ["m" * 32],
    }  # fmt: skip
    file["models"][0]["description"] = "Two\nlines."
    file["endpoints"][0]["quantization"] = "q" * 16
    assert load(file).created == ALL_NEW


def test_import_reports_at_most_100_faults(db: None) -> None:
    problems = refusal({"providers": [1] * 1_000})
    assert (len(problems), problems[-1]) == (101, "… and 900 more")


def test_import_replaces_control_characters_in_faults(db: None) -> None:
    assert refusal({"\x1b]0;x\x07": []}) == [
        "not a catalogue file: Object contains unknown field `\ufffd]0;x\ufffd`"
    ]


def test_import_reports_all_faults_together(db: None) -> None:
    file = changed("providers", 0, "dialect", value="x")
    file["models"][1]["created"] = "yesterday"
    file["endpoints"][0]["pricing"] = {"prompt": "x", "completion": "y"}
    problems = refusal(file)
    assert [problem.partition(":")[0] for problem in problems] == [
        "models[1]",
        "providers[0]",
        "endpoints[0]",
        "endpoints[0]",
    ]


def test_import_refuses_a_duplicate_endpoint(db: None) -> None:
    file = copy.deepcopy(FILE)
    file["endpoints"].append(file["endpoints"][0])
    (problem,) = refusal(file)
    assert problem.startswith("endpoints[2]: repeats endpoints[0] ")


def test_import_refuses_a_public_name_of_another_model(db: None) -> None:
    load(FILE)
    taken = {**FILE["models"][0], "canonical_slug": "acme/new-2026"}
    assert refusal({"models": [taken]}) == [
        "models[0]: id 'acme/falcon' already belongs to 'acme/falcon-2026-06-01'"
    ]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"null", b"{", b"\xff"),
        *(b'{"providers": {}}', b'{"unknown": []}', b'{"models": 1}'),
    ],
)
def test_parse_refuses_a_file_that_is_not_a_catalogue(db: None, data: bytes) -> None:
    with pytest.raises(ImportRefused, match="not a catalogue file: "):
        imports.parse(data)


def test_a_fault_in_the_last_row_stores_no_row(db: None) -> None:
    file = changed("endpoints", 1, "model", value="acme/unknown")
    assert refusal(file) == ["endpoints[1]: no model has canonical_slug 'acme/unknown'"]
    assert Provider.objects.count() == 0


def test_import_accepts_plain_http_in_an_allowed_network(db: None) -> None:
    load(changed("providers", 0, "base_url", value="http://127.0.0.1:8080/v1"))
    assert Provider.objects.get(slug="acme").base_url == "http://127.0.0.1:8080/v1"


run = partial(commands.run, "import_catalog")


def test_the_command_prints_one_json_object(db: None, tmp_path: Path) -> None:
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps(FILE))
    dry = {"created": ALL_NEW, "updated": NONE, "unchanged": NONE, "dry_run": True}
    assert json.loads(run(str(file), "--dry-run", "--json")[0]) == dry
    assert Provider.objects.count() == 0
    assert json.loads(run(str(file), "--json")[0]) == dry | {"dry_run": False}
    out, err = run(str(file), "--json")
    assert json.loads(out) == dry | {"created": NONE, "unchanged": ALL_NEW, "dry_run": False}
    assert out.count("\n") == 1
    assert err == "These providers have no credential yet: acme, cloud.\n"


def test_the_command_reads_standard_input(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.TextIOWrapper(io.BytesIO(json.dumps(FILE).encode()))
    monkeypatch.setattr("sys.stdin", data)
    assert json.loads(run("-", "--json")[0])["created"] == ALL_NEW


def test_the_command_refuses_with_code_1(db: None, tmp_path: Path) -> None:
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps(changed("endpoints", 0, "provider", value="unknown")))
    missing = str(tmp_path / "missing.json")
    for name, message in (
        (str(file), "endpoints[0]: no provider has slug 'unknown'"),
        (missing, f"{missing}: No such file or directory"),
    ):
        assert commands.refuse("import_catalog", name, "--json") == (1, message)
    assert Provider.objects.count() == 0
