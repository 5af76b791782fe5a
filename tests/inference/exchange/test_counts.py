"""What generations count, by provider, model, operation and status."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from catalog.dialects.base import Operation
from catalog.pricing import Usage
from config.api.errors import UpstreamError, UpstreamRateLimited
from config.credentials import Secret
from config.server.load.figures import figures
from endpoints.models import PrivateEndpoint, PrivateProvider
from inference.admission.copies.catalog import NO_CATALOG
from inference.models import Generation
from inference.routing.health import HealthTable
from inference.routing.routes import Candidate
from inference.settlement.settle import Settlement
from inference.taps.figures import MOST_MODELS, ModelLabels, WorkerWatcher
from tests.support import factories
from tests.support.bulkheads.counters import read_counter, read_metrics, sample, sum_samples
from tests.support.inference.routes import route as make_route
from tests.support.inference.site import Site


class Request:
    operation = Operation.CHAT
    stream = True


def make_candidate(provider: str, *, model_slug: str, is_byok: bool = False) -> Candidate:
    route = make_route(provider, model_slug=model_slug)
    return Candidate(route, Secret("s"), is_byok, route.endpoint_id)


def test_a_request_counts_by_provider_model_operation_and_status(site: Site) -> None:
    site.publish()
    named = {"provider": site.provider.slug, "model": site.model.slug}
    labels = {**named, "operation": "chat/completions"}
    client = {
        "gen_ai_operation_name": "chat",
        "gen_ai_provider_name": site.provider.slug,
        "gen_ai_request_model": site.model.slug,
    }

    names = {
        "causeway_generations_total": {**labels, "status": "completed"},
        "causeway_generation_seconds_count": labels,
        "causeway_time_to_first_token_seconds_count": labels,
        "gen_ai_client_operation_duration_seconds_count": {**client, "error_type": ""},
        "gen_ai_client_operation_time_to_first_chunk_seconds_count": client,
        "gen_ai_client_token_usage_sum": {**client, "gen_ai_token_type": "input"},
        "causeway_attempts_total": {"provider": site.provider.slug},
        "causeway_queue_seconds_count": {"queue": "admit"},
        "causeway_batch_items_sum": {"queue": "settle"},
        "causeway_statement_seconds_count": {"statement": "settle"},
    }

    def count(text: str) -> dict[str, float]:
        return {name: sum_samples(text, name, **labels) for name, labels in names.items()}

    text = read_metrics(site.server)
    before = count(text)
    tokens = sum_samples(text, "causeway_tokens_total", **named, kind="prompt")
    cost = sum_samples(text, "causeway_cost_usd_total", **named, kind="credits")
    assert site.chat(stream=False).status_code == 200
    assert site.post(site.chat_body("a b", stream=True), stream=True).text.endswith("[DONE]\n\n")
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 2)
    rows = Generation.objects.all()

    def is_counted() -> bool:
        found = count(read_metrics(site.server))
        waited = ("causeway_generations_total", "causeway_batch_items_sum")
        return all(found[name] == before[name] + 2 for name in waited)

    site.eventually(is_counted)
    text = read_metrics(site.server)
    after = {name: number - before[name] for name, number in count(text).items()}
    assert after["causeway_generation_seconds_count"] == 2
    assert after["causeway_time_to_first_token_seconds_count"] == 1
    assert after["gen_ai_client_operation_duration_seconds_count"] == 2
    assert after["gen_ai_client_operation_time_to_first_chunk_seconds_count"] == 1
    assert after["gen_ai_client_token_usage_sum"] == sum(row.prompt_tokens or 0 for row in rows)
    assert after["causeway_attempts_total"] == 2
    assert after["causeway_batch_items_sum"] == 2
    assert after["causeway_queue_seconds_count"] >= 1
    assert after["causeway_statement_seconds_count"] >= 1
    used = sum_samples(text, "causeway_tokens_total", **named, kind="prompt") - tokens
    assert used == sum(row.prompt_tokens or 0 for row in rows)
    charged = sum_samples(text, "causeway_cost_usd_total", **named, kind="credits") - cost
    assert charged == pytest.approx(sum(row.cost_nano for row in rows) / 1e9)


def test_a_fallback_counts_by_the_provider_that_failed(site: Site) -> None:
    failing = site.another_provider("failing")
    site.publish("sim-error:500", provider=failing)
    site.publish()

    def read(name: str, **labels: str) -> float:
        return read_counter(site.server, name, provider="failing", **labels)

    names = ("causeway_fallbacks_total", "causeway_failed_attempts_total")
    before = [read(name) for name in names]
    assert site.chat(provider={"order": ["failing", site.provider.slug]}).status_code == 200
    site.eventually(lambda: [read(name) for name in names] == [each + 1 for each in before])


@pytest.mark.parametrize(
    ("behaviour", "failures"),
    [
        ("sim-reset-stream", 1),
        ("sim-status-500", 1),
        ("sim-status-429", 1),
        ("sim-status-400", 0),
        ("sim-too-long", 0),
    ],
)
def test_an_attempt_counts_once_and_fails_unless_its_caller_caused_it(
    site: Site, behaviour: str, failures: int
) -> None:
    provider = site.another_provider("judged")
    site.publish(behaviour, provider=provider)

    def read() -> list[float]:
        text = read_metrics(site.server)
        names = ("generations", "attempts", "failed_attempts")
        return [
            sum_samples(text, f"causeway_{name}_total", provider=provider.slug) for name in names
        ]

    ended, attempts, failed = read()
    site.chat(stream=True)
    site.eventually(lambda: read()[0] == ended + 1)
    site.eventually(lambda: read() == [ended + 1, attempts + 1, failed + failures])


@pytest.mark.parametrize(
    ("is_byok", "error", "counted", "failures"),
    [
        (True, UpstreamError(upstream_status=401), "own_credential", 0),
        (True, UpstreamRateLimited(upstream_status=429), "own_credential", 0),
        (True, UpstreamError(upstream_status=500), "provider_unavailable", 1),
        (False, UpstreamRateLimited(upstream_status=429), "rate_limit_exceeded", 1),
    ],
)
def test_a_dead_or_busy_own_credential_is_no_failure_of_its_provider(
    is_byok: bool, error: UpstreamError, counted: str, failures: int
) -> None:
    used = make_candidate("owned", model_slug="acme/owned", is_byok=is_byok)
    outcome = Settlement("gen-1-a", "failed", error_type=error.error_type)
    labels = {"provider": "owned", "model": "acme/owned", "operation": "chat/completions"}

    def read() -> list[float]:
        figures.flush()
        return [
            sample("causeway_generation_errors_total", **labels, type=counted),
            sample("causeway_failed_attempts_total", provider="owned", kind="other"),
        ]

    before = read()
    watcher = WorkerWatcher(HealthTable(), lambda: NO_CATALOG)
    watcher.note_failure(used, error)
    watcher.note_end(uuid.uuid4(), used, Request(), outcome, error)  # type: ignore[arg-type]
    assert read() == [before[0] + 1, before[1] + failures]


def test_private_endpoints_name_neither_provider_nor_model(site: Site) -> None:
    site.own()
    labels = {"provider": "private", "model": "private", "status": "completed"}
    before = read_counter(site.server, "causeway_generations_total", **labels)
    named = read_counter(site.server, "causeway_generations_total", model=site.model.slug)
    assert site.chat().status_code == 200
    site.eventually(
        lambda: read_counter(site.server, "causeway_generations_total", **labels) == before + 1
    )
    assert read_counter(site.server, "causeway_generations_total", model=site.model.slug) == named


@pytest.fixture
def hidden(site: Site) -> Iterator[Site]:
    """A site whose tenant has a model and a provider of its own, each with a name that tells."""
    organization = site.tenant.organization
    organization.slug = "furtive-works"
    organization.save_fields("slug")
    PrivateProvider.objects.create_provider(
        organization_id=organization.pk,
        name="Furtive Rack",
        base_url=site.upstream.base_url,
        is_keyless=True,
    )
    site.upstream.is_keyless = True
    body = {
        "model_permaslug": "furtive-works/support-7b",
        "provider_slug": "furtive-rack",
        "upstream_model_id": "sim-echo",
        "model": {"name": "Furtive 7B"},
        "activate": {"workspace_id": str(site.tenant.workspace.pk)},
    }
    manager = factories.client(site.tenant.management_key)
    created = manager.post("/api/v1/private-endpoints", body)
    assert created.status_code == 201, created.content
    yield site
    site.upstream.is_keyless = False


def test_no_label_of_any_metric_names_what_is_private(hidden: Site) -> None:
    """Names would tell the readers what a tenant does, and tenants could make any number."""

    def count(text: str, name: str, **labels: str) -> float:
        return sum_samples(text, name, provider="private", **labels)

    def count_ends(text: str) -> float:
        return count(text, "causeway_generations_total", model="private")

    before = read_metrics(hidden.server)
    body = {**hidden.chat_body(), "model": "furtive-works/support-7b"}
    for behaviour in ("sim-echo", "sim-no-done", "sim-error-stream", "sim-status-500"):
        PrivateEndpoint.objects.update(upstream_model_id=behaviour)
        for stream in (True, False):
            hidden.post({**body, "stream": stream})
    assert Generation.objects.count() == 8
    hidden.eventually(lambda: count_ends(read_metrics(hidden.server)) == count_ends(before) + 8)
    after = read_metrics(hidden.server)
    unmarked = "causeway_unmarked_streams_total"
    assert count(after, unmarked) == count(before, unmarked) + 1
    failed = "causeway_failed_attempts_total"
    assert count(after, failed) != count(before, failed)
    assert [line for line in after.splitlines() if "furtive" in line.lower()] == []


def test_a_worker_names_a_bounded_number_of_models() -> None:
    names = ModelLabels()
    routes = [
        make_route("acme", model_slug=f"acme/model-{number}") for number in range(MOST_MODELS + 1)
    ]
    labels = [names.name(route) for route in routes]
    assert len(set(labels[:-1])) == MOST_MODELS
    assert labels[-1] == ("other", "other", "other")
    assert names.name(routes[0]) == labels[0]


def test_only_listed_organizations_have_figures_of_their_own(settings: Any) -> None:
    listed, other = uuid.uuid4(), uuid.uuid4()
    used = make_candidate("acme", model_slug="acme/listed")
    outcome = Settlement("gen-1-a", "completed", Usage(10, 5), cost_nano=2_000_000_000)

    def read(organization: object) -> list[float]:
        name, text = "causeway_organization", str(organization)
        return [
            sample(f"{name}_generations_total", organization=text, status="completed"),
            sample(f"{name}_tokens_total", organization=text, kind="prompt"),
            sample(f"{name}_cost_usd_total", organization=text, kind="credits"),
        ]

    watcher = WorkerWatcher(HealthTable(), lambda: NO_CATALOG)
    before = read("other")
    watcher.note_end(listed, used, Request(), outcome, None)  # type: ignore[arg-type]
    settings.METRICS_ORGANIZATIONS = frozenset({listed})
    watcher.note_end(listed, used, Request(), outcome, None)  # type: ignore[arg-type]
    watcher.note_end(other, used, Request(), outcome, None)  # type: ignore[arg-type]
    figures.flush()
    assert read(listed) == [1, 10, 2]
    assert read(other) == [0, 0, 0]
    assert read("other") == [was + now for was, now in zip(before, [1, 10, 2], strict=True)]
