"""How the requests of one operation are read, and how large their prompts are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from catalog.dialects.base import Reply
from catalog.dialects.shared.raw import first_byte, iter_text
from catalog.pricing import Usage
from catalog.tokens import Medium, TextCounts
from inference.requests.media import MEDIA, MODALITIES, find_form, measure_medium, measure_name
from inference.requests.schemas import ProviderPreferences

Fields = Mapping[str, msgspec.Raw]
_TEXT_ONLY: Final[frozenset[str]] = frozenset()
# The escapes of characters that have fewer than three bytes in UTF-8, or are half of a pair.
_SHORT: Final = re.compile(rb"\\u(?:0[0-7]|[dD][89a-fA-F])")
_ASCII: Final = re.compile(rb"\\u00[0-7]")
_PIECE_BYTES: Final = 128 * 1024
# A cut may fall into an escape; so much is then saved too often.
_CUT_BYTES: Final = 6
# English has four to five characters a token, and no language has more than six on average.
CHARACTERS_PER_TOKEN: Final = 6
# The JSON of the shortest token: a digit and a comma.
TOKEN_BYTES: Final = 2
# The types of text parts; a part without a type counts as text.
_TEXTS: Final = frozenset((b"", b'"text"', b'"refusal"'))
# The fields of which the model is shown the text; of others it is shown their JSON.
_TEXTS_OF: Final = frozenset(("messages", "prompt", "input", "query", "documents", "suffix"))
_UNKNOWN: Final = Medium("file")
# The member of a part that has a picture, and that of an earlier answer which has some.
_PICTURE: Final = "image_url"
_PICTURES: Final = re.compile(rb'"images"')


class Body(Protocol):
    """The members that the bodies of all operations have."""

    provider: ProviderPreferences | None
    user: str | None
    session_id: str | None
    stream: bool | None


B = TypeVar("B", bound=Body)


class Modelled(Protocol):
    """A body that may name several models."""

    model: str | None
    models: list[str] | None


def name_models(request: Modelled) -> tuple[str, ...]:
    """Returns the models of a body that may name several, in the order of their preference."""
    if not request.models:
        return () if request.model is None else (request.model,)
    return tuple(dict.fromkeys(filter(None, (request.model, *request.models))))


class OneModel(Protocol):
    """A body that names one model."""

    model: str


def name_model(request: OneModel) -> tuple[str, ...]:
    """Returns the model of a body that names one."""
    return (request.model,)


def _accept(request: Any, fields: Fields) -> None:
    """Accepts every body that fits its shape."""


def _count_one(request: Any) -> int:
    return 1


def _find_nothing(request: Any) -> tuple[()]:
    return ()


def _need_nothing(fields: Fields) -> tuple[()]:
    return ()


def _count_nothing(fields: Fields) -> int:
    return 0


class Demands(NamedTuple):
    """The outputs and the tools that a body asks for.

    ``output_bound`` is the most tokens of one answer: ``None`` if the request leaves it to the
    endpoint, 0 if answers have no output tokens. ``added_tokens`` are those that a provider adds to
    the prompt. ``outputs`` are the modalities that the answer must have, and ``tools`` the tools
    that a server runs.
    """

    output_bound: int | None = 0
    added_tokens: int = 0
    outputs: frozenset[str] = frozenset()
    tools: frozenset[str] = frozenset()
    is_reasoning_hidden: bool = False


_NO_DEMANDS: Final = Demands()


def _demand_nothing(request: Any) -> Demands:
    return _NO_DEMANDS


def _estimate(prompt: int, completion: int, known: Usage) -> Usage:
    """Returns the usage of a text, with the sound and the pictures that a chat has journalled."""
    return Usage(
        prompt,
        completion,
        searches=known.searches,
        audio_output=min(known.audio_output, completion),
        output_images=known.output_images,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow(Generic[B]):
    """How the requests of one operation are checked, measured and bounded.

    ``shape`` is the body; ``models`` names its models, and ``default_model`` is the setting of a
    workspace that names the model of a body without any. ``check`` raises :class:`InvalidRequest`
    for what the shape cannot check.

    ``answers`` is the number of completions, vectors or results that are asked for, and
    ``answers_field`` the field that asks for too many. ``demands`` reads a body that has passed
    ``check``. ``bound_names`` are the parameters that set the bound of the output.

    ``count_text`` counts the text of the prompt, for an estimate of its tokens. An
    upper bound of the tokens counts the bytes of all fields, with ``parts`` of the prompt that are
    not text by bounds of their own, and so the pictures of earlier answers, which are ``drawn``: a
    model that takes no pictures can go on with the conversation.

    ``least_tokens`` is a number of tokens that the longest prompt exceeds in all likelihood; an
    endpoint with a shorter context is not asked. It is low where the bound is high: an honest
    request must not be refused for an estimate, while a prompt that is too long after all costs one
    refusal of the provider. So it counts text alone, at six characters a token without spaces, and
    it is 0 where providers cut long prompts by design, as for embeddings.

    ``allowed`` is the most that a request may use of what is not counted in tokens, and ``least``
    what it uses of it in any case, for an answer that counts nothing. ``estimate`` returns the
    usage of an answer by the estimated tokens of prompt and completion, and by the units that were
    known before (:attr:`InferenceRequest.known_units`).

    ``defaults`` are sent upstream for fields that are absent or null, and ``left_out`` are fields
    that only the gateway reads.

    ``reserved`` are the fields of the operation that the options of a provider must not replace,
    beside those of all operations. ``parameters`` is the vocabulary of model parameters, and
    ``implied_parameters`` are those that the values of other fields need. ``complete`` turns a
    reply to these fields into an answer of the interface, or raises :class:`InvalidReply`.
    """

    shape: type[B]
    models: Callable[[B], tuple[str, ...]]
    count_text: Callable[[Fields], TextCounts]
    default_model: Literal["text_model", "image_model"] = "text_model"
    check: Callable[[B, Fields], None] = _accept
    answers: Callable[[B], int] = _count_one
    answers_field: str = "prompt"
    demands: Callable[[B], Demands] = _demand_nothing
    bound_names: tuple[str, ...] = ()
    parts: Callable[[B], Iterable[dict[str, msgspec.Raw]]] = _find_nothing
    drawn: Callable[[B], Iterable[dict[str, msgspec.Raw]]] = _find_nothing
    least_tokens: Callable[[Fields], int] = _count_nothing
    reserved: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    implied_parameters: Callable[[Fields], Iterable[str]] = _need_nothing
    allowed: Callable[[Fields], Usage] | None = None
    least: Callable[[Fields], Usage] | None = None
    estimate: Callable[[int, int, Usage], Usage] = _estimate
    defaults: Fields = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    complete: Callable[[Fields, Reply], None] | None = None


class PromptSize(NamedTuple):
    """An upper bound of the tokens of a prompt's text, and what else it has.

    ``images`` is the number of its images, ``inputs`` are the modalities, without text, and
    ``forms`` says how the media are sent, in the words of :class:`catalog.abilities.Inputs`.
    """

    prompt_bound: int
    images: int
    inputs: frozenset[str]
    forms: frozenset[str] = _TEXT_ONLY
    media: tuple[Medium, ...] = ()
    messages: int = 0
    tool_count: int = 0


def bound_prompt(
    row: RequestRow[Any],
    request: Body,
    fields: Mapping[str, msgspec.Raw],
    added_tokens: int,
    *,
    has_escapes: bool = True,
) -> PromptSize:
    """Returns the size of a prompt, with an upper bound of the tokens of its text.

    The bound is the size of the JSON in bytes, with each escape as long as what it stands for: a
    token is at least one byte of UTF-8, and the punctuation covers the few tokens that most
    providers add between messages. Media are bounded by the endpoint. The options of one provider
    join the fields, and which one is not known yet.
    """
    bound = sum(map(len, fields.values())) + added_tokens
    if has_escapes:
        bound -= sum(count_escapes(raw, is_text=name in _TEXTS_OF) for name, raw in fields.items())
    if request.provider is not None and request.provider.options:
        bound += max(sum(map(len, each.values())) for each in request.provider.options.values())
    images, inputs, forms = 0, _TEXT_ONLY, _TEXT_ONLY
    media: tuple[Medium, ...] = ()
    for part in row.parts(request):
        names = MEDIA.intersection(part)
        for name in names:
            bound -= len(part[name])
            if has_escapes:
                bound += count_escapes(part[name], is_text=True)
            if MODALITIES[name] == "file":
                bound += measure_name(part[name])
        images += _PICTURE in names
        inputs |= {MODALITIES[name] for name in names}
        forms |= {find_form(name, part[name]) for name in names}
        # A part with several members, or none that is known, may be read as any of them.
        media += tuple(measure_medium(name, part[name]) for name in names) or (_UNKNOWN,)
    has_drawn = _PICTURES.search(fields.get("messages", b"")) is not None
    for part in row.drawn(request) if has_drawn else ():
        if (raw := part.get(_PICTURE)) is not None:
            bound -= len(raw) - (count_escapes(raw, is_text=True) if has_escapes else 0)
            media += (measure_medium(_PICTURE, raw),)
    messages, tools = getattr(request, "messages", None), getattr(request, "tools", None)
    return PromptSize(bound, images, inputs, forms, media, len(messages or ()), len(tools or ()))


def count_escapes(raw: msgspec.Raw | bytes, *, is_text: bool) -> int:
    """Returns by how many bytes JSON is longer than what it says, because of its escapes.

    Of what is no text the model is shown JSON, in which line ends and quotes stay escaped.
    """
    view, saved = memoryview(raw), 0
    for start in range(0, len(view), _PIECE_BYTES):
        piece = bytes(view[start : start + _PIECE_BYTES])
        if b"\\" not in piece:
            continue
        rest = piece.replace(b"\\\\", b"")
        count = rest.count(b"\\u")
        saved += 3 * count + len(_SHORT.findall(rest)) + len(_ASCII.findall(rest))
        if is_text:
            saved += (len(piece) - len(rest)) // 2 + rest.count(b"\\") - count
        saved -= _CUT_BYTES if start else 0
    return max(saved, 0)


def measure_body(body: bytes) -> int:
    """Returns the bytes of JSON, with each escape as long as what it stands for."""
    return len(body) - count_escapes(body, is_text=True)


def find_media(
    contents: Iterable[list[dict[str, msgspec.Raw]]],
) -> Iterable[dict[str, msgspec.Raw]]:
    """Yields the parts of contents that are not text."""
    for content in contents:
        yield from (part for part in content if bytes(part.get("type", b"")) not in _TEXTS)


_VALUES: Final = (b'"', b"{")
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def count_texts(*values: msgspec.Raw | bytes) -> TextCounts:
    """Counts JSON values: texts decoded, numbers as tokens, and anything else as it is written."""
    counts = TextCounts()
    for raw in values:
        add_value(counts, raw)
    return counts


def add_value(counts: TextCounts, raw: msgspec.Raw | bytes, times: int = 1) -> None:
    """Counts one JSON value; see :func:`count_texts`."""
    view = memoryview(raw)
    if len(view) <= 4 and bytes(view) in (b"", b"null"):
        return
    if view[0] != 0x22:
        counts.add(_show_json(bytes(view)), times)
        return
    for piece in iter_text(view):
        counts.add(piece, times)


def _show_json(raw: bytes) -> str:
    """Returns JSON as a model is shown it, with its characters instead of their escapes."""
    if b"\\u" in raw:
        # Half of a pair stays escaped.
        with suppress(msgspec.MsgspecError, RecursionError):
            raw = _encode(_decode(raw))
    return raw.decode("utf-8", "surrogatepass")


def count_inputs(raw: msgspec.Raw) -> TextCounts:
    """Counts a text, or a list of texts, of tokens and of objects; a number is a token."""
    if first_byte(raw) != b"[":
        return count_texts(raw)
    counts = TextCounts()
    for each in _decode_list(raw):
        kind = first_byte(each)
        if kind == b"[":
            counts.tokens += len(_decode_list(each))
        elif kind in _VALUES:
            add_value(counts, each)
        else:
            counts.tokens += 1
    return counts
