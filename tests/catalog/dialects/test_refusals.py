"""``find_fault`` reads the errors of providers in their own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from catalog.dialects.base import ProviderFailure, parse_error
from catalog.dialects.shared.refusals import (
    Asked,
    DialectRefusal,
    NamedFault,
    find_fault,
    infer_status,
    is_account_refused,
    is_file_refused,
    is_permission_refused,
)

LONG, CONTENT = DialectRefusal.CONTEXT_LENGTH, DialectRefusal.CONTENT


def read(body: Any) -> ProviderFailure:
    return parse_error(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        # OpenAI and Azure
        (
            400,
            {"error": {"message": "Please shorten it.", "code": "context_length_exceeded"}},
            LONG,
        ),
        (400, {"error": {"message": "It was filtered.", "code": "content_filter"}}, CONTENT),
        (
            400,
            {"error": {"message": "Your request was rejected by the safety system.", "code": None}},
            CONTENT,
        ),
        # Anthropic
        (
            400,
            {
                "type": "error",
                "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 210000 tokens > 200000 maximum",
                },
            },
            LONG,
        ),
        (
            400,
            {
                "error": {
                    "type": "invalid_request_error",
                    "message": "input length and `max_tokens` exceed context limit: 19 + 2 > 20",
                }
            },
            LONG,
        ),
        (
            400,
            {
                "error": {
                    "type": "invalid_request_error",
                    "message": "Output blocked by content filtering policy",
                }
            },
            CONTENT,
        ),
        # Gemini, with a number and a name
        (
            400,
            {
                "error": {
                    "code": 400,
                    "status": "INVALID_ARGUMENT",
                    "message": "The input token count (1200000) exceeds the maximum number of "
                    "tokens allowed (1048576).",
                }
            },
            LONG,
        ),
        # Bedrock
        (400, {"message": "Input is too long for requested model."}, LONG),
        # vLLM, llama.cpp, TGI, Mistral, xAI, Moonshot, MiniMax
        (
            400,
            {
                "object": "error",
                "message": "This model's maximum context length is 4096 tokens. However, you "
                "requested 5000 tokens.",
            },
            LONG,
        ),
        (
            400,
            {
                "error": {
                    "code": 400,
                    "message": "the request exceeds the available context size, increase it",
                    "type": "exceed_context_size_error",
                }
            },
            LONG,
        ),
        (422, {"error": "Input validation error: `inputs` must have less than 4096 tokens"}, LONG),
        (
            400,
            {"message": "Prompt has 40000 tokens, too large for 32768 maximum context length"},
            LONG,
        ),
        (
            400,
            {"error": "This model's maximum prompt length is 131072, and not 537812."},
            LONG,
        ),
        (400, {"error": {"message": "Your request exceeded model token limit: 262144"}}, LONG),
        (400, {"error": {"message": "invalid params, context window exceeds limit"}}, LONG),
        # OpenRouter, DeepSeek, Alibaba
        (
            403,
            {"error": {"code": 403, "message": "It requires moderation; your input was flagged"}},
            CONTENT,
        ),
        (400, {"error": {"message": "Content Exists Risk", "type": "invalid"}}, CONTENT),
        (400, {"error": {"message": "Unsafe.", "code": "data_inspection_failed"}}, CONTENT),
        # Inside an answer of status 200
        (200, {"error": {"code": "context_length_exceeded", "message": None}}, LONG),
        # A plain refusal, a missing permission, and providers that are busy
        (400, {"error": {"message": "temperature must be at most 2", "code": None}}, None),
        (400, {"error": {"message": "Unknown field `context_length`."}}, None),
        (403, {"error": {"message": "This key may not use this model."}}, None),
        (403, {"error": {"message": "Your account violates our usage policies."}}, None),
        (400, {"error": {"message": "Too many tokens per minute."}}, None),
        (429, {"error": {"message": "Too many tokens, please wait before trying again."}}, None),
        (503, {"error": {"message": "Busy.", "code": "context_length_exceeded"}}, None),
        (400, {}, None),
    ],
)
def test_a_refusal_is_recognized_by_its_code_or_its_words(
    status: int, body: Any, expected: DialectRefusal | None
) -> None:
    found = find_fault(status, read(body), Asked())
    assert found == (None if expected is None else NamedFault(expected))


def test_only_the_beginning_of_a_message_is_searched() -> None:
    said = "prompt is too long"
    assert find_fault(400, ProviderFailure("x" * (512 - len(said)) + said), Asked()) == NamedFault(
        LONG
    )
    assert find_fault(400, ProviderFailure("x" * (513 - len(said)) + said), Asked()) is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        # OpenAI
        ({"error": {"type": "server_error", "code": None, "message": "Busy."}}, 503),
        ({"error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "Wait."}}, 429),
        ({"error": {"type": "invalid_request_error", "code": None, "message": "No."}}, None),
        # Anthropic
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, 529),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "Slow."}}, 429),
        ({"type": "error", "error": {"type": "timeout_error", "message": "Slow."}}, 504),
        ({"type": "error", "error": {"type": "api_error", "message": "Oops."}}, None),
        # Google
        ({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota."}}, 429),
        ([{"error": {"code": 503, "status": "UNAVAILABLE", "message": "Overloaded."}}], 503),
        ({"error": {"code": 500, "status": "INTERNAL", "message": "Oops."}}, None),
        # OpenRouter and others repeat the status
        ({"error": {"code": 429, "message": "Slow."}}, 429),
        ({"error": {"code": "529", "message": "Slow."}}, 529),
        ({"error": {"code": 402, "message": "Insufficient credits."}}, 402),
        # What names an account comes first, and numbers that are no statuses mean nothing
        ({"error": {"type": "insufficient_quota", "code": 429, "message": "Pay."}}, 401),
        ({"error": {"code": 1302, "message": "No."}}, None),
        ({"error": {"code": 200, "message": "No."}}, None),
        ({"error": {"code": True, "message": "No."}}, None),
        ({"error": "rate_limit_exceeded"}, None),
        ({}, None),
    ],
)
def test_the_status_of_an_error_inside_an_answer_is_inferred(body: Any, status: int | None) -> None:
    assert infer_status(read(body)) == status


def google(reason: str, status: str, code: int) -> dict[str, Any]:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}
    return {"error": {"code": code, "message": "m", "status": status, "details": [info]}}


@pytest.mark.parametrize(
    ("status", "body", "is_refused"),
    [
        (401, {}, True),
        (402, {"error": {"message": "Insufficient Balance"}}, True),
        (429, {"error": {"code": "insufficient_quota", "message": "m"}}, True),
        (400, google("API_KEY_INVALID", "INVALID_ARGUMENT", 400), True),
        (400, {"error": {"type": "invalid_request_error",
                         "message": "Your credit balance is too low to access the API."}}, True),
        (403, {"error": {"code": "AccountOverdueError", "message": "m"}}, True),
        (200, {"error": {"type": "authentication_error", "message": "m"}}, True),
        # What a caller can write must not alarm anybody
        (400, {"error": {"message": "Invalid value: 'your credit balance is too low'"}}, False),
        (400, {"error": {"message": "Invalid value: 'insufficient_quota'"}}, False),
        (429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED",
                         "message": "You exceeded your current quota."}}, False),
        (403, {"error": {"type": "permission_error", "message": "m"}}, False),
        (403, {}, False),
        (404, {"error": {"code": "invalid_api_key", "message": "m"}}, False),
        (500, {"error": {"code": "insufficient_quota", "message": "m"}}, False),
    ],
)  # fmt: skip
def test_a_refused_account_is_recognized(status: int, body: Any, is_refused: bool) -> None:
    assert is_account_refused(status, read(body)) is is_refused


@pytest.mark.parametrize(
    ("status", "body", "is_refused"),
    [
        (403, {"error": {"type": "permission_error", "message": "m"}}, True),
        (403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "m"}}, True),
        (403, {"error": {"message": "Forbidden"}}, False),
        (400, {"error": {"type": "permission_error", "message": "m"}}, False),
    ],
)
def test_a_missing_permission_is_recognized(status: int, body: Any, is_refused: bool) -> None:
    assert is_permission_refused(status, read(body)) is is_refused


@pytest.mark.parametrize(
    ("status", "message", "is_refused"),
    [
        (403, "You do not have permission to access the File abc or it may not exist.", True),
        (403, "The caller does not have storage.objects.get access to gs://a/b.", True),
        (403, "Permission denied on resource project a.", False),
        (400, "You do not have permission to access the File abc or it may not exist.", False),
    ],
)
def test_a_file_that_the_request_names_is_recognized(
    status: int, message: str, is_refused: bool
) -> None:
    error = {"code": 403, "status": "PERMISSION_DENIED", "message": message}
    assert is_file_refused(status, read({"error": error})) is is_refused
