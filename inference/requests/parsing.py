"""Parses inference requests once; their fields stay raw JSON on the way upstream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from catalog.dialects.base import NativeBody, Operation
from catalog.dialects.shared.multipart import FormPart
from catalog.dialects.shared.raw import ESCAPE, is_empty, spell
from catalog.dialects.shared.reasoning import SEAL_MARK, open_thoughts
from catalog.dialects.shared.searches import SEARCH_FIELDS
from catalog.operations import OPERATIONS
from catalog.pricing import Usage
from catalog.tokens import Medium, TextCounts
from config.api.errors import InvalidRequest
from config.api.text import CONTROL_CHARACTERS
from config.server.load.large_work import LARGE_BYTES
from inference.requests.limits import MAX_ALL_CHOICES, check_body
from inference.requests.operations import ROWS
from inference.requests.operations.gateway_fields import (
    GATEWAY_FIELDS,
    MAY_BE_UNSET,
    drop_unset,
    take_wishes,
)
from inference.requests.operations.presets import AppliedPreset, merge_preset
from inference.requests.operations.server_tools import (
    LIFETIME_FIELDS,
    NO_TOOLS,
    OPERATOR_FIELDS,
    PROVIDER_FIELDS,
    ServerTools,
    read_server_tools,
)
from inference.requests.problems import explain_decode_error, field_error, require_user
from inference.requests.rows import Body, RequestRow, bound_prompt, name_model
from inference.requests.schemas import SESSION_LENGTH, ProviderPreferences

# All names of a search of the web mean this tool, which a workspace may disable.
WEB_SEARCH: Final = "openrouter:web_search"
# Provider options must not change what was parsed, priced and held.
_RESERVED: Final = GATEWAY_FIELDS | SEARCH_FIELDS | OPERATOR_FIELDS | LIFETIME_FIELDS | frozenset(
    (
        "messages", "prompt", "input", "stream", "stream_options", "max_tokens",
        "max_completion_tokens", "n", "best_of", "tools", "modalities",
    )
)  # fmt: skip


_DECODERS: Final = {
    operation: msgspec.json.Decoder(row.shape).decode for operation, row in ROWS.items()
}
# The allowance of a request that only uses tokens.
NO_PIECES: Final = Usage(0, 0)
_NULL: Final = msgspec.Raw(b"null")
# A mark of a cached prefix; the name cannot stand inside of a text, where quotes are escaped.
_LONG_CACHE: Final = re.compile(rb'"%b"\s*:\s*"%b"' % (spell("ttl"), spell("1h")))
# A file that the provider stores; in a schema the name has no text as its value.
_FILE: Final = re.compile(rb'"%b"\s*:\s*"[^"]' % spell("file_id"))
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_NO_PREFERENCES: Final = ProviderPreferences()


class InferenceRequest(msgspec.Struct, frozen=True):
    """A parsed request, and the raw fields that are sent upstream.

    ``models`` is empty if the caller names none. ``files`` are sent beside the fields. ``trace`` is
    the caller's own trace as JSON, and ``preset_id`` the preset that joined the request. ``size``
    is the size of the body in bytes.

    ``max_tokens`` is the most that one choice may produce, ``None`` if the caller leaves it to the
    endpoint. ``choices`` is the number of completions, or of vectors. ``prompt_bound`` is an upper
    bound of the tokens of the prompt's text for most tokenizers: its bytes. ``images`` is the
    number of its images, ``media`` are all its media, ``messages`` and ``tool_count`` the numbers
    of messages and tools: what these add depends on the endpoint.
    ``text_counts`` counts the text of a prompt that is large or not in ASCII, and ``text_tokens``
    is the number of tokens that a large one has at least.

    ``allowed`` is the most that the request may use of what is not counted in tokens: searches,
    milliseconds, characters and generated images, with their size and quality if it decides them.
    ``least`` is what the request uses of searches in any case, and the size and quality of its
    images as far as it names them. ``milliseconds`` estimates the length of its audio.

    ``inputs`` are the modalities of its media, without text, ``forms`` says how those are sent, and
    ``outputs`` are the modalities that the answer must have. ``tools`` names the tools that a
    server runs, and ``left_out`` the tools, items and fields that the face could not pass on.
    ``is_reasoning_hidden`` asks for an answer without the model's reasoning. ``native`` is the body
    in its caller's own format, for upstreams that speak it too. ``has_long_cache`` says that cached
    prefixes should stay for an hour. ``reads_pdfs`` says that the text of PDF files shall take
    their place, before anything else is done with the request.
    ``shortening`` is the field that asks to shorten a prompt that is too long: such a prompt is
    refused by its name. ``words`` are the caller's names of fields that its face names otherwise
    than chat.
    """

    operation: Operation
    models: tuple[str, ...]
    stream: bool
    user: str | None
    preferences: ProviderPreferences
    fields: dict[str, Any]
    session_id: str | None = None
    trace: str | None = None
    preset_id: UUID | None = None
    max_tokens: int | None = None
    choices: int = 1
    prompt_bound: int = 0
    images: int = 0
    media: tuple[Medium, ...] = ()
    messages: int = 0
    tool_count: int = 0
    inputs: frozenset[str] = frozenset()
    forms: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()
    allowed: Usage = NO_PIECES
    least: Usage = NO_PIECES
    milliseconds: int = 0
    files: list[FormPart] = []
    tools: frozenset[str] = frozenset()
    server_tools: ServerTools = NO_TOOLS
    is_reasoning_hidden: bool = False
    size: int = 0
    left_out: tuple[str, ...] = ()
    native: NativeBody | None = None
    has_long_cache: bool = False
    reads_pdfs: bool = False
    shortening: str = ""
    words: Mapping[str, str] = {}
    text_counts: TextCounts | None = None
    text_tokens: int | None = None

    def __repr__(self) -> str:
        """Names the request without its content, which no traceback shall show."""
        return f"<{self.operation} of {len(self.fields)} fields for {', '.join(self.models)}>"

    def forget(self) -> None:
        """Frees the content of the request, which nobody sends any more."""
        self.fields.clear()
        self.files.clear()
        if self.native is not None:
            self.native.fields.clear()

    @property
    def parameters(self) -> frozenset[str]:
        """The model parameters that the request sets, which an endpoint may not know."""
        return ROWS[self.operation].parameters.intersection(self.fields)

    @property
    def needed_parameters(self) -> frozenset[str]:
        """The parameters that an endpoint must support to serve the whole request.

        A null parameter needs no support. A JSON schema also needs ``structured_outputs``.
        """
        needed = {name for name in self.parameters if bytes(self.fields[name]) != b"null"}
        return frozenset(needed.union(ROWS[self.operation].implied_parameters(self.fields)))

    @property
    def may_choose_bound(self) -> bool:
        """Returns whether callers choose how long an answer is; speech follows from its text."""
        return bool(ROWS[self.operation].bound_names)

    @property
    def known_units(self) -> Usage:
        """What is known of the usage before the answer, by which one without a usage is billed.

        The characters to speak, the search units of a rerank and the length of a sound to
        transcribe are known; the number of images and the length of speech are upper bounds.
        """
        allowed, least = self.allowed, self.least
        if allowed is NO_PIECES and least is NO_PIECES and not self.milliseconds:
            return NO_PIECES
        return Usage(
            0,
            0,
            searches=least.searches,
            milliseconds=self.milliseconds or allowed.milliseconds,
            characters=allowed.characters,
            output_images=allowed.output_images,
            image_variant=least.image_variant,
        )

    @property
    def text(self) -> TextCounts:
        """What the text of the prompt has."""
        if self.text_counts is not None:
            return self.text_counts
        return ROWS[self.operation].count_text(self.fields)

    @property
    def least_tokens(self) -> int:
        """A number of tokens that the longest prompt exceeds in all likelihood."""
        if self.text_tokens is not None:
            return self.text_tokens
        return ROWS[self.operation].least_tokens(self.fields)


def parse(
    operation: Operation,
    body: bytes,
    *,
    session_id: str | None = None,
    is_checked: bool = False,
    preset: AppliedPreset | None = None,
) -> InferenceRequest:
    """Parses a request body; raises :class:`InvalidRequest` with the name of the wrong field.

    ``session_id`` comes from a header; one in the body takes precedence. ``is_checked`` says that
    the body was made from one that passed :func:`check_body`. A ``preset`` adds its fields.
    """
    if not is_checked:
        check_body(body)
    if preset is not None:
        body = merge_preset(operation, body, preset)
    request, fields = _decode(operation, body)
    session_id, row = request.session_id or session_id, ROWS[operation]
    answers = row.answers(request)
    _check_request(operation, request, fields, session_id, answers)
    models = row.models(request)
    wishes = take_wishes(operation, fields, models)
    _complete(row, fields)
    demands = row.demands(request)
    prompt = bound_prompt(row, request, fields, demands.added_tokens, has_escapes=b"\\" in body)
    has_file = OPERATIONS[operation].has_messages and has_stored_file(body)
    tools, server_tools = demands.tools, NO_TOOLS
    if tools or has_file or wishes.search or not PROVIDER_FIELDS.isdisjoint(fields):
        server_tools = read_server_tools(fields, tools, wishes.search, has_file=has_file)
    # Here, in a thread: the event loop needs the measures for every heartbeat and endpoint.
    is_measured = len(body) > LARGE_BYTES
    has_scripts = is_measured or not body.isascii() or b"\\u" in body  # the bound needs them
    return InferenceRequest(
        operation=operation,
        models=models,
        stream=bool(request.stream) or OPERATIONS[operation].is_bytes,
        user=request.user or wishes.identifier,
        preferences=request.provider or _NO_PREFERENCES,
        fields=fields,
        session_id=session_id or None,
        trace=wishes.trace,
        preset_id=None if preset is None else preset.preset_id,
        max_tokens=demands.output_bound,
        choices=answers,
        **prompt._asdict(),
        outputs=demands.outputs,
        allowed=_allow_pieces(row, fields, server_tools, answers),
        least=NO_PIECES if row.least is None else row.least(fields),
        tools=tools | ({WEB_SEARCH} if server_tools.searches else frozenset()),
        server_tools=server_tools,
        is_reasoning_hidden=demands.is_reasoning_hidden,
        size=len(body),
        left_out=() if preset is None else preset.left_out,
        has_long_cache=has_long_cache(body),
        reads_pdfs=wishes.reads_pdfs,
        shortening=wishes.shortening,
        text_counts=row.count_text(fields) if has_scripts else None,
        text_tokens=row.least_tokens(fields) if is_measured else None,
    )


def _check_models(raw: msgspec.Raw, model: str) -> None:
    """Raises :class:`InvalidRequest` for a list with more than the one model that is asked."""
    if is_empty(raw):
        return
    with suppress(msgspec.DecodeError, RecursionError):
        if msgspec.json.decode(raw) == [model]:
            return
    raise field_error("models", "This route asks one model; name it in 'model'.")


def replace_messages(request: InferenceRequest, messages: msgspec.Raw) -> InferenceRequest:
    """Returns a chat request with other messages, measured like one that came with them."""
    row, fields = ROWS[request.operation], {**request.fields, "messages": messages}
    chat = _DECODERS[request.operation](_encode(fields))
    chat.provider = request.preferences
    prompt = bound_prompt(row, chat, fields, row.demands(chat).added_tokens)
    return replace(
        request,
        fields=fields,
        size=max(request.size, len(messages)),
        **prompt._asdict(),
        text_counts=row.count_text(fields),
        text_tokens=row.least_tokens(fields),
    )


def _decode(operation: Operation, body: bytes) -> tuple[Any, dict[str, Any]]:
    """Returns a body by its shape, and its raw fields without those that set nothing."""
    fields: dict[str, Any] = {}
    try:
        fields = _decode_fields(body)
        if SEAL_MARK in body and "messages" in fields:
            # Before the filters, which read no data.
            fields["messages"] = open_thoughts(fields["messages"])
        has_unset = not MAY_BE_UNSET.isdisjoint(fields) and drop_unset(fields)
        try:
            return _DECODERS[operation](body), fields
        except msgspec.ValidationError:
            if not has_unset:
                raise
            return _DECODERS[operation](_encode(fields)), fields
    except msgspec.ValidationError as exc:
        shape = ROWS[operation].shape
        raise explain_decode_error(str(exc), shape=shape, body=body) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None


def has_long_cache(body: bytes) -> bool:
    """Returns whether a mark of the body asks to keep a cached prefix for an hour."""
    return (b'"ttl"' in body or ESCAPE in body) and _LONG_CACHE.search(body) is not None


def has_stored_file(body: bytes) -> bool:
    """Returns whether a body names a file that the provider stores."""
    return (b'"file_id"' in body or ESCAPE in body) and _FILE.search(body) is not None


def _complete(row: RequestRow[Any], fields: dict[str, Any]) -> None:
    """Removes the fields of an operation that are not sent, and adds its defaults."""
    for name in row.left_out:
        fields.pop(name, None)
    for name, default in row.defaults.items():
        if fields.get(name, _NULL) == _NULL:
            fields[name] = default


def _allow_pieces(
    row: RequestRow[Any],
    fields: dict[str, msgspec.Raw],
    server_tools: ServerTools,
    answers: int,
) -> Usage:
    """Returns the most that a request may use of what is not a token."""
    allowed = NO_PIECES if row.allowed is None else row.allowed(fields)
    if not server_tools.most_searches:
        return allowed
    return replace(allowed, searches=server_tools.most_searches * answers)


def _check_request(
    operation: Operation,
    request: Body,
    fields: dict[str, msgspec.Raw],
    session_id: str | None,
    answers: int,
) -> None:
    """Raises :class:`InvalidRequest` for values that the schema cannot check."""
    if session_id is not None and len(session_id) > SESSION_LENGTH:
        raise field_error("session_id", f"Expected str of length <= {SESSION_LENGTH}.")
    if session_id is not None and CONTROL_CHARACTERS.search(session_id):
        raise field_error("session_id", "Must not contain control characters.")
    if request.user is not None:
        require_user("user", request.user)
    if request.stream and not OPERATIONS[operation].streams:
        raise field_error("stream", f"The answers of /{operation} cannot be streamed.")
    if ROWS[operation].models is name_model and "models" in fields:
        _check_models(fields["models"], *ROWS[operation].models(request))
    if answers > MAX_ALL_CHOICES:
        raise field_error(
            ROWS[operation].answers_field,
            f"Asks for {answers:,} answers at once; send at most {MAX_ALL_CHOICES:,}.",
        )
    preferences = request.provider or _NO_PREFERENCES
    if preferences.enforce_distillable_text:
        raise field_error(
            "provider.enforce_distillable_text", "No endpoint here is known to allow it."
        )
    for slug, options in (preferences.options or {}).items():
        for name in sorted((_RESERVED | ROWS[operation].reserved).intersection(options)):
            raise field_error(f"provider.options.{slug}.{name}", "Set it in the body itself.")
    ROWS[operation].check(request, fields)
