"""Copies the input and the output of one running generation, to be stored when it has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from catalog.capabilities import NativeFormat
from catalog.dialects.shared.raw import Piece
from catalog.operations import OPERATIONS
from inference.requests.parsing import InferenceRequest
from inference.requests.problems import Failure
from inference.texts.assembling import MOST_BYTES, Assembler
from inference.texts.buffers import Loss, TextBuffers
from inference.texts.contents import Content
from inference.texts.rules import INPUTS
from inference.texts.shortening import decode_cut

Deliver = Callable[[bytes], Awaitable[None]]
Rewrite = Callable[[list[Piece]], list[Piece]]

# Events are read when they take this much: most of their bytes are not text. It takes the loop less
# than a millisecond.
_STEP_BYTES: Final = 32 * 1024
_VECTORS: Final = "embeddings"
# Of a whole reply that is longer than this, nothing is read: it has media.
_LONGEST_REPLY: Final = 8 * MOST_BYTES
# The fields that are the input of a request that only its own format can express.
_NATIVE_FIELDS: Final = {
    NativeFormat.ANTHROPIC: ("system", "messages"),
    NativeFormat.RESPONSES: ("instructions", "input"),
}


class TextSubject(NamedTuple):
    """Whose text it is: columns of the generation; ``admitted_at`` is in Unix seconds."""

    generation_id: str
    organization_id: UUID
    workspace_id: UUID
    api_key_id: UUID
    admitted_at: int


class CapturedPart(NamedTuple):
    """A field of the input as JSON, or the beginning of one that was too long."""

    name: str
    data: bytes
    is_cut: bool


class Capture:
    """The copies of one generation; what it takes of the memory is counted until it is released.

    It never raises and never waits: a text for which there is no room is lost.
    """

    def __init__(
        self, subject: TextSubject, request: InferenceRequest, buffers: TextBuffers
    ) -> None:
        self.subject = subject
        # The request as the content filters let it through.
        self.request: InferenceRequest | None = request
        self.failure: Failure | None = None
        self.earlier: Sequence[Failure] = ()
        self.input_bytes = 0
        self.is_truncated = False
        self._buffers = buffers
        self._held = 0
        self._loss: Loss | None = None
        self._native = None if request.native is None else request.native.format
        self._assembler: Assembler | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._operation = request.operation
        self._rewritten: list[Piece] | None = None
        self._reply: list[Piece] = []
        self._content: tuple[Content, int] | None = None
        self._parts = self._copy_input(request)

    def tap(self, deliver: Deliver, relay: Deliver) -> tuple[Deliver, Deliver]:
        """Returns both ways of the events of a stream, with a copy of what goes there."""

        async def deliver_copied(data: bytes) -> None:
            self._add(data, None)
            await deliver(data)

        async def relay_copied(data: bytes) -> None:
            self._add(data, self._native)
            await relay(data)

        return deliver_copied, relay_copied

    def tap_rewrite(self, rewrite: Rewrite) -> Rewrite:
        """Returns what rewrites a whole reply in chat's format, and remembers the reply.

        It may run in a thread, so it takes nothing of the memory: :meth:`note_reply` does.
        """

        def rewrite_copied(reply: list[Piece]) -> list[Piece]:
            self._rewritten = reply
            return rewrite(reply)

        return rewrite_copied

    def note_reply(self, reply: list[Piece]) -> None:
        """Copies a whole reply: as it was before it was rewritten, if it was."""
        if _VECTORS in OPERATIONS[self._operation].outputs:
            return  # they are no text
        native = self._native
        if self._rewritten is not None:
            native, reply = None, self._rewritten
        size = sum(map(len, reply))
        self._assembler = Assembler(native)
        if size > _LONGEST_REPLY:
            self.is_truncated = True
        elif self._reserve(size):
            self._reply = list(reply)

    def drop(self, loss: Loss) -> None:
        """Forgets the text, which is not stored for this reason."""
        if self._loss is None:
            self._loss = loss
            self._buffers.count_loss(self.subject.organization_id, loss)
            self.release()

    @property
    def held(self) -> int:
        """The bytes that the copies take."""
        return self._held

    @property
    def is_lost(self) -> bool:
        return self._loss is not None

    def release(self) -> None:
        """Frees the copies."""
        self._parts, self._waiting, self._reply, self._assembler = [], [], [], None
        self._rewritten = self._content = None
        self._buffers.release(self.subject.organization_id, self._held)
        self._held = 0

    def assemble(self) -> tuple[Content, int]:
        """Returns the content and the size of its output; for a thread, after the end."""
        if self._content is not None:
            return self._content
        assembler = self._assembler or Assembler(None)
        if self._reply:
            assembler.feed_reply(b"".join(self._reply))
        else:
            assembler.feed(b"".join(self._waiting) + b"\n\n")
        output = assembler.output
        self.is_truncated = self.is_truncated or output.is_truncated
        content = Content(
            _describe_input(self._parts), output.describe(), self.failure, tuple(self.earlier)
        )
        self._content = content, output.size
        return self._content

    def _copy_input(self, request: InferenceRequest) -> list[CapturedPart]:
        fields: Mapping[str, Any] = request.fields
        names: Sequence[str] = INPUTS[request.operation]
        if request.native is not None and request.native.problem is not None:
            # Its chat form is sent to nobody.
            fields, names = request.native.fields, _NATIVE_FIELDS[request.native.format]
        parts: list[CapturedPart] = []
        for name in names:
            if (raw := fields.get(name)) is None:
                continue
            view = memoryview(raw)
            left = MOST_BYTES - self.input_bytes
            size = min(view.nbytes, left)
            if not self._reserve(size):
                return []
            parts.append(CapturedPart(name, bytes(view[:size]), size < view.nbytes))
            self.input_bytes += size
            self.is_truncated = self.is_truncated or size < view.nbytes
        return parts

    def _reserve(self, size: int) -> bool:
        if self._loss is not None:
            return False  # it is not stored, so nothing more is copied
        if not self._buffers.reserve(self.subject.organization_id, size):
            self.drop(Loss.BUFFER)
            return False
        self._held += size
        return True

    def _add(self, data: bytes, native: NativeFormat | None) -> None:
        """Copies events, before they are delivered: who hangs up has been charged for them."""
        if not self._reserve(len(data)):
            return
        if self._assembler is None:
            self._assembler = Assembler(native)
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > _STEP_BYTES:
            self._read_waiting(self._assembler)

    def _read_waiting(self, assembler: Assembler) -> None:
        """Reads the events, of which only the text is kept."""
        before = assembler.size
        assembler.feed(b"".join(self._waiting))
        freed = self._waiting_bytes - (assembler.size - before)
        self._waiting, self._waiting_bytes = [], 0
        if freed > 0:
            self._buffers.release(self.subject.organization_id, freed)
            self._held -= freed


def _describe_input(parts: Sequence[CapturedPart]) -> dict[str, Any]:
    """Returns the input as ``GET /generation/content`` shows it: a prompt, or messages."""
    found = {part.name: decode_cut(part.data, is_cut=part.is_cut) for part in parts}
    messages: list[Any] = []
    for name in ("system", "instructions"):
        if found.get(name):
            messages.append({"role": "system", "content": found.pop(name)})
    for value in found.values():
        if isinstance(value, str) and not messages:
            return {"prompt": value}
        messages += value if isinstance(value, list) else [{"role": "user", "content": value}]
    return {"messages": messages}
