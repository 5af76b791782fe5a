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


def error(message: str | None, **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, **members}}


INVALID = {"type": "invalid_request_error"}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        # OpenAI and Azure
        (400, error("Please shorten it.", code="context_length_exceeded"), LONG),
        (400, error("It was filtered.", code="content_filter"), CONTENT),
        (400, error("Your request was rejected by the safety system.", code=None), CONTENT),
        # Anthropic
        (400, {
            "type": "error",
            **error("prompt is too long: 210000 tokens > 200000 maximum", **INVALID),
        }, LONG),
        (400, error("input length and `max_tokens` exceed context limit: 19 + 2 > 20", **INVALID),
         LONG),
        (400, error("Output blocked by content filtering policy", **INVALID), CONTENT),
        # Gemini, with a number and a name
        (400, error(
            "The input token count (1200000) exceeds the maximum number of tokens allowed "
            "(1048576).",
            code=400, status="INVALID_ARGUMENT",
        ), LONG),
        # Bedrock
        (400, {"message": "Input is too long for requested model."}, LONG),
        # vLLM, llama.cpp, TGI, Mistral, xAI, Moonshot, MiniMax
        (400, {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you "
            "requested 5000 tokens.",
        }, LONG),
        (400, error(
            "the request exceeds the available context size, increase it",
            code=400, type="exceed_context_size_error",
        ), LONG),
        (422, {"error": "Input validation error: `inputs` must have less than 4096 tokens"}, LONG),
        (400, {"message": "Prompt has 40000 tokens, too large for 32768 maximum context length"},
         LONG),
        (400, {"error": "This model's maximum prompt length is 131072, and not 537812."}, LONG),
        (400, error("Your request exceeded model token limit: 262144"), LONG),
        (400, error("invalid params, context window exceeds limit"), LONG),
        # OpenRouter, DeepSeek, Alibaba
        (403, error("It requires moderation; your input was flagged", code=403), CONTENT),
        (400, error("Content Exists Risk", type="invalid"), CONTENT),
        (400, error("Unsafe.", code="data_inspection_failed"), CONTENT),
        # Inside an answer of status 200
        (200, error(None, code="context_length_exceeded"), LONG),
        # A plain refusal, a missing permission, and providers that are busy
        (400, error("temperature must be at most 2", code=None), None),
        (400, error("Unknown field `context_length`."), None),
        (403, error("This key may not use this model."), None),
        (403, error("Your account violates our usage policies."), None),
        (400, error("Too many tokens per minute."), None),
        (429, error("Too many tokens, please wait before trying again."), None),
        (503, error("Busy.", code="context_length_exceeded"), None),
        (400, {}, None),
    ],
)  # fmt: skip
def test_a_refusal_is_recognized_by_its_code_or_its_words(
    status: int, body: Any, expected: DialectRefusal | None
) -> None:
    found = find_fault(status, read(body), Asked())
    assert found == (None if expected is None else NamedFault(expected))


MODEL, ABILITY, INPUT = DialectRefusal.MODEL, DialectRefusal.ABILITY, DialectRefusal.INPUT


@pytest.mark.parametrize(
    "body",
    [
        {"error": ["Wrong."]},
        {"error": True, "message": "Wrong."},
        {"error": 404, "message": "Wrong."},
        {"Message": "Wrong."},
        {"error_code": 3, "error_msg": "Wrong."},
        {"error": {"message": "Provider returned error", "code": 400,
                   "metadata": {"raw": '{"error":{"message":"Wrong."}}'}}},
    ],
)  # fmt: skip
def test_the_message_of_an_error_is_found_wherever_servers_write_it(body: Any) -> None:
    assert read(body).message == "Wrong."


