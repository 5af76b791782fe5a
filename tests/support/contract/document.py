"""Checks responses against the golden OpenAPI document."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

from jsonschema import Draft202012Validator

GOLDEN: Final = Path(__file__).resolve().parents[2] / "contract" / "openapi.json"
_PREFIX: Final = "/api/v1"
_OWN_HEADER: Final = re.compile(r"retry-after$|x-(?!accel-)", re.IGNORECASE)


class Answer(Protocol):
    """A response of httpx or of a client that looks like it."""

    status_code: int
    headers: Any
    request: Any

    def read(self) -> bytes: ...


def check(method: str, path: str, status: int, media_type: str, body: bytes = b"") -> None:
    """Asserts that the document has this operation, status and media type, and that JSON fits.

    Stricter than the document itself: a field that it does not name is refused, unless the object
    says that it is open.
    """
    response = _responses(method, path)[str(status)]
    if "content" not in response:
        assert (media_type, body) == ("", b""), f"{method} {path} {status}: a body, not documented"
        return
    content = response["content"]
    assert media_type in content, f"{method} {path} {status}: {media_type} is not documented"
    if media_type == "application/json":
        check_schema(content[media_type]["schema"], json.loads(body))


def check_headers(method: str, path: str, status: int, names: Iterable[str]) -> None:
    """Asserts that the document has the headers of our own that an inference answer has."""
    documented = {name.lower() for name in _responses(method, path)[str(status)].get("headers", ())}
    if not documented:
        return
    own = {name.lower() for name in names if _OWN_HEADER.match(name)}
    assert own <= documented, f"{method} {path} {status}: {own - documented} are not documented"


def check_schema(schema: dict[str, Any], value: Any) -> None:
    """Asserts that a value fits a schema of the document."""
    components = {"components": _closed_golden()["components"]}
    errors = Draft202012Validator(schema | components).iter_errors(value)
    problems = [f"{error.json_path}: {error.message}" for error in errors]
    assert not problems, problems


def stream_schema(path: str) -> dict[str, Any]:
    """Returns the schema of one event of a streamed answer."""
    found: dict[str, Any] = _responses("POST", f"{_PREFIX}{path}")["200"]["content"][
        "text/event-stream"
    ]["schema"]
    return found


def check_answer(response: Answer) -> None:
    """A response hook for httpx clients: whatever the service answers must be documented."""
    media_type = response.headers.get("content-type", "").partition(";")[0]
    body = response.read() if media_type in ("application/json", "") else b""
    request = response.request
    # As it was sent: a decoded one may have slashes inside its parameters.
    path = request.url.raw_path.decode().partition("?")[0]
    check(request.method, path, response.status_code, media_type, body)
    check_headers(request.method, path, response.status_code, response.headers)


async def check_answer_async(response: Any) -> None:
    """The same for asynchronous clients."""
    if response.headers.get("content-type", "application/json").startswith("application/json"):
        await response.aread()
    check_answer(response)


def _responses(method: str, path: str) -> dict[str, Any]:
    for template, operations in _closed_golden()["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", template)
        # The id of a model may come with its slash encoded, and that of an end user may be one.
        is_match = any(re.fullmatch(_PREFIX + pattern, each) for each in (path, unquote(path)))
        if is_match and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]["responses"]
            return found
    raise AssertionError(f"{method} {path} is not documented")


@functools.cache
def _closed_golden() -> dict[str, Any]:
    golden = copy.deepcopy(json.loads(GOLDEN.read_text()))
    _close(golden)
    assert isinstance(golden, dict)
    return golden


def _close(node: Any) -> None:
    if isinstance(node, dict):
        if isinstance(node.get("properties"), dict):
            node.setdefault("additionalProperties", False)
        for inner in node.values():
            _close(inner)
    elif isinstance(node, list):
        for inner in node:
            _close(inner)
