"""Each bound of each inference route: n - 1 and n are taken, n + 1 is refused, with its field.

The bounds are read from the schemas, so a new one is tried by itself. What no schema can say stands
in a table, and a test fails for a bound that is in neither.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest
import requests

import inference.requests
from catalog.dialects.base import Operation
from catalog.dialects.shared.images import pictures
from config.api.errors import GatewayError
from config.server.bodies import largest_file_body
from inference.faces.routes import COUNT_TOKENS, EDITS, MESSAGES, RESPONSES, ROUTES
from inference.requests import limits, multipart, schemas, transcriptions
from inference.requests.messages import native
from inference.requests.messages import request as messages
from inference.requests.operations import ROWS, gateway_fields, plugins
from inference.requests.operations.images import edits
from inference.requests.operations.images import schema as images
from inference.requests.parsing import InferenceRequest, parse
from inference.requests.responses import conversation, tools
from inference.requests.responses.request import ResponsesRequest, parse_response
from inference.requests.transcriptions import parse_transcription
from tests.support.bodies.bounds import Case, find_cases, find_shapes, has_bounds
from tests.support.bodies.samples import BODIES as SAMPLES
from tests.support.bodies.samples import make_wav
from tests.support.database.snapshots import everything, unchanged
from tests.support.inference.pictures import PNG
from tests.support.inference.site import CHAT, TEXT, Site
from tests.support.suite.tiers import draw_examples

EMBEDDINGS: Final = "/api/v1/embeddings"
TRANSCRIPTIONS: Final = "/api/v1/audio/transcriptions"
REFUSED: Final = (400, 413, 422)
JSON: Final = "application/json"
Body = dict[str, Any]
BODIES: Final = {path: body for path, (_, body) in SAMPLES.items()} | {
    COUNT_TOKENS: SAMPLES[MESSAGES][1]
}

# What a body needs beside a member, so that the member alone is judged.
BESIDE: Final[dict[str, Body]] = {
    "partial_images": {"stream": True},
    "output_compression": {"output_format": "jpeg"},
    "frame_count": {"output_format": "gif"},
    "frame_duration_ms": {"output_format": "gif"},
    "svg": {"output_format": "svg"},
    "thinking": {"max_tokens": 100_000_000},
}
# In Responses and in forms a text without a character is none.
UNSET: Final = {(RESPONSES, "model"), (EDITS, "model")}
SHAPES: Final[dict[str, list[type[msgspec.Struct]]]] = {
    **{path: [ROWS[route.operation].shape] for path, route in ROUTES.items()},
    MESSAGES: [messages.MessagesRequest, native._NativeRequest],
    # Tokens are counted of what any provider may take.
    COUNT_TOKENS: [native._NativeCount],
    RESPONSES: [ResponsesRequest],
}
SHELL_CALL: Final[Body] = {
    "type": "local_shell_call",
    "action": {"type": "exec", "command": ["ls"]},
}
# The structs of items that are decoded by themselves, each with its place in a body.
INNER: Final[list[tuple[type[msgspec.Struct], str, Callable[[Any], Body]]]] = [
    (conversation.MessageItem, "input[0]", lambda one: {"input": [one]}),
    (conversation.FunctionCallItem, "input[0]", lambda one: calling("function_call", one)),
    (conversation.CustomCall, "input[0]", lambda one: calling("custom_tool_call", one)),
    (conversation.KnownCall, "input[0]", lambda one: {"input": [{**SHELL_CALL, **one}]}),
    (conversation.CallOutput, "input[1]", lambda one: answering("function_call", one)),
    (conversation.KnownOutput, "input[1]", lambda one: answering("local_shell_call", one)),
    (tools._Function, "tools[0]", lambda one: {"tools": [{"type": "function", **one}]}),
    (tools._Custom, "tools[0]", lambda one: {"tools": [{"type": "custom", **one}]}),
    (tools._Namespace, "tools[0]", lambda one: {"tools": [{"type": "namespace", **one}]}),
]


def calling(kind: str, call: Body) -> Body:
    return {"input": [{"type": kind, **call}]}


def answering(kind: str, output: Body) -> Body:
    """Returns a body with a call and its output."""
    call_id = output.get("call_id") or output.get("id") or "x"
    call = {**SHELL_CALL, "type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}
    return {"input": [call, {"type": f"{kind}_output", **output}]}


def parse_body(path: str, body: Body) -> InferenceRequest:
    text = json.dumps(body).encode()
    match path:
        case "/api/v1/messages" | "/api/v1/messages/count_tokens":
            return native.parse_message(text, is_count=path == COUNT_TOKENS)
        case "/api/v1/responses":
            return parse_response(text)[0]
        case "/api/v1/audio/transcriptions":
            return parse_transcription(text, None, max_bytes=10**6)
        case _:
            return parse(ROUTES[path].operation, text)


def complete(path: str, case: Case) -> Body:
    """Returns a whole body with the members of a case."""
    body = {"model": "acme/falcon", **BODIES[path], **BESIDE.get(case.field, {})}
    for name, value in case.members.items():
        present = body.get(name)
        is_merged = isinstance(present, dict) and isinstance(value, dict)
        body[name] = {**present, **value} if is_merged else value
    return body


def list_cases(path: str) -> Iterator[Case]:
    """Yields the cases of a route, which are those of its schemas and of what they contain."""
    for shape in SHAPES[path]:
        for case in find_cases(shape):
            if (path, case.field) not in UNSET and not (
                path == EDITS and case.field in pictures.IMAGES
            ):
                yield case
    if path == RESPONSES:
        for shape, place, wrap in INNER:
            yield from find_cases(shape, place, wrap)


def write_parts(parts: Any, **fields: Any) -> tuple[bytes, str]:
    """Returns a form of these parts and fields, and its content type."""
    made = requests.Request("POST", "http://localhost", files=parts, data=fields).prepare()
    assert isinstance(made.body, bytes)
    return made.body, made.headers["Content-Type"]


def write_body(path: str, body: Body) -> tuple[bytes, str]:
    """Returns a body as its route takes it, and its content type."""
    return write_form(body) if path == EDITS else (json.dumps(body).encode(), JSON)


def write_form(body: Body) -> tuple[bytes, str]:
    """Returns a body as a form with an image, and its content type."""
    parts: list[tuple[str, Any]] = [("image", ("a.png", PNG, "image/png"))]
    for name, value in body.items():
        if name == "svg":
            parts.append(("svg[model]", (None, value["model"])))
        elif name == "models":
            parts += [("models", (None, each)) for each in value]
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            parts.append((name, (None, text)))
    return write_parts(parts)


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_within_its_bound_is_taken(path: str) -> None:
    cases = [case for case in list_cases(path) if case.fits]
    assert len(cases) > 80
    for case in draw_examples(cases):
        try:
            parse_case(path, case)
        except GatewayError as exc:
            raise AssertionError(f"{case}: {exc}") from None


@pytest.mark.parametrize("path", ROUTES)
def test_no_bound_of_the_server_is_lower_than_that_of_the_schema(
    published: Site, path: str
) -> None:
    """A body that fits is never refused, although it may find no provider."""
    with requests.Session() as session:
        for case in draw_examples([case for case in list_cases(path) if case.fits]):
            answer = post_case(session, published, path, case)
            # What only Anthropic takes is refused where no provider speaks its format.
            is_taken = answer.status_code not in REFUSED or "native_format" in answer.text
            assert is_taken, (str(case), answer.text)


@pytest.mark.parametrize("path", ROUTES)
def test_what_is_beyond_its_bound_is_refused_by_name(published: Site, path: str) -> None:
    cases = [case for case in list_cases(path) if not case.fits]
    assert len(cases) > 40
    for case in cases:
        problem = find_problem(path, case)
        assert problem is not None, str(case)
        assert problem.status in REFUSED, (str(case), problem.message)
        assert case.field in problem.message, (str(case), problem.message)
    with unchanged(), requests.Session() as session:
        for case in draw_examples(cases):
            answer = post_case(session, published, path, case)
            assert answer.status_code in REFUSED, (str(case), answer.text)
            assert case.field in answer.json()["error"]["message"], (str(case), answer.text)
    published.assert_nothing_happened()


def parse_case(path: str, case: Case) -> InferenceRequest:
    body = complete(path, case)
    if path != EDITS:
        return parse_body(path, body)
    form, content_type = write_form(body)
    return parse(Operation.IMAGES, edits.to_images(content_type, form))


def find_problem(path: str, case: Case) -> GatewayError | None:
    """Returns why a case is refused, by every provider or by those of another format."""
    try:
        native = parse_case(path, case).native
    except GatewayError as exc:
        return exc
    return native.problem if native else None


def post_case(session: requests.Session, site: Site, path: str, case: Case) -> requests.Response:
    data, content_type = write_body(path, complete(path, case))
    headers = {"Authorization": f"Bearer {site.tenant.api_key}", "Content-Type": content_type}
    return session.post(f"{site.server}{path}", data=data, headers=headers, timeout=60)


def send(
    site: Site, path: str, data: bytes, content_type: str = JSON, **headers: str
) -> requests.Response:
    return site.post(None, path=path, data=data, headers={"Content-Type": content_type, **headers})


def nest(depth: int) -> Any:
    """Returns lists in lists, as deep as a body may be beside its own depth."""
    inner: Any = [1]
    for _ in range(depth - 2):
        inner = [inner]
    return inner


def in_chat(**members: Any) -> tuple[str, Body]:
    return CHAT, {**BODIES[CHAT], **members}


# What no schema says: each with the number that fits, a request of any number, and its name in the
# refusal.
OTHERS: Final[dict[str, tuple[int, Callable[[int], tuple[str, Body]], str]]] = {
    "limits.MAX_PARTS": (
        limits.MAX_PARTS,
        lambda n: in_chat(
            messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * n}]
        ),
        "messages",
    ),
    "limits.MAX_ALL_CHOICES of inputs": (
        limits.MAX_ALL_CHOICES,
        lambda n: (EMBEDDINGS, {"input": ["a"] * n}),
        "input",
    ),
    "limits.MAX_ALL_CHOICES of prompts": (
        limits.MAX_ALL_CHOICES // 2,
        lambda n: (TEXT, {"prompt": ["a"] * n, "n": 2, "max_tokens": 1}),
        "prompt",
    ),
    "limits.BOUNDS.depth": (
        limits.BOUNDS.depth,
        lambda n: in_chat(extra=nest(n)),
        "levels",
    ),
    "limits.BOUNDS.members": (
        limits.BOUNDS.members,
        lambda n: in_chat(extra={f"k{number}": 1 for number in range(n)}),
        "members",
    ),
    "limits.BOUNDS.containers": (
        limits.BOUNDS.containers,
        # The body, its messages with one message, and the list itself.
        lambda n: in_chat(extra=[[]] * (n - 4)),
        "objects and lists",
    ),
    "limits.BOUNDS.values": (
        limits.BOUNDS.values,
        lambda n: in_chat(extra=[1] * (n - 7)),
        "values",
    ),
    "gateway_fields.MAX_TRACE_BYTES": (
        gateway_fields.MAX_TRACE_BYTES,
        lambda n: in_chat(trace={"k": "a" * (n - len('{"k":""}'))}),
        "trace",
    ),
    "plugins.MAX_PLUGINS": (
        plugins.MAX_PLUGINS,
        lambda n: (
            MESSAGES,
            {**BODIES[MESSAGES], "plugins": [{"id": "web", "enabled": False}] * n},
        ),
        "plugins",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_no_schema_bounds_is_bounded_too(site: Site, name: str) -> None:
    most, make, named = OTHERS[name]
    for number in (most - 1, most):
        path, body = make(number)
        parse_body(path, {"model": site.model.slug, **body})
    site.publish()
    with unchanged():
        path, body = make(most + 1)
        data = json.dumps({"model": site.model.slug, **body}).encode()
        answer = send(site, path, data)
    assert answer.status_code == 400, answer.text
    assert named in answer.json()["error"]["message"], answer.text
    site.assert_nothing_happened()


@pytest.mark.parametrize("path", [path for path in ROUTES if path != EDITS])
def test_the_size_of_a_body_is_bounded(published: Site, settings: Any, path: str) -> None:
    body = json.dumps({"model": published.model.slug, **BODIES[path]}).encode()
    settings.MAX_REQUEST_BYTES = most = len(body) + 100
    if path == TRANSCRIPTIONS:
        # It has room for a file of the largest size in Base64.
        settings.MAX_FILE_BYTES = 10_000
        most = largest_file_body()
    with unchanged():
        for size in (most + 1, most + 2):
            answer = send(published, path, body.ljust(size))
            assert answer.status_code == 413, answer.text
    published.assert_nothing_happened()
    for size in (most - 1, most):
        assert send(published, path, body.ljust(size)).status_code != 413


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_the_size_of_a_sound_is_bounded(site: Site, settings: Any, extra: int) -> None:
    sound = make_wav()
    settings.MAX_FILE_BYTES = len(sound) - extra
    site.produce("transcription")
    site.publish()
    before = everything()
    form = write_parts({"file": ("a.wav", sound, "audio/wav")}, model=site.model.slug)
    answer = send(site, TRANSCRIPTIONS, *form)
    assert answer.status_code == (413 if extra > 0 else 200), answer.text
    if extra > 0:
        assert f"{len(sound):,} bytes" in answer.json()["error"]["message"]
        assert everything() == before
        site.assert_nothing_happened()


def make_form(count: int, *, text: str = "one", images: int = 1) -> tuple[bytes, str]:
    """Returns a form with this number of parts."""
    parts: list[tuple[str, Any]] = [("image", ("a.png", PNG, "image/png"))] * images
    parts += [("model", (None, "acme/falcon")), ("prompt", (None, text))]
    parts += [("models", (None, "acme/falcon"))] * (count - len(parts))
    return write_parts(parts)


@pytest.mark.parametrize(
    ("most", "make", "named"),
    [
        (multipart.MAX_PARTS, lambda n: make_form(n), "256 parts"),
        (multipart.MAX_TEXT_BYTES, lambda n: make_form(3, text="a" * n), "prompt"),
        (images.MAX_REFERENCES, lambda n: make_form(n + 2, images=n), "image"),
    ],
)
def test_the_parts_of_a_form_are_bounded(
    site: Site, most: int, make: Callable[[int], tuple[bytes, str]], named: str
) -> None:
    for number in (most - 1, most):
        form, content_type = make(number)
        assert multipart.parse_form(content_type, form)
        if most != multipart.MAX_PARTS:
            parse(Operation.IMAGES, edits.to_images(content_type, form))
    site.publish()
    with unchanged():
        answer = send(site, EDITS, *make(most + 1))
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert named in message, answer.text
    assert "input_references" not in message
    site.assert_nothing_happened()


@pytest.mark.parametrize("path", [path for path in ROUTES if path != TRANSCRIPTIONS])
def test_the_length_of_a_session_in_a_header_is_bounded(published: Site, path: str) -> None:
    data, content_type = write_body(path, {"model": published.model.slug, **BODIES[path]})
    headers = {"X-Session-Id": "a" * (schemas.SESSION_LENGTH + 1)}
    with unchanged():
        answer = send(published, path, data, content_type, **headers)
    assert answer.status_code == 400, answer.text
    assert "session_id" in answer.json()["error"]["message"]
    published.assert_nothing_happened()


def iter_modules() -> Iterator[Any]:
    package = inference.requests
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def test_no_schema_has_a_bound_that_is_not_tried() -> None:
    tried = {shape for shapes in SHAPES.values() for each in shapes for shape in find_shapes(each)}
    tried |= {shape for each, _, _ in INNER for shape in find_shapes(each)}
    # Bodies inherit from some, two describe a body for readers, and a sound is read before it.
    bases = {base for shape in tried for base in shape.__mro__}
    bases |= {edits.EditsForm, messages.CountTokensRequest, transcriptions._InputAudio}
    found = {
        value
        for module in iter_modules()
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value not in bases | {InferenceRequest}
        and has_bounds(value)
    }
    assert found == set()


def test_no_limit_is_not_tried() -> None:
    cases = {case.place for path in ROUTES for case in list_cases(path)}
    by_schema = {
        "MAX_MESSAGES": "messages",
        "MAX_TOOLS": "tools",
        "MAX_CHOICES": "n",
        "MAX_STOPS": "stop",
        "MAX_IMAGES": "n",
        "MAX_TERMS": "keyterms",
    }
    assert set(by_schema.values()) <= cases
    by_form = {"MAX_PARTS", "MAX_TEXT_BYTES", "MAX_REFERENCES"}
    # The names of tools in a header, of which the rest is left out.
    shown = {"MAX_NAMES"}
    named = {name.partition(".")[2].partition(" ")[0] for name in OTHERS}
    found = {name for module in iter_modules() for name in vars(module) if name.startswith("MAX_")}
    assert found == set(by_schema) | by_form | shown | {
        name for name in named if name.startswith("MAX_")
    }
