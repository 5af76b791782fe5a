"""Recognizes whose fault an error is, by the names or the words of it; pure.

Providers have no common code for a prompt that is too long, for content that a moderation refuses,
for a model that they do not know, or for what a model cannot do. Most of them, and the servers that
people run themselves, answer with a sentence, and some with the status of another fault. So the
status decides only where the words say nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from catalog.dialects.base import ProviderFailure, parse_error


class DialectRefusal(StrEnum):
    """A fault that the words of an error name.

    Another model may accept a request that this one refuses for the first two. A ``MODEL`` that is
    unknown is the endpoint's fault. ``ABILITY`` is what this endpoint cannot do, although it lists
    it. ``INPUT`` is a file or a voice of the caller that nobody could use.
    """

    CONTEXT_LENGTH = "context_length"
    CONTENT = "content"
    MODEL = "unknown_model"
    ABILITY = "ability"
    INPUT = "input"


class Asked(NamedTuple):
    """The facts of a request that an error is read with.

    ``parts`` are the media of its prompt, ``tools``, ``voice``, and the path of its operation.
    ``wrote`` tells whether the caller wrote a text, in lower case: an error may repeat it.
    """

    parts: frozenset[str] = frozenset()
    wrote: Callable[[str], bool] = lambda _: False

    @property
    def is_chat(self) -> bool:
        return "chat/completions" in self.parts


class Saying(NamedTuple):
    """The words of a server for a fault, and the version that said them, where it was run.

    ``text`` is compared with the beginning of the message in lower case: what an error repeats of
    the caller's text follows the server's own words. Its group, or ``part``, is the part that the
    server lacks or refuses.
    """

    fault: DialectRefusal
    seen: str
    text: str
    part: str = ""


_NAME: Final = r"[`'\"]?[^\s`'\"]{1,200}[`'\"]?"
_MODEL_SAYINGS: Final = (
    ("LiteLLM 1.110.2", r"(?:/\S{1,60}: )?invalid model name passed in model="),
    ("Infinity 0.0.78, Mistral", r"invalid model(?:: | ['`\"])"),
    ("TensorZero 2026.6.0", r"model name not found: |model not found: |unknown function: "),
    ("TensorZero 2026.6.0", r"invalid inference target: "),
    ("mlx_lm.server 0.32.2", r"cannot find an appropriate cached snapshot folder for "),
    ("transformers serve 5.24.0", r"server is pinned to "),
    ("FastChat 0.2.36", r"only .{0,300}?allowed now, your model "),
    (
        "OpenAI, vLLM, SGLang, Ollama, LM Studio",
        (
            rf"(?:error: )?(?:the )?(?:requested )?model:? {_NAME},? (?:does not exist|"
            r"(?:was |is )?not (?:found|exist)|is not (?:available|loaded|deployed|served)|"
            r"is not supported(?: by any| for this environment|\.?$)|is no longer available|"
            r"has been de(?:commission|preca))"
        ),
    ),
    (
        "several",
        (
            r"(?:the )?(?:provided |requested )?model(?: is)? not "
            r"(?:supported|available)(?:: |[.!]?$)"
            r"|no (?:such )?model |(?:could not|cannot) find model |no deployment found for model "
            r"|(?:the |this )model (?:you requested was not found|is no longer available)"
            rf"|(?:inference endpoint|deployment) {_NAME} not found|{_NAME}:? model not found\b"
            r"|(?:sorry, )?(?:the )?(?:requested |provided )?model(?: with (?:name|key)|_id| id)?"
            rf":? {_NAME},? (?:not found|(?:is )?(?:currently )?(?:not available|unavailable)\b"
            r"|is not registered|isn.t available|is deprecated|was removed)"
            rf"|model {_NAME} (?:is )?not in the list|{_NAME} is not a supported model"
            rf"|{_NAME} is not a valid model(?: name)?\.?$|model name {_NAME} is not supported"
            r"|invalid model[ _](?:name|id)(?:entifier)?\b|(?:failed to|could not) load model\b"
        ),
    ),
    ("GitHub, Copilot", r"the requested model is not supported"),
    ("OpenAI", r"project \S{1,100} does not have access to model "),
    ("LM Studio", r"no models loaded"),
    ("llama-swap", r"could not find real modelid for |no router for requested model"),
    ("Triton", r"request for unknown model: "),
    ("NVIDIA", r"function '\S{1,200}': not found for account "),
    ("Moonshot", r"not found the model "),
    ("Z.AI", "模型.{0,200}?不存在"),
    ("SiliconFlow", r"model disabled\b"),
    ("Volcengine", r"the model or endpoint \S{1,200} does not exist"),
    ("Databricks", r"the given endpoint does not exist"),
    ("Cloudflare", r"no such model: "),
    (
        "DeepSeek, Fireworks, local-embed 0.4.1",
        (
            r"(?:the |specified )?model (?:does not exist|not exist|(?:is )?not found"
            r"|is not loaded|not loaded)\b"
        ),
    ),
    ("Together", r"unable to access model "),
    ("OpenRouter", rf"{_NAME} is not a valid model id|no endpoints found for "),
    (
        "Google",
        r"(?:this model )?models/\S{1,200} is (?:not found for api version|no longer available)",
    ),
    ("Google", rf"publisher model {_NAME} was not found"),
    (
        "Bedrock",
        (
            r"the provided model identifier is invalid|could not resolve the foundation model"
            r"|this model version has reached the end of its life"
            r"|invocation of model id \S{1,200} with on-demand throughput isn"
        ),
    ),
    ("Azure", r"the api deployment for this resource does not exist"),
    ("Anthropic", r"model: \S{1,200}$"),
    (
        "fastkokoro 0.7.0, vocal-ai 0.3.8, muse 0.60.2",
        r"(?:unsupported|unknown|no such) model\b",
    ),
)
_LENGTH_SAYINGS: Final = (
    (
        "llama.cpp of 2025 and 2026",
        (
            r"(?:the )?request (?:\([0-9]+ tokens\) )?exceeds the available context size"
            r"|input (?:\([0-9]+ tokens\) )?is (?:too large to process|larger than the max context)"
        ),
    ),
    ("OpenAI, vLLM", r"this model's maximum context length is "),
    ("OpenAI", r"input tokens exceed the configured limit of "),
    ("GitHub", r"request body too large for \S{1,100} model\. max size: [0-9]+ tokens"),
    ("Anthropic", r"prompt is too long: [0-9]"),
    ("Bedrock", r"input is too long for requested model"),
    ("Google", r"(?:unable to submit request because )?the input token count "),
    ("vLLM", r"max_tokens must be at least 1, got -[0-9]"),
    ("TensorRT-LLM", r"prompt length \([0-9]+\) exceeds maximum input length"),
    ("LM Studio", r"reached context length of [0-9]+ tokens"),
    ("TabbyAPI", r"prompt length [0-9]+ is greater than max_seq_len"),
    ("SiliconFlow", r"(?:length of prompt_tokens|max_total_tokens) \([0-9]+\) must be less than "),
    ("Z.AI", "prompt 超长"),
    ("Volcengine", r"total tokens of image and text exceed max message tokens"),
    ("Qianfan", r"the max input characters is [0-9]"),
    (
        "watsonx",
        (
            r"(?:invalid input argument for model .{1,200}?: )?"
            r"the number of input tokens [0-9]+ cannot exceed "
        ),
    ),
    ("Voyage", r"(?:request to model \S{1,200} failed\. )?the max allowed tokens per submitted "),
    ("Jina", r"(?:validationerror\(.{0,120}?)?single text cannot exceed [0-9]+ tokens"),
    ("SambaNova", r"requested generation length [0-9]+ is not possible"),
    ("TensorRT-LLM", r"default_max_tokens \(-[0-9]|the sum of prompt length \([0-9]+\)"),
    (
        "OpenAI",
        (
            r"(?:invalid 'input': )?(?:maximum request size is [0-9]+ tokens"
            r"|requested [0-9]+ tokens, max [0-9]+ tokens) per request"
        ),
    ),
    ("SGLang", r"(?:the )?input (?:length )?\([0-9]+ tokens\) (?:is longer than|exceeds) the"),
    ("LM Studio", r"trying to keep the first [0-9]+ tokens when "),
    ("TEI", r"input validation error: `inputs` must have less than [0-9]+ tokens"),
)
# What an endpoint cannot do; the group, or the third column, is the part that it lacks.
_ABILITY_SAYINGS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "llama.cpp of 2026, Mistral, xAI, Gemma at Google",
        (
            r"(?:unable to submit request because )?"
            r"(image|audio|video) inputs?(?: modality)? (?:is|are) not (?:supported|enabled)"
        ),
    ),
    (
        "several",
        (
            r"(?:content type )?[`'\"]?(image|audio|video|file|document|pdf|tool|function|reasoning"
            r"|thinking|embedding|vision|multimodal)s?"
            r"(?:[ _](?:input|use|call|calling|content|choice|url)s?)?[`'\"]? (?:is |are )?"
            r"not (?:supported|enabled)(?:: | (?:by|for|with|in) |[.!]?$)"
        ),
    ),
    (
        "several",
        (
            rf"(?:the |this )?(?:model|server|chat template)(?: {_NAME})? "
            r"(?:(?:does not|doesn.t) (?:support|accept)|cannot (?:process|accept)) (?:the )?"
            r"(tool|function|image|audio|video|pdf|document|multimodal|vision|thinking|reasoning)"
            rf"|(?:{_NAME} is )not supported for (function|tool) calling"
            r"|(?:unsupported|unknown) content (?:part )?type:? [`'\"]?(image_url|input_audio|file)"
        ),
    ),
    (
        "several",
        (
            r"only text (?:content|messages|inputs?) (?:is|are) supported|no image processor"
            r"|(?:the |this )?model (?:is not|isn.t) multimodal|mmproj not loaded"
        ),
        "media",
    ),
    ("vLLM", r"multimodal data provided, but model does not support multimodal ", "media"),
    (
        "OpenAI",
        (
            r"unsupported parameter: '(tools|reasoning_effort)' is not supported "
            r"|unrecognized request argument supplied: (tools|reasoning_effort)$"
        ),
    ),
    ("Gemma at Google", r"(function) calling is not enabled for "),
    ("DeepSeek", r"failed to deserialize .{0,120}?unknown variant `(image_url|input_audio|file)`"),
    ("OpenAI", r"invalid content type\. (image_url|input_audio) is only supported by "),
    ("OpenAI", r"(tools) is not supported in this model"),
    (
        "OpenAI, Azure",
        (
            r"this is not a chat model|this model is only supported in v1/responses"
            r"|the (?:chatcompletion|completion) operation does not work with the specified model"
        ),
        "chat",
    ),
    ("Groq", r"(?:'messages\.[0-9]+' : for |messages\[[0-9]+\]).{0,120}?must be a string", "media"),
    ("Bedrock", r"this model doesn.t support (?:the )?(tool|image|audio|video|document)\b"),
    ("Groq, Perplexity", r"`?(tool|function) (?:calling|use)`? is not supported (?:for|with) "),
    ("llama.cpp of 2026", r"this server does not support (embeddings|rerank|completions|chat)"),
    ("llama.cpp of 2026", r"pooling type \S+ is not oai compatible", "embeddings"),
    ("llama.cpp of 2025", r"tools param requires --jinja", "tools"),
    ("vLLM", r"at most 0 (image|audio|video)s?(?:\(s\))? may be provided"),
    ("vLLM", rf"{_NAME} is not a multimodal model", "media"),
    ("vLLM", r"the model does not support (embeddings|rerank|completions|chat|transcriptions)\b"),
    ("vLLM", r"\"(?:auto|required)\" tool choice requires ", "tools"),
    (
        "Ollama, LM Studio",
        (
            rf"(?:{_NAME}|(?:this |the )?model(?: {_NAME})?) does not support "
            r"(tool|function|chat|embeddings|image|vision|thinking)"
        ),
    ),
    ("Ollama", r"this model is missing data required for (image|audio) input"),
    ("OpenRouter", r"no endpoints found that support (image|audio|video|file|tool)"),
    (
        "Infinity 0.0.78",
        r"modelnotdeployederror: model=.{1,200}? does not support `(embed|rerank|image_embed)",
    ),
    ("SGLang", r"this model does not appear to be an embedding model", "embeddings"),
    ("TEI", r"model is not an embedding model", "embeddings"),
    ("TEI", r"model is not a re-?ranker model", "rerank"),
)
# What nobody can use of the caller's.
_INPUT_SAYINGS: Final = (
    (
        "vocal-ai 0.3.8",
        (
            r"(?:unknown|unsupported|invalid|no such) voice\b|a voice with the voice_id "
            rf"|voice:? (?:{_NAME} )?(?:(?:is |was )?not |does not exist)"
        ),
        "voice",
    ),
    ("vLLM, SGLang", r"incorrect padding|invalid base64", "media"),
    (
        "faster-whisper-server 0.0.3, transformers serve 5.24",
        (
            r"(?:\[errno [0-9]+\] )?invalid data found when processing input"
            r"|error opening .{0,200}format not recogni|cannot identify image file"
            r"|(?:failed|unable|could not|cannot|error) (?:to )?(?:load|decod|read|open)\w* "
            r"(?:the )?(?:audio|image|video|media|file)"
        ),
        "media",
    ),
)
_SAYINGS: Final = tuple(
    (Saying(fault, *row), re.compile(row[1], re.DOTALL))
    for fault, rows in (
        (DialectRefusal.MODEL, _MODEL_SAYINGS),
        (DialectRefusal.CONTEXT_LENGTH, _LENGTH_SAYINGS),
        (DialectRefusal.ABILITY, _ABILITY_SAYINGS),
        (DialectRefusal.INPUT, _INPUT_SAYINGS),
    )
    for row in rows
)
# Names of a code or a type that say the same.
_MODEL_CODES: Final = frozenset(
    (
        "model_not_found", "model_not_available", "invalid_model", "deploymentnotfound",
        "model_not_supported", "model_decommissioned", "unknown_model",
    )
)  # fmt: skip
# The words of servers for the parts of a request.
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    "media": frozenset(("image", "audio", "video", "file", "audio/transcriptions")),
    "multimodal": frozenset(("image", "audio", "video", "file")),
    "pdf": frozenset(("file",)),
    "embedding": frozenset(("embeddings",)),
    "vision": frozenset(("image",)),
    "image_url": frozenset(("image",)),
    "input_audio": frozenset(("audio",)),
    "document": frozenset(("file",)),
    "tool": frozenset(("tools",)),
    "function": frozenset(("tools",)),
    "thinking": frozenset(("reasoning", "reasoning_effort")),
    "embed": frozenset(("embeddings",)),
    "image_embed": frozenset(("embeddings",)),
    "chat": frozenset(("chat/completions",)),
    "transcriptions": frozenset(("audio/transcriptions",)),
}
_MEMBERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("image", "audio", "video", "file"), "messages"),
    **{name: name for name in ("tools", "voice", "reasoning", "reasoning_effort")},
    "audio/transcriptions": "file",
}
# An error with one of these statuses may have the words of a saying. Gateways wrap the error of a
# server behind them, and its status.
_SAID_WITH: Final = frozenset((200, 400, 403, 404, 405, 410, 413, 415, 422, 424, 500, 501, 502))
# What a server says of a path that it does not have, when it has others, and LM Studio with 200.
_NO_ROUTE: Final = ("not found", "404 page not found", "file not found", "method not allowed")
_NO_METHOD: Final = "unexpected endpoint or method"
# The beginnings that gateways put before the words of the server behind them.
_WRAPPER: Final = re.compile(
    r"\[address=[^\]]{1,80}\] |(?:litellm\.\w{1,40}: )?(?:\w{1,40}: )?\w{1,40}exception - "
    r"|litellm\.\w{1,40}: (?:\w{1,40}: )?"
    r"|the model returned the following errors: |aierror: |invalid params, "
    r"|failed to create new sequence: failed to process inputs: "
)
_INNER: Final = re.compile(r"\bfrom \w{1,40} (?:client|server): ?(\{.{0,4000})", re.DOTALL)


# The statuses with which a request itself is refused. A provider that is busy (429, 503) may say
# "too many tokens" as well, and means the tokens of a minute.
_STATUSES: Final = frozenset((200, 400, 403, 413, 422, 451, 500))
_CONTEXT_CODES: Final = frozenset(
    (
        "context_length_exceeded", "context_window_exceeded", "exceed_context_size_error",
        "model_max_prompt_tokens_exceeded", "tokens_limit_reached", "outofcontexterror",
        "tokens_too_long", "characters_too_long", "token_quantity_exceeded",
    )
)  # fmt: skip
_CONTENT_CODES: Final = frozenset(
    (
        "content_filter", "content_policy_violation", "content_policy", "content_moderation",
        "datainspectionfailed", "data_inspection_failed", "moderation_blocked",
        "responsibleaipolicyviolation",
    )
)  # fmt: skip
# Providers put the reason first; a long rest repeats the request.
_SEARCHED: Final = 512
# Each gap is bounded: the texts come from outside, and a search must stay linear.
_CONTEXT: Final = re.compile(
    r"prompt is too long|input is too long|maximum (?:context|model|prompt) length"
    r"|context[ _-](?:length|window|size)[^.]{0,40}exceed"
    r"|exceed[^.]{0,40}context[ _-]?(?:length|window|size|limit)"
    r"|(?:greater|longer|larger) than (?:the )?(?:maximum |max_)?(?:context|model|seq|[0-9]+ tok)"
    r"|input token count[^.]{0,60}exceed|prompt token count[^.]{0,60}exceed"
    r"|(?:input|prompt|query|sequence|tokens)[^.]{0,40}exceeds? (?:the )?maximum "
    r"(?:input |allowed |token ){0,2}length"
    r"|(?:(?:input|prompt|query|sequence) (?:\w{1,20} )?(?:length|tokens)|number of tokens"
    r"|token count|tokens in (?:the )?prompt)[^.]{0,40}exceeds? (?:the |model )?(?:max|limit|sess)"
    r"|(?:input|prompt|query|messages?)(?: text)?(?: is| are)? too long"
    r"|sequence length (?:is longer|exceeded)|supports at most [0-9]+ tokens"
    r"|超出.{0,20}长度|(?:输入|上下文).{0,20}(?:过长|超长|超限)"
    r"|maximum input length is [0-9]{1,9} tokens"
    r"|exceeded model token limit|prompt exceeds max length|range of input length should be"
    r"|reduce the length of the (?:messages|prompt|input)"
    r"|must have less than [0-9]{1,9} tokens|`max_new_tokens` must be"
    r"|too many (?:input )?tokens(?! per)"
)
_CONTENT: Final = re.compile(
    r"content (?:management )?policy|content[ _-](?:filter|moderation)|content exists risk"
    r"|requires moderation|inappropriate content"
    r"|(?:input|prompt|content|message|request)[^.]{0,60}\bflagged\b"
    r"|(?:input|prompt|content|message|request|output)[^.]{0,60}"
    r"violat[^.]{0,60}(?:polic|guideline|terms of use)"
    r"|(?:rejected|blocked|refused)[^.]{0,40}safety (?:system|filter|setting)"
)


# The names of errors that an answer of status 200 can have, and the statuses that they stand for.
# OpenAI names a server that is overloaded and one that failed alike.
_STATUSES_OF_NAMES: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        (
            "rate_limit_exceeded", "rate_limit_error", "rate_limit", "rate_limited",
            "rate_limit_reached_error", "too_many_requests", "resource_exhausted",
            "throttlingexception", "throttling", "servicequotaexceededexception",
        ),
        429,
    ),
    **dict.fromkeys(
        (
            "overloaded_error", "overloaded", "server_is_overloaded", "slow_down",
            "engine_overloaded", "engine_overloaded_error",
        ),
        529,
    ),
    **dict.fromkeys(
        (
            "server_error", "service_unavailable", "service_unavailable_error", "unavailable",
            "serviceunavailableexception", "modelnotreadyexception",
        ),
        503,
    ),
    **dict.fromkeys(("deadline_exceeded", "timeout_error", "modeltimeoutexception"), 504),
}  # fmt: skip
_RANK: Final = (401, 402, 403, 429, 529, 503, 504)
# The statuses with which a provider refuses a credential or an account by name.
_NAMED_STATUSES: Final = frozenset((200, 400, 403, 429))
_ACCOUNT_NAMES: Final = frozenset(
    (
        "insufficient_quota", "insufficient_balance", "insufficient_credits", "insufficient_funds",
        "billing_error", "billing_hard_limit_reached", "billing_not_active", "payment_required",
        "exceeded_current_quota_error", "arrearage", "accountoverdueerror", "account_deactivated",
        "account_suspended", "access_terminated",
        "invalid_api_key", "incorrect_api_key", "api_key_invalid", "api_key_expired",
        "api_key_service_blocked", "authentication_error", "invalid_authentication_error",
        "unauthenticated", "unrecognizedclientexception", "invalidsignatureexception",
        "expiredtokenexception", "missingauthenticationtokenexception", "incompletesignature",
    )
)  # fmt: skip
# What a provider names when a credential is known and may not use this model.
_PERMISSION_NAMES: Final = frozenset(
    (
        "permission_error", "permission_denied", "model_not_allowed", "accessdeniedexception",
        "unsupported_country_region_territory",
    )
)  # fmt: skip
# Only the beginning counts: what the error repeats of the request must not look like a refusal.
_ACCOUNT_TEXTS: Final = (
    "your credit balance is too low", "your account is not active", "insufficient balance",
    "insufficient credits",
)  # fmt: skip
# Google's words for a file of its Files API, and for one in its storage.
_FILE: Final = re.compile(r"permission to access the file\b|\bstorage\.objects\.")


class NamedFault(NamedTuple):
    """A fault that an error names; ``member`` is the member of the request that has the part."""

    refusal: DialectRefusal
    part: str = ""

    @property
    def member(self) -> str:
        return _MEMBERS.get(self.part, "model")


def find_fault(status: int, failure: ProviderFailure, asked: Asked) -> NamedFault | None:
    """Returns the fault that an error names; ``None`` if its words say nothing.

    ``status`` is 200 for an error inside an answer. The names decide if they are known, else the
    message. A misleading message costs one attempt at another model, which is free when refused.
    """
    failure = _unwrap(failure)
    text = (failure.message or "")[:_SEARCHED].lower()
    if status in _SAID_WITH:
        if not failure.names.isdisjoint(_CONTEXT_CODES):
            return NamedFault(DialectRefusal.CONTEXT_LENGTH)
        if not failure.names.isdisjoint(_MODEL_CODES):
            return NamedFault(DialectRefusal.MODEL)
        for saying, words in _SAYINGS:
            if (found := words.match(text)) is None:
                continue
            if saying.fault in (DialectRefusal.MODEL, DialectRefusal.CONTEXT_LENGTH):
                return NamedFault(saying.fault)
            named = next(filter(None, found.groups()), saying.part)
            if parts := asked.parts & _PARTS.get(named, frozenset((named,))):
                return NamedFault(saying.fault, min(parts))
    if (refusal := _search(status, failure, text, asked)) is not None:
        return NamedFault(refusal)
    is_route_missing = status in (404, 405) and text.rstrip(".") in _NO_ROUTE
    if status == 501 or text.startswith(_NO_METHOD) or (is_route_missing and not asked.is_chat):
        return NamedFault(DialectRefusal.ABILITY)
    return None


def _search(
    status: int, failure: ProviderFailure, text: str, asked: Asked
) -> DialectRefusal | None:
    """Looks for words that many servers use, anywhere but in what they repeat of the caller's."""
    if status not in _STATUSES:
        return None
    if (failure.code or "").lower() in _CONTENT_CODES:
        return DialectRefusal.CONTENT
    for refusal, words in (
        (DialectRefusal.CONTEXT_LENGTH, _CONTEXT),
        (DialectRefusal.CONTENT, _CONTENT),
    ):
        if (found := words.search(text)) is not None and not asked.wrote(found[0]):
            return refusal
    return None


