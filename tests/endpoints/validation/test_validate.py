"""Live validation against the simulator: the failed check and the reason of every fault."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from rest_framework.test import APIClient

from accounts.models import ByokCredential, Workspace
from catalog.abilities import TokenBound
from catalog.models import LanguageModel
from config.egress.rules import TimeLimits
from config.local.certificates import CertificateFault, Certificates, ensure_certificates
from endpoints import validation
from endpoints.history import render_operations
from endpoints.models import PrivateEndpoint, Validation
from endpoints.validation import is_same_model
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE
from tests.support.endpoints.validating import failed, passed, validate
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator
from tests.support.upstreams import tls

ALL_CHECKS = ["workspace", "byok_key", "base_url", "completion", "stream", "usage", "model"]
SECRET = "test-credential-0123456789"
UNREACHABLE = "The upstream could not be reached."
TOO_SLOW = "The deployment did not answer in time."
INVALID = "The upstream's answer is invalid."
COMPRESSED = "The upstream's answer is compressed, although an uncompressed one was asked for."
ENDED = "The upstream closed the connection before its answer was complete."
CUT_OFF = "The stream was cut off inside an event."
NO_END = "The stream ended without its end mark."
NOT_AN_OBJECT = "An event of the stream is not a JSON object."


@pytest.fixture
def draft(make_draft: Callable[..., PrivateEndpoint], model: LanguageModel) -> PrivateEndpoint:
    return make_draft(model, price=factories.make_price("0.001", "0.002"))


def behave(draft: PrivateEndpoint, behaviour: str) -> Validation:
    """Validates the draft while the upstream shows the given behaviour."""
    draft.edit(upstream_model_id=behaviour)
    return validate(draft)


@pytest.mark.parametrize(
    "behaviour",
    [
        *("sim-echo", "sim-chunks:3", "sim-mirror", "sim-tools", "sim-reasoning", "sim-extra"),
        *("sim-content-filter", "sim-null-content", "sim-cached", "sim-tokens:1000,16"),
        *("sim-comments", "sim-cr", "sim-lf", "sim-crlf", "sim-no-space", "sim-multi-line"),
        *("sim-bom", "sim-usage-with-choices", "sim-after-done"),
        *("sim-usage-twice", "sim-big-event", "sim-slow:0.05"),
    ],
)
def test_every_check_passes(draft: PrivateEndpoint, behaviour: str) -> None:
    result = behave(draft, behaviour)
    assert result.checks == passed(ALL_CHECKS)
    assert result.outcome == "passed"
    draft.refresh_from_db()
    assert draft.validation == result
    assert draft.status == "draft"


def test_a_stream_without_its_end_mark_passes_with_a_note(draft: PrivateEndpoint) -> None:
    result = behave(draft, "sim-no-done")
    [stream] = [check for check in result.checks if "notes" in check]
    note = "The stream ends without its end mark; its finish reason ended it."
    assert stream == {"name": "stream", "passed": True, "notes": [note]}
    assert result.outcome == "passed"


FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (
            f"sim-status:{status}",
            "failed",
            failed("completion", "upstream_error", text, status=status),
        )
        for status, text in (
            (400, "The request is not valid."),
            (401, "Incorrect API key provided."),
            (403, "This key may not use this model."),
            (404, "The model does not exist."),
            (429, "Rate limit reached, try again later."),
            (500, "The server had an error."),
            (503, "The engine is overloaded."),
        )
    ),
    ("sim-status:600", "failed", failed(
        "completion", "upstream_error", "The server had an error.")),
    *(
        (
            f"sim-redirect-{status}",
            "failed",
            failed("completion", "upstream_error", "The upstream answered with a redirect."),
        )
        for status in (301, 302, 303, 307, 308)
    ),
    ("sim-error-number", "failed", failed(
        "completion", "upstream_error", "Rate limit reached, try again later.", status=429)),
    ("sim-error-code", "failed", failed(
        "completion", "upstream_error", "The request is not valid.", status=400)),
    ("sim-error-string", "failed", failed(
        "completion", "upstream_error", "the model crashed", status=500)),
    ("sim-error-text", "failed", failed("completion", "upstream_error", status=500)),
    ("sim-error-200", "failed", failed(
        "completion", "invalid_response", "The server had an error.")),
    ("sim-wrong-shape", "failed", failed(
        "completion", "invalid_response", "The answer has no choices.")),
    *(
        (name, "failed", failed(
            "completion", "invalid_response", "The answer is not a JSON object."))
        for name in ("sim-html", "sim-truncated")
    ),
    ("sim-gzip", "failed", failed("completion", "invalid_response", COMPRESSED, kind="protocol")),
    ("sim-status:204", "failed", failed(
        "completion", "invalid_response", INVALID, kind="protocol")),
    *(
        (name, "failed", failed("completion", "invalid_response", ENDED, kind="reset"))
        for name in ("sim-short-body", "sim-reset-body")
    ),
    ("sim-endless", "failed", failed(
        "completion", "invalid_response", "The upstream's answer is too large.")),
    ("sim-big:1100000", "failed", failed(
        "completion", "invalid_response", "The upstream's answer is too large.")),
    *(
        (name, "unreachable", failed("completion", "upstream_error", UNREACHABLE, kind="reset"))
        for name in ("sim-connect-reset", "sim-connect-close")
    ),
    *(
        (name, "timed_out", failed("completion", "upstream_error", TOO_SLOW, kind="timeout"))
        for name in ("sim-stall", "sim-drip", "sim-drip-headers", "sim-held")
    ),
    *(
        (name, "failed", failed("stream", "invalid_stream", NO_END))
        for name in ("sim-only-comments", "sim-empty-stream")
    ),
    *(
        (name, "failed", failed("stream", "invalid_stream", CUT_OFF))
        for name in ("sim-cut-event", "sim-cut-character")
    ),
    *(
        (name, "failed", failed("stream", "invalid_stream", NOT_AN_OBJECT))
        for name in ("sim-bad-json", "sim-bad-shape")
    ),
    ("sim-error-stream", "failed", failed(
        "stream", "invalid_stream", "The server had an error.")),
    ("sim-error-first", "failed", failed(
        "stream", "invalid_stream", "Rate limit reached, try again later.")),
    *(
        (name, "failed", failed("stream", "invalid_stream", ENDED, kind="reset"))
        for name in ("sim-reset-stream", "sim-close-stream")
    ),
    *(
        (name, "timed_out", failed("stream", "upstream_error", TOO_SLOW, kind="timeout"))
        for name in ("sim-stall-stream", "sim-slow:0.3,0.3")
    ),
    *(
        (name, "failed", failed("usage", "missing_usage"))
        for name in (
            *("sim-no-usage", "sim-null-usage", "sim-usage-negative", "sim-usage-huge"),
            *("sim-usage-float", "sim-usage-zero", "sim-usage-nan", "sim-usage-null"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("behaviour", "outcome", "check"), FAULTS)
def test_a_fault_fails_its_check(
    draft: PrivateEndpoint, settings: Any, behaviour: str, outcome: str, check: dict[str, Any]
) -> None:
    settings.VALIDATION_TIMEOUT = 1.0 if outcome == "timed_out" else 30.0
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, max_response_bytes=3_000_000)
    result = behave(draft, behaviour)
    expected = [
        *passed(ALL_CHECKS[: ALL_CHECKS.index(check["name"])]),
        check,
        *(passed(["model"]) if check["name"] == "usage" else []),
    ]
    assert result.checks == expected
    assert result.outcome == outcome
    stored = Validation.objects.get()
    assert (stored.checks, stored.outcome) == (expected, outcome)
    draft.refresh_from_db()
    assert draft.status == "draft"


def mismatch(actual: str, expected: str) -> dict[str, Any]:
    names = {"actual_model": actual, "expected_model": expected}
    return failed("model", "model_mismatch") | names


def test_a_different_reported_model_fails_the_check_and_is_named(draft: PrivateEndpoint) -> None:
    result = behave(draft, "sim-wrong-model")
    assert result.outcome == "failed"
    assert result.checks == [*passed(ALL_CHECKS[:-1]), mismatch("another-model", "sim-wrong-model")]


def test_a_dated_version_of_the_model_passes_and_is_named(draft: PrivateEndpoint) -> None:
    result = behave(draft, "sim-versioned")
    assert result.outcome == "passed"
    assert result.checks[-1] == {
        "name": "model",
        "passed": True,
        "actual_model": "sim-versioned-2026-01-01",
        "expected_model": "sim-versioned",
    }


@pytest.mark.parametrize(
    ("requested", "reported", "same"),
    [
        ("gpt-4o", "gpt-4o", True),
        ("gpt-4o", "GPT-4O", True),
        ("gpt-4o", "gpt-4o-2024-08-06", True),
        ("gpt-4o-2024-08-06", "gpt-4o", True),
        ("llama", "meta/llama", True),
        ("meta/llama", "llama", True),
        ("llama", "llama:7b", True),
        ("llama", "llama@fp8", True),
        ("gpt-4", "gpt-4o", False),
        ("gpt-4o", "gpt-4", False),
        ("llama", "metallama", False),
        ("llama", "", False),
        ("llama", "mistral", False),
    ],
)
def test_is_same_model_compares_reported_names(requested: str, reported: str, same: bool) -> None:
    assert is_same_model(requested, reported) is same


@pytest.mark.parametrize(
    ("behaviour", "reason", "status"),
    [
        ("sim-echo-key:401", "upstream_error", 401),
        ("sim-echo-key:500", "upstream_error", 500),
        ("sim-echo-key:200", "invalid_response", None),
    ],
)
def test_an_echoed_key_is_masked(
    draft: PrivateEndpoint, behaviour: str, reason: str, status: int | None
) -> None:
    result = behave(draft, behaviour)
    assert result.checks[-1] == failed(
        "completion", reason, "Incorrect API key provided: Bearer ********.", status=status
    )
    assert SECRET not in json.dumps(Validation.objects.get().checks)


def test_a_huge_message_is_truncated_and_cleaned(draft: PrivateEndpoint) -> None:
    message = behave(draft, "sim-huge-error").checks[-1]["upstream_message"]
    assert len(message) == 512
    assert [character for character in message if character < " " or character == "\x7f"] == []


@pytest.fixture
def answer_with(
    draft: PrivateEndpoint, settings: Any, tmp_path: Path
) -> Callable[[str, str, dict[str, Any]], Validation]:
    """Validates a model against a server that reports a model and a usage."""
    authority = tls.Authority(tmp_path)
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, ca_bundle=authority.bundle)

    def run(wanted: str, reported: str, usage: dict[str, Any]) -> Validation:
        content = {"content": "ready"}
        answer = {"model": reported, "choices": [{"message": content}], "usage": usage}
        event = answer | {"choices": [{"delta": content}]}
        plain = json.dumps(answer).encode()
        stream = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()

        def script(line: socket.socket, head: bytes, body: bytes) -> bool:
            return tls.answering(stream if b'"stream":true' in body else plain)(line, head, body)

        with tls.serving(script, authority.server_context("127.0.0.1")) as server:
            draft.edit(upstream_model_id=wanted, base_url=f"https://127.0.0.1:{server.port}/v1")
            return validate(draft)

    return run


@pytest.mark.parametrize(("thought", "is_beside"), [(16, False), (2_000, True)])
def test_thoughts_beside_the_bound_are_noted(
    answer_with: Callable[..., Validation], thought: int, is_beside: bool
) -> None:
    """Sixteen tokens were asked for: a longer thought does not count towards them."""
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": thought + 2,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    result = answer_with("other", "other", usage)
    assert result.passed
    assert result.evidence.get("thoughts_beside") is (True if is_beside else None)
    beside = TokenBound(thoughts_beside=True) if is_beside else TokenBound()
    assert result.complete_bound(TokenBound()) == beside
    denied = TokenBound(thoughts_beside=False)
    assert result.complete_bound(denied) == denied


def test_a_reported_model_is_cleaned(answer_with: Callable[..., Validation]) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    result = answer_with("other", f"evil\x00\x1b[31m {SECRET}", usage)
    assert result.checks[-1] == mismatch("evil [31m ********", "other")


def test_validation_sends_one_plain_and_one_streamed_request(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    assert behave(draft, "sim-echo").passed
    plain, streamed = upstream.requests
    assert (plain.path, streamed.path) == ("/v1/chat/completions",) * 2
    assert plain.headers["authorization"] == f"Bearer {SECRET}"
    assert plain.body == {
        "messages": [{"role": "user", "content": "Reply with the single word: ready"}],
        "max_tokens": 16,
        "model": "sim-echo",
        "stream": False,
    }
    assert streamed.body == plain.body | {"stream": True, "stream_options": {"include_usage": True}}


def test_the_cost_of_the_calls_is_recorded(draft: PrivateEndpoint) -> None:
    result = behave(draft, "sim-tokens:1000,16")
    assert result.cost_nano == 2 * (1000 * 1_000_000 + 16 * 2_000_000)


def test_an_invalid_certificate_prevents_every_request(
    draft: PrivateEndpoint, certificate_fault: Certificates
) -> None:
    with Simulator(certificate_fault).run_in_thread() as faulty:
        draft.edit(upstream_model_id="sim-echo", base_url=faulty.base_url)
        result = behave(draft, "sim-echo")
        assert faulty.total_requests == 0
    assert result.outcome == "unreachable"
    assert result.checks == [
        *passed(ALL_CHECKS[:3]),
        failed("completion", "upstream_error", UNREACHABLE, kind="certificate"),
    ]


@pytest.fixture(params=["expired", "self-signed", "wrong-host"])
def certificate_fault(request: pytest.FixtureRequest, upstream: Simulator) -> Certificates:
    """Returns a server certificate that a client must refuse, beside the valid one."""
    fault: CertificateFault = request.param
    assert upstream.certificates is not None
    return ensure_certificates(upstream.certificates.ca.parent, fault)


def test_a_closed_port_is_unreachable(draft: PrivateEndpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    draft.edit(upstream_model_id="sim-echo", base_url=f"https://127.0.0.1:{port}")
    result = behave(draft, "sim-echo")
    assert result.outcome == "unreachable"
    assert result.checks[-1] == failed("completion", "upstream_error", UNREACHABLE, kind="refused")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_connection_is_made_to_an_address_that_is_no_longer_allowed(
    draft: PrivateEndpoint, upstream: Simulator, settings: Any, host: str
) -> None:
    draft.edit(upstream_model_id="sim-echo", base_url=f"https://{host}:{upstream.port}/v1")
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    result = behave(draft, "sim-echo")
    assert result.outcome == "failed"
    assert result.checks == [*passed(ALL_CHECKS[:2]), failed("base_url", "invalid_base_url")]
    assert upstream.connections == 0


def test_a_credential_is_not_sent_to_other_hosts(
    draft: PrivateEndpoint, credential: ByokCredential, upstream: Simulator
) -> None:
    credential.allowed_hosts = ["api.acme.example"]
    credential.save_fields("allowed_hosts")
    result = behave(draft, "sim-echo")
    message = (
        "The allowed_hosts of the credential do not name 127.0.0.1. To allow it, send the secret "
        "as `key` together with `allowed_hosts`: PATCH /byok/{id}."
    )
    check = failed("base_url", "invalid_base_url") | {"upstream_message": message}
    assert result.checks == [*passed(ALL_CHECKS[:2]), check]
    assert result.host == ""
    assert upstream.connections == 0
    credential.allowed_hosts = ["127.0.0.1"]
    credential.save_fields("allowed_hosts")
    assert behave(draft, "sim-echo").passed


def test_a_foreign_or_unknown_workspace_fails_its_check(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    foreign = factories.make_tenant("Other").workspace
    for workspace_id in (foreign.pk, uuid4()):
        result = validation.run(draft, workspace_id=workspace_id)
        assert result.checks == [failed("workspace", "workspace_not_found")]
        assert result.workspace is None
    assert upstream.connections == 0


@pytest.mark.parametrize("name", ["model", "provider"])
def test_an_unlisted_model_or_provider_fails_its_check(
    draft: PrivateEndpoint, upstream: Simulator, name: str
) -> None:
    getattr(draft, name).delist()
    check = failed(name, f"{name}_not_found")
    assert behave(draft, "sim-echo").checks == [*passed(["workspace"]), check]
    assert upstream.connections == 0


@pytest.mark.parametrize("fault", ["disabled", "deleted", "other provider", "other workspace"])
def test_a_missing_or_unusable_credential_fails_its_check(
    draft: PrivateEndpoint,
    tenant: Tenant,
    credential: ByokCredential,
    upstream: Simulator,
    fault: str,
) -> None:
    match fault:
        case "disabled":
            credential.disabled = True
            credential.save_fields("disabled")
        case "deleted":
            credential.remove()
        case "other provider":
            credential.delete()
            factories.make_credential(tenant, factories.make_provider())
        case "other workspace":
            credential.delete()
            other = Workspace.objects.create(
                organization=tenant.organization, name="Other", slug="other"
            )
            factories.make_credential(tenant, draft.provider, workspace=other)
    assert behave(draft, "sim-echo").checks == [
        *passed(["workspace"]),
        failed(
            "byok_key",
            "no_byok_key",
            "The workspace has no credential for acme. Store one with POST /byok.",
        ),
    ]
    assert upstream.connections == 0


@pytest.mark.parametrize("doubled", ["/chat/completions", "/embeddings/"])
def test_a_path_that_stands_in_the_url_already_is_named(
    draft: PrivateEndpoint, upstream: Simulator, doubled: str
) -> None:
    draft.edit(base_url=f"{upstream.base_url}{doubled}")
    [*_, check] = behave(draft, "sim-echo").checks
    path = doubled.rstrip("/")
    assert (check["name"], check["upstream_status"]) == ("completion", 404)
    assert check["upstream_message"].startswith(
        f"base_url ends with {path}, and each call appends its path to it: leave {path} out of "
        "base_url."
    )


def test_a_validation_names_the_host_only_if_the_secret_was_sent(
    draft: PrivateEndpoint, credential: ByokCredential, upstream: Simulator
) -> None:
    with socket.socket() as deaf:
        # Bound without listening: every connection is refused, and nobody else gets the port.
        deaf.bind(("127.0.0.1", 0))
        draft.edit(base_url=f"https://127.0.0.1:{deaf.getsockname()[1]}/v1")
        unreached = behave(draft, "sim-echo")
    assert (unreached.outcome, unreached.credential, unreached.host) == (
        Validation.Outcome.UNREACHABLE, credential, "",
    )  # fmt: skip
    draft.edit(base_url=upstream.base_url)
    assert behave(draft, "sim-error-text").host == "127.0.0.1"


def test_a_validation_that_ended_early_does_not_name_an_earlier_release(
    draft: PrivateEndpoint, credential: ByokCredential
) -> None:
    credential.remove()
    assert render_operations(behave(draft, "sim-echo")) == (
        "None was tried: the validation failed before."
    )


def test_a_credential_without_a_workspace_is_used(
    draft: PrivateEndpoint, tenant: Tenant, credential: ByokCredential
) -> None:
    credential.delete()
    factories.make_credential(tenant, draft.provider, workspace=None)
    assert behave(draft, "sim-echo").passed


def test_the_first_credential_in_the_order_is_used(
    draft: PrivateEndpoint, tenant: Tenant, credential: ByokCredential, upstream: Simulator
) -> None:
    second = factories.make_credential(tenant, draft.provider, "second-credential-0123456789")
    credential.is_fallback = True
    credential.save_fields("is_fallback")
    result = behave(draft, "sim-echo")
    assert (result.credential, result.credential_version) == (second, 1)
    assert {request.headers["authorization"] for request in upstream.requests} == {
        "Bearer second-credential-0123456789"
    }


@pytest.mark.parametrize("named", ["slug", "canonical_slug"])
def test_a_credential_of_another_model_is_not_used(
    draft: PrivateEndpoint,
    tenant: Tenant,
    credential: ByokCredential,
    upstream: Simulator,
    named: str,
) -> None:
    credential.edit(allowed_models=["acme/other"])
    assert behave(draft, "sim-echo").checks[-1] == failed(
        "byok_key",
        "no_byok_key",
        "No credential of the workspace for acme may call acme/falcon: its allowed_models name "
        "others. Add it with PATCH /byok/{id}.",
    )
    assert upstream.connections == 0
    second = factories.make_credential(
        tenant,
        draft.provider,
        "second-credential-0123456789",
        allowed_models=[getattr(draft.model, named)],
    )
    assert behave(draft, "sim-echo").credential == second


def test_a_credential_that_cannot_be_decrypted_fails_its_check(
    draft: PrivateEndpoint, upstream: Simulator, settings: Any
) -> None:
    settings.CREDENTIAL_KEYS = [b"k" * 32]
    result = behave(draft, "sim-echo")
    assert result.outcome == "broken"
    assert result.checks == [*passed(["workspace"]), failed("byok_key", "key_decryption_failed")]
    assert upstream.connections == 0


def ask(client: APIClient, endpoint: PrivateEndpoint, workspace_id: UUID) -> Any:
    """Asks for a validation in a workspace."""
    body = {"workspace_id": str(workspace_id)}
    return client.post(f"{ROUTE}/{endpoint.pk}/validate", body)


def test_validate_returns_the_checks(
    management: APIClient, tenant: Tenant, draft: PrivateEndpoint
) -> None:
    response = ask(management, draft, tenant.workspace.pk)
    assert response.status_code == 200
    assert response.json() == {"data": {"passed": True, "checks": passed(ALL_CHECKS)}}


def test_validate_returns_200_when_a_check_failed(
    management: APIClient, tenant: Tenant, draft: PrivateEndpoint
) -> None:
    draft.edit(upstream_model_id="sim-status:429")
    response = ask(management, draft, tenant.workspace.pk)
    assert response.status_code == 200
    message = "Rate limit reached, try again later."
    check = failed("completion", "upstream_error", message, status=429)
    assert response.json() == {
        "data": {"passed": False, "checks": [*passed(ALL_CHECKS[:3]), check]}
    }


def test_validate_returns_200_at_the_time_limit(
    management: APIClient, tenant: Tenant, draft: PrivateEndpoint, settings: Any
) -> None:
    settings.VALIDATION_TIMEOUT = 1.0
    draft.edit(upstream_model_id="sim-stall")
    response = ask(management, draft, tenant.workspace.pk)
    assert response.status_code == 200
    assert response.json()["data"]["checks"][-1] == failed(
        "completion", "upstream_error", TOO_SLOW, kind="timeout"
    )


def test_validate_refuses_a_foreign_workspace(
    management: APIClient, draft: PrivateEndpoint, upstream: Simulator
) -> None:
    foreign = factories.make_tenant("Other").workspace
    with snapshots.unchanged():
        for workspace_id in (foreign.pk, uuid4()):
            response = ask(management, draft, workspace_id)
            assert response.status_code == 404
            assert response.json()["error"]["metadata"] == {"error_type": "not_found"}
    assert upstream.connections == 0


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "workspace_id"),
        ({"workspace_id": None}, "workspace_id"),
        ({"workspace_id": "x"}, "workspace_id"),
        ({"workspace_id": 1}, "workspace_id"),
        ({"workspace": "x", "workspace_id": str(uuid4())}, "workspace"),
    ],
)
def test_validate_refuses_a_malformed_body(
    management: APIClient,
    draft: PrivateEndpoint,
    upstream: Simulator,
    body: dict[str, Any],
    field: str,
) -> None:
    with snapshots.unchanged():
        response = management.post(f"{ROUTE}/{draft.pk}/validate", body)
        assert response.status_code == 400
        assert set(response.json()["error"]["metadata"]["fields"]) == {field}
    assert upstream.connections == 0


def test_validate_refuses_an_endpoint_that_is_not_a_draft(
    management: APIClient, tenant: Tenant, draft: PrivateEndpoint, upstream: Simulator
) -> None:
    assert behave(draft, "sim-echo").passed
    draft.activate()
    upstream.clear()
    with snapshots.unchanged():
        response = ask(management, draft, tenant.workspace.pk)
        assert response.status_code == 409
        assert response.json()["error"]["metadata"] == {
            "error_type": "invalid_state",
            "status": "active",
        }
    assert upstream.connections == 0


@pytest.mark.parametrize(
    ("behaviour", "bounds"),
    [
        ("sim-echo", [{"max_tokens": 16}]),
        ("sim-strict:max_tokens", [{"max_tokens": 16}, {"max_completion_tokens": 16}]),
        ("sim-least:20", [{"max_tokens": 16}, {"max_completion_tokens": 16}, {"max_tokens": 512}]),
        (
            "sim-least:600",
            [{"max_tokens": 16}, {"max_completion_tokens": 16}, {"max_tokens": 512}, {}],
        ),
    ],
)
def test_a_refused_bound_is_tried_in_another_size(
    draft: PrivateEndpoint, upstream: Simulator, behaviour: str, bounds: list[dict[str, int]]
) -> None:
    draft.reprice(factories.make_price("0.000001", "0.000002"))
    result = behave(draft, behaviour)
    assert result.checks == passed(ALL_CHECKS)
    names = ("max_tokens", "max_completion_tokens")
    sent = [
        {name: request.body[name] for name in names if name in request.body}
        for request in upstream.requests
    ]
    # The stream has the bound that was accepted.
    assert sent == [*bounds, bounds[-1]]


@pytest.mark.parametrize(
    ("behaviour", "spend_limit", "longest"),
    [
        # At 2 USD a million tokens, twice 512 + 64 cost 0.002304, and twice 8,192 + 64 0.033024.
        ("sim-least:20", 0.0023, 512),
        ("sim-least:600", 0.033, 8_192),
    ],
)
def test_no_further_try_may_cost_more_than_the_limit(
    draft: PrivateEndpoint,
    upstream: Simulator,
    settings: Any,
    behaviour: str,
    spend_limit: float,
    longest: int,
) -> None:
    draft.reprice(factories.make_price("0.000001", "0.000002"))
    settings.VALIDATION_SPEND_LIMIT = spend_limit
    result = behave(draft, behaviour)
    assert result.outcome == "failed"
    check = result.checks[-1]
    assert (check["name"], check["reason"], check["upstream_status"]) == (
        "completion", "upstream_error", 400,
    )  # fmt: skip
    assert check["upstream_message"].startswith(
        f"An answer of up to {longest} tokens was not asked for, because it may cost more than "
        "VALIDATION_SPEND_LIMIT. "
    )
    assert len(upstream.requests) == (2 if longest == 512 else 3)
    settings.VALIDATION_SPEND_LIMIT = spend_limit + 0.0001
    assert behave(draft, behaviour).checks == passed(ALL_CHECKS)


def test_what_costs_nothing_is_tried_in_every_size(draft: PrivateEndpoint, settings: Any) -> None:
    draft.reprice(factories.make_price("0", "0"))
    settings.VALIDATION_SPEND_LIMIT = 0
    assert behave(draft, "sim-least:600").checks == passed(ALL_CHECKS)


def test_a_cold_start_takes_what_the_endpoint_says(draft: PrivateEndpoint, settings: Any) -> None:
    settings.VALIDATION_TIMEOUT = 0.3
    assert behave(draft, "sim-slow:0.6").outcome == "timed_out"
    draft.limit_time(TimeLimits(total=20))
    assert behave(draft, "sim-slow:0.6").checks == passed(ALL_CHECKS)
    # No endpoint exceeds the operator's limit.
    settings.HOLD_TIMEOUT = 0.3
    assert behave(draft, "sim-slow:0.6").outcome == "timed_out"


def test_a_refusal_of_something_else_is_tried_once(
    draft: PrivateEndpoint, upstream: Simulator
) -> None:
    assert not behave(draft, "sim-status:400").passed
    assert len(upstream.requests) == 1


def test_an_owner_states_what_the_server_calls_its_model(draft: PrivateEndpoint) -> None:
    assert not behave(draft, "sim-wrong-model").passed
    draft.edit(settings={"reported_model": "another-model"})
    result = behave(draft, "sim-wrong-model")
    assert result.checks == passed(ALL_CHECKS)
    draft.edit(settings={"reported_model": "one-more-model"})
    result = behave(draft, "sim-wrong-model")
    assert result.checks[-1] == mismatch("another-model", "one-more-model")


def test_a_long_prompt_of_the_server_and_long_thoughts_are_usage(draft: PrivateEndpoint) -> None:
    """A validation measures the tokens that a server adds; later holds include them."""
    result = behave(draft, "sim-tokens:40000,9000")
    assert result.passed
    assert result.evidence["added_tokens"] == 40_000 - 35
    assert result.complete_bound(TokenBound()) == TokenBound(prompt=39_965)
    assert result.complete_bound(TokenBound(prompt=7)) == TokenBound(prompt=7)
    assert "added_tokens" not in behave(draft, "sim-tokens:35,9").evidence