# What each server says, by the fault and the status that it says it with.
SAID: list[tuple[DialectRefusal | None, int, list[str]]] = [
    (MODEL, 404, [
        "The model `x` has been decommissioned and is no longer supported. Please refer to ht",
        "models/x is not found for API version v1main, or is not supported for generateContent.",
        "This model models/x is no longer available. Please update your code to use a newer m",
        "Publisher Model `projects/p/locations/l/publishers/google/models/x` was not found or",
        "This model version has reached the end of its life. Please refer to the AWS document",
        "Could not resolve the foundation model from the provided model identifier.",
        "Not found the model x or Permission denied",
        "The model or endpoint x does not exist or you do not have access to it.",
        "The given endpoint does not exist, please retry after checking the specified model a",
        "Model 'x' is not supported for this environment.",
        "Function 'abc': Not found for account 'x'",
        ("No models loaded. Please load a model in the developer page or use the 'lms "
         "load' command."),
        ("No models loaded. Please load a model in the developer page or use the `lms "
         "load` command."),
        "model 'x' not found",
        "Model x not found.",
        "Model x not found or vLLM engine is sleeping.",
        "no router for requested model",
        "The model grok-x does not exist or your team 1 does not have access to it.",
        "Model not found, inaccessible, and/or not deployed",
    ]),
    (MODEL, 400, [
        "The model `x` has been decommissioned and is no longer supported.",
        "Invocation of model ID x with on-demand throughput isn’t supported. Retry your reque",
        "模型不存在，请检查模型代码。",
        "invalid params, unknown model 'x' (2013)",
        "The requested model is not supported.",
        "The requested model 'x' is not supported by any provider you have enabled.",
        "AiError: No such model: @cf/x or task",
        "Request for unknown model: 'x' is not found",
        "Model not found in the model list, uid: x",
        "could not find real modelID for x",
        "Unknown model: x",
        "Model does not exist. Please check it carefully.",
    ]),
    (MODEL, 404, [
        "Model not supported: x",
        "The provided model is not supported: x",
        "No model named x",
        "Could not find model x",
        "Model with name x not found",
        "model_id x not found",
        "Model x is currently not available",
        "Model 'x' is unavailable",
        "Model is not available",
        "Model x not in the list of available models",
        "x is not a supported model",
        "Invalid model name: x",
        "invalid model ID",
        "failed to load model: x",
        ("Cannot find an appropriate cached snapshot folder for the specified revision on the "
         "local disk and outgoing traffic has been disabled."),
    ]),
    (MODEL, 403, [
        "Project `proj_a` does not have access to model `x`",
        "Model disabled.",
    ]),
    (ABILITY, 400, [
        ("The chatCompletion operation does not work with the specified model, x. Please "
         "choose different model and try again."),
        ("Failed to deserialize the JSON body into the target type: messages[0]: unknown "
         "variant `image_url`, expected `text` at line 1 column 100"),
        "Invalid content type. image_url is only supported by certain models.",
        ("'messages.0' : for 'role:user' the following must be "
         "satisfied[('messages.0.content' : value must be a string)]"),
        "messages[0].content must be a string",
        "Image input is not enabled for this model",
        "Image inputs are not supported by this model",
        "This model doesn't support tool use in streaming mode.",
        ("This model doesn't support the image content block that you provided. Remove "
         "the content block and try again."),
        "Image input modality is not enabled for models/gemma-3-1b-it",
        "Function calling is not enabled for models/gemma-3-4b-it",
        ("tools is not supported in this model. For a list of supported models, refer to "
         "https://platform.openai.com"),
        "This model does not support function calling",
        "Model does not support images. Please use a model that does.",
        "\"llama3\" does not support thinking",
        "Tool calling is not supported for this model",
        "The model does not support Chat Completions API",
        "registry.ollama.ai/library/x:latest does not support tools",
        ("\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to "
         "be set"),
        "The model x does not support image input.",
        "`tool calling` is not supported with this model",
    ]),
    (ABILITY, 400, [
        "Image input not supported",
        "Images are not supported by this model",
        "Tool use is not supported by this model",
        "Tools are not supported for this model",
        "Function calling is not supported by this model",
        "tools not supported",
        "Audio input is not supported",
        "Reasoning is not supported by this model",
        "Thinking is not supported for this model",
        "The model does not accept images",
        "Model does not support multimodal content",
        "This server does not support tools",
        "Multimodal data provided, but model does not support multimodal requests.",
        ("Unable to submit request because Image input modality is not enabled for "
         "models/gemma-3-1b-it"),
        "Unsupported parameter: 'tools' is not supported with this model.",
        "Unrecognized request argument supplied: tools",
    ]),
    (ABILITY, 404, [
        ("This is not a chat model and thus not supported in the v1/chat/completions "
         "endpoint. Did you mean to use v1/completions?"),
        "This model is only supported in v1/responses and not in v1/chat/completions.",
        "No endpoints found that support image input",
    ]),
    (LONG, 400, [
        "Unable to submit request because the input token count is 2,000 but the model only s",
        "Prompt length (5000) exceeds maximum input length (4096).",
        "Reached context length of 4096 tokens with model, but this model does not currently ",
        "Prompt length 5000 is greater than max_seq_len 4096",
        "Number of input tokens exceeds maximum length. Please update the input to try again.",
        "The model returned the following errors: prompt is too long: 9 tokens > 8 maximum",
        "length of prompt_tokens (9000) must be less than max_seq_len (8192).",
        "max_total_tokens (20000) must be less than or equal to max_seq_len (16384).",
        "Invalid 'input[0]': maximum input length is 8192 tokens.",
        "max_tokens must be at least 1, got -300.",
        "Prompt 超长",
        "Your input exceeds the context window of this model. Please adjust your input and tr",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages are more.",
        "too many tokens: size limit exceeded by 100 tokens. Try using shorter or fewer inputs",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Ma",
        ("The number of tokens to keep from the initial prompt is greater than the "
         "context length."),
        "Input text exceeds maximum length of 8192 tokens",
    ]),
    (LONG, 400, [
        "Total tokens of image and text exceed max message tokens. Request id: 021",
        "the max input characters is 20480",
        ("Invalid input argument for Model 'x': the number of input tokens 9000 cannot exceed "
         "the total tokens limit 8192 for this model"),
        ("Request to model 'x' failed. The max allowed tokens per submitted batch is 120000. "
         "Your batch has 126899 tokens after truncation."),
        ("ValidationError(model='TextDoc', errors=[{'loc': ('text',), 'msg': 'Single text "
         "cannot exceed 8192 tokens. 10454 tokens given.', 'type': 'value_error'}])"),
        ("Requested generation length 1 is not possible! The provided prompt is 5000 tokens "
         "long"),
        "default_max_tokens (-5) should be greater than 0",
        "The sum of prompt length (5000) and max_tokens (100) should not exceed max_num_tokens",
        "Requested 400000 tokens, max 300000 tokens per request",
        "Invalid 'input': maximum request size is 300000 tokens per request.",
        "Input length 5000 exceeds the maximum allowed token length of 4096",
    ]),
    (LONG, 413, [
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
    ]),
    (LONG, 500, [
        "the input length exceeds the context length",
    ]),
    (MODEL, 400, [
        "Server is pinned to '/models/tiny'; requested 'x'.",
        "Specified model not found.",
        "[address=127.0.0.1:41, pid=9] Model not found in the model list, uid: x",
        "Model with key 'x' not found",
        "x: model not found",
        "Cannot find model x",
        "The model you requested was not found",
        "This model is no longer available.",
        "The provided model 'x' is not available in your region.",
        "Model 'x' is not in the list of available models",
        "Model name x is not supported",
        "x is not a valid model",
        "Invalid model identifier: x",
        "could not load model: rpc error: code = Unknown",
        "No deployment found for model x",
        "模型 x 不存在",
    ]),
    (LONG, 500, [
        "Request length 9000 is greater than max_seq_len 4096",
        "Input text is too long: 9000 tokens > 512",
        "Prompt too long",
        "Messages too long. max 32768 tokens",
        "Input sequence length 9000 exceeds max_input_len 4096",
        "Number of tokens (9000) exceeds maximum (4096)",
        "Input token length exceeds session_len",
        "The query length exceeds the maximum length of the model",
        "Tokens in prompt exceed the maximum allowed",
        "The prompt is longer than 4096 tokens",
        "Sequence length is longer than the maximum 512 for this model",
        "This model supports at most 8192 tokens, but 9000 given",
        "输入内容过长，超出模型上下文长度限制",
    ]),
    (ABILITY, 400, [
        "Image input not supported: model 'x' does not support image input.",
        "x is not supported for function calling",
        "Multimodal input is not supported",
        "Vision is not supported by this model",
        "This model cannot process images",
        "The model x cannot accept image inputs",
        "Tool calls are not enabled",
        "Chat template does not support tools",
        "image_url is not supported",
        "Unsupported content part type: image_url",
        "content type 'image_url' is not supported",
        "Only text content is supported",
        "No image processor found",
        "mmproj not loaded",
    ]),
    (None, 400, [
        "max_tokens must be at least 1, got 0.",
        "max_tokens is too large: 9000. This model supports at most 8192 completion tokens",
        "max_tokens (9000) exceeds the maximum allowed (8192)",
        "The input image exceeds the maximum size of 5 MB",
        "tools[0].function.name is too long",
    ]),
    (ABILITY, 500, [
        ("Failed to create new sequence: failed to process inputs: this model is missing "
         "data required for image input"),
    ]),
    (INPUT, 500, [
        "Incorrect padding",
        "Invalid base64-encoded string: number of data characters (5) cannot be 1 more than a",
        "Voice x does not exist",
        "Failed to load image or audio file",
        "cannot identify image file <_io.BytesIO object at 0x7f>",
    ]),
    (INPUT, 400, [
        "A voice with the voice_id x was not found.",
        "Voice 'x' not found. Available voices: a",
    ]),
]  # fmt: skip
PARTS = frozenset(("image", "audio", "tools", "voice", "chat/completions", "reasoning"))


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [(fault, status, each) for fault, status, several in SAID for each in several],
)
def test_the_words_of_servers_name_the_fault(
    fault: DialectRefusal | None, status: int, message: str
) -> None:
    for body in (message, {"error": message}, {"error": {"message": message}}):
        found = find_fault(status, read(body), Asked(PARTS))
        assert (None if found is None else found.refusal) == fault
    if fault is ABILITY:
        assert find_fault(status, read({"error": message}), Asked()) is None
    # The caller's own words, repeated by a server, name nothing.
    repeated = find_fault(status, read({"error": f"Bad value: {message!r}"}),
                          Asked(PARTS, message.lower().__contains__))  # fmt: skip
    assert repeated is None


@pytest.mark.parametrize(
    ("message", "parts", "member"),
    [
        ('"llama3" does not support thinking', {"reasoning"}, "reasoning"),
        ('"llama3" does not support thinking', {"reasoning_effort"}, "reasoning_effort"),
        ("This model does not support function calling", {"tools"}, "tools"),
        ("messages[0].content must be a string", {"image"}, "messages"),
        ("This model doesn't support tool use.", {"tools", "image"}, "tools"),
        ("This is not a chat model", {"chat/completions"}, "model"),
    ],
)
def test_what_an_endpoint_lacks_names_the_member(
    message: str, parts: set[str], member: str
) -> None:
    found = find_fault(400, read({"error": message}), Asked(frozenset(parts)))
    assert found is not None
    assert (found.refusal, found.member) == (ABILITY, member)


def test_only_the_beginning_of_a_message_is_searched() -> None:
    said = "prompt is too long"
    for length, fault in ((512, NamedFault(LONG)), (513, None)):
        assert find_fault(400, ProviderFailure(said.rjust(length, "x")), Asked()) == fault


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
