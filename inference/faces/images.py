"""The interfaces for images: OpenRouter's ``/images``, and OpenAI's generations and edits.

All of them ask for the same operation. A whole answer has the members of both interfaces; the
events of a stream differ in their types.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from catalog.dialects.base import Operation
from catalog.dialects.shared.images.replies import COMPLETED
from catalog.dialects.shared.raw import encode_pieces
from catalog.dialects.shared.sse import escape_line_ends
from config.api.errors import InvalidRequest
from config.server.bodies import Receive, Scope, Send, body_length, read_body
from config.server.bulkheads import Occupancy
from inference.faces.connection import ENCODING, Connection
from inference.requests import parsing
from inference.requests.multipart import is_form
from inference.requests.operations.images.edits import to_images
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import field_error

_DATA: Final = msgspec.Raw(b'"b64_json"')
_URL: Final = b'"url"'
_END: Final = b"data: [DONE]"
_START: Final = b"data: "
# Members that the events of chat have, and those of images have not.
_OF_CHAT: Final = ("object", "choices")
# An event is sent in pieces of this size.
_PIECE_BYTES: Final = 262_144
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ImagesConnection(Connection):
    """Speaks OpenAI's image generations."""

    # What the types of its events begin with.
    prefix: ClassVar = "image_generation"

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(operation, scope, receive, send)
        # The last image of a stream waits for the usage, which belongs to its event.
        self._last: dict[str, Any] | None = None

    async def deliver(self, data: bytes) -> None:
        events = await self.workload.run(len(data), self._rewrite_events, data)
        for start in range(0, len(events), _PIECE_BYTES):
            await self.send_events(events[start : start + _PIECE_BYTES])

    def _rewrite_events(self, data: bytes) -> bytes:
        """Returns the events of the interface for those that an exchange renders."""
        rewritten: list[bytes] = []
        for event in data.removesuffix(b"\n\n").split(b"\n\n"):
            if event == _END:
                rewritten.append(event + b"\n\n")
                continue
            fields: dict[str, Any] = dict(_decode(event.removeprefix(_START)))
            if "error" in fields:
                rewritten += self._release(None)
                rewritten.append(_write({"type": "error", "error": _describe_error(fields)}))
            elif "type" not in fields:
                rewritten += self._release(fields)
            else:
                rewritten += self._release(None)
                if _read_type(fields) == COMPLETED:
                    self._last = fields
                else:
                    rewritten.append(self._write_image(fields))
        # The pieces of a long event may end within a character.
        return escape_line_ends(b"".join(rewritten))

    def _release(self, usage: dict[str, Any] | None) -> list[bytes]:
        """Returns the event of the image that waits, with the members of the usage event."""
        if self._last is None:
            return []
        fields, self._last = {**self._last, **(usage or {})}, None
        return [self._write_image(fields)]

    def _write_image(self, fields: dict[str, Any]) -> bytes:
        kind = _read_type(fields).rpartition(".")[2]
        # OpenAI's events have the time under another name than OpenRouter's.
        fields["created"] = fields.setdefault("created_at", fields.get("created"))
        fields["type"] = f"{self.prefix}.{kind}"
        return _write({name: value for name, value in fields.items() if name not in _OF_CHAT})


class RouterImagesConnection(ImagesConnection):
    """Speaks OpenRouter's images, which never come as URLs."""

    def parse(self, body: bytes) -> InferenceRequest:
        request = super().parse(body)
        wanted = request.fields.get("response_format")
        if wanted is not None and bytes(wanted) == _URL:
            raise field_error(
                "response_format",
                "This route answers with data. For URLs, use /images/generations.",
            )
        request.fields["response_format"] = _DATA
        return request


class EditsConnection(ImagesConnection):
    """Speaks OpenAI's image edits: a form with the images."""

    prefix = "image_edit"

    async def read_request(self, occupancy: Occupancy) -> InferenceRequest:
        """Counts the Base64 of the images beside the form, which is given back afterwards."""
        encoding = b",".join(self._headers(ENCODING))
        length = body_length(self._scope)
        body = await read_body(self._receive, occupancy, length, encoding=encoding)
        size = len(body)
        occupancy.reserve(size * 4 // 3)
        # The form is split, and the Base64 stands in pieces before it is joined.
        request = await self.workload.run(size, self.parse_body, body, copies=2)
        del body
        occupancy.release(max(occupancy.held - request.size, 0))
        return request

    def parse(self, body: bytes) -> InferenceRequest:
        content_type = self.header(b"content-type") or ""
        if not is_form(content_type):
            raise InvalidRequest(
                "Send the images as multipart/form-data. Images in JSON, as data URLs, belong into "
                "input_references of /images."
            )
        session_id = self.header(b"x-session-id")
        # The JSON is our own, so only what the form holds of it must be checked.
        return parsing.parse(self.operation, to_images(content_type, body), session_id=session_id)


def _read_type(fields: dict[str, Any]) -> str:
    return bytes(fields["type"]).decode().strip('"')


def _describe_error(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns an error as clients of both interfaces read it: with a code that is text."""
    error = msgspec.json.decode(fields["error"])
    metadata = error.get("metadata") or {}
    kind = metadata.get("error_type")
    return {**error, "code": str(error["code"]), "type": kind, "param": None}


def _write(fields: dict[str, Any]) -> bytes:
    return b"".join((_START, *encode_pieces(fields), b"\n\n"))