def _unwrap(failure: ProviderFailure) -> ProviderFailure:
    """Returns the error of the server behind a gateway (LiteLLM 1.110.2, TensorZero 2026.6.0)."""
    message = failure.message or ""
    if (found := _INNER.search(message[:_SEARCHED])) is not None:
        try:
            inner, _ = json.JSONDecoder(strict=False).raw_decode(message, found.start(1))
        except (ValueError, RecursionError):
            return failure
        return parse_error(json.dumps(inner).encode())
    if (wrapper := _WRAPPER.match(message.lower())) is None:
        return failure
    return ProviderFailure(message[wrapper.end() :], failure.code, names=failure.names)


def infer_status(failure: ProviderFailure) -> int | None:
    """Returns the HTTP status that an error inside an answer stands for; ``None`` if unknown.

    Some providers put the status itself into ``code``.
    """
    if not failure.names.isdisjoint(_ACCOUNT_NAMES):
        return 401
    found = {_STATUSES_OF_NAMES[name] for name in failure.names & _STATUSES_OF_NAMES.keys()}
    numbers = {int(name) for name in failure.names if re.fullmatch("[45][0-9]{2}", name, re.ASCII)}
    return next((status for status in _RANK if status in found | numbers), None)


def is_account_refused(status: int, failure: ProviderFailure) -> bool:
    """Returns whether a provider refuses the credential or its account, whatever the request.

    ``status`` is 200 for an error inside an answer.
    """
    if status in (401, 402):
        return True
    if status not in _NAMED_STATUSES:
        return False
    return not failure.names.isdisjoint(_ACCOUNT_NAMES) or (
        (failure.message or "").lower().startswith(_ACCOUNT_TEXTS)
    )


def is_file_refused(status: int, failure: ProviderFailure) -> bool:
    """Returns whether a provider may not read a file that the request names by its URL.

    Google answers so for the URL of any file that is not the account's, which callers can write.
    """
    text = (failure.message or "")[:_SEARCHED].lower()
    return status == 403 and _FILE.search(text) is not None


def is_permission_refused(status: int, failure: ProviderFailure) -> bool:
    """Returns whether a provider knows the credential, and does not let it use the model."""
    return status == 403 and not failure.names.isdisjoint(_PERMISSION_NAMES)
