"""Defines how the simulated upstream speaks and transcribes; other behaviours know texts alone.

The names are those of the other behaviours with the same meaning. A word takes 400 ms to speak.
Sound is a plain wave with 24,000 samples a second; its containers have real headers.
"""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Callable
from typing import Any

from tests.support.simulator.protocol import (
    WRITE_BYTES,
    Request,
    Script,
    Signal,
    Step,
    encode_json,
    error_object,
    http_chunk,
    http_response,
    to_sse,
)

AUDIO_KINDS = ("speech", "transcription")
SAMPLES = 24_000
_WORD_SAMPLES = SAMPLES * 2 // 5
_WORD_TOKENS = 8
_WAVE = struct.pack("<24h", *(round(9_000 * (1 - abs(step - 12) / 6)) for step in range(24)))
_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac",
          "wav": "audio/wav", "pcm": "audio/pcm"}  # fmt: skip
_HEADS = {"mp3": b"ID3\x04\x00\x00\x00\x00\x00\x00", "opus": b"OggS\x00\x02", "flac": b"fLaC",
          "aac": b"\xff\xf1\x50\x80", "pcm": b"",
          # Streamed WAV does not know its length yet.
          "wav": b"RIFF\xff\xff\xff\xffWAVEfmt \x10\x00\x00\x00"
                 + struct.pack("<HHIIHH", 1, 1, SAMPLES, 2 * SAMPLES, 2, 16)
                 + b"data\xff\xff\xff\xff"}  # fmt: skip
_GONE: tuple[Step, ...] = (0.05, Signal.RESET)


def read_form(request: Request) -> dict[str, Any]:
    """Returns the fields of a form; a file as its name, its type and its size."""
    boundary = request.headers["content-type"].partition("boundary=")[2].encode()
    fields: dict[str, Any] = {}
    for part in request.raw.split(b"--" + boundary)[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        data = data.removesuffix(b"\r\n")
        lines = head.decode().strip().split("\r\n")
        names = dict(item.strip().split("=", 1) for item in lines[0].split(";")[1:])
        name = names["name"].strip('"')
        if "filename" in names:
            content_type = lines[1].partition(": ")[2] if len(lines) > 1 else None
            fields[name] = {"name": names["filename"].strip('"'), "type": content_type,
                            "size": len(data)}  # fmt: skip
        elif name.endswith("[]"):
            fields.setdefault(name, []).append(data.decode())
        else:
            fields[name] = data.decode()
    return fields


def _head(request: Request, content_type: str) -> bytes:
    return (f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n"
            "transfer-encoding: chunked\r\n\r\n").encode()  # fmt: skip


def _words(request: Request) -> list[str]:
    words = str(request.body["input"]).split()
    if not words:
        raise ValueError("input is required")
    return words


def _pieces(request: Request) -> list[bytes]:
    """Returns the audio: the head of its container, and the sound of each word."""
    kind = request.body.get("response_format") or "mp3"
    sound = _WAVE * (_WORD_SAMPLES * 2 // len(_WAVE))
    return [_HEADS[kind] + sound, *[sound] * (len(_words(request)) - 1)]


def _speak(request: Request, between: Step | None = None, end: Script = ()) -> Script:
    kind = request.body.get("response_format") or "mp3"
    pieces = _pieces(request)
    yield _head(request, _TYPES[kind])
    for number, piece in enumerate(pieces):
        if number and between is not None:
            yield between
        yield http_chunk(piece)
    yield from end or (b"0\r\n\r\n",)


def _speak_events(request: Request) -> Script:
    words = _words(request)
    events: list[dict[str, Any]] = [
        {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()}
        for piece in _pieces(request)
    ]
    usage = {"input_tokens": len(words), "output_tokens": _WORD_TOKENS * len(words),
             "total_tokens": (_WORD_TOKENS + 1) * len(words)}  # fmt: skip
    events.append({"type": "speech.audio.done", "usage": usage})
    yield _head(request, "text/event-stream")
    yield from map(http_chunk, to_sse(map(encode_json, events)))
    yield b"0\r\n\r\n"


def _transcript(request: Request, **changes: Any) -> dict[str, Any]:
    file = request.body["file"]
    seconds = max(file["size"] - 44, 0) / (2 * SAMPLES)
    answer: dict[str, Any] = {"text": f"You said {seconds:g} seconds."}
    if request.body.get("response_format") == "verbose_json":
        segment = {"id": 0, "start": 0.0, "end": seconds, "text": answer["text"]}
        answer |= {"task": "transcribe", "language": "english", "duration": seconds,
                   "segments": [segment]}  # fmt: skip
    return answer | {"usage": {"type": "duration", "seconds": seconds}} | changes


def _answer(request: Request) -> Script:
    if request.kind == "transcription":
        return (http_response(200, encode_json(_transcript(request))),)
    if request.body.get("stream_format") == "sse":
        return _speak_events(request)
    return _speak(request)


def _transcribe(**changes: Any) -> Callable[[Request], Script]:
    return lambda request: (http_response(200, encode_json(_transcript(request, **changes))),)


def _tokens(request: Request) -> Script:
    prompt, completion = (int(number) for number in request.numbers(30, 5))
    usage = {"type": "tokens", "input_tokens": prompt, "output_tokens": completion,
             "total_tokens": prompt + completion,
             "input_token_details": {"audio_tokens": prompt, "text_tokens": 0}}  # fmt: skip
    yield http_response(200, encode_json(_transcript(request, usage=usage)))


def _gate(request: Request) -> Script:
    if request.kind == "transcription":
        return (Signal.GATE, *_answer(request))
    return _speak(request, Signal.GATE)


def _speak_without_end(request: Request) -> Script:
    yield _head(request, "audio/pcm")
    yield from itertools.repeat(http_chunk(_WAVE * (WRITE_BYTES // len(_WAVE))))


AUDIO_BEHAVIOURS: dict[str, Callable[[Request], Script]] = {
    "sim-echo": _answer,
    "sim-mirror": lambda q: (http_response(200, encode_json(_transcript(q, text=str(q.body)))),),
    "sim-gated": _gate,
    "sim-no-usage": lambda q: (http_response(200, encode_json({"text": "You said it."})),),
    "sim-tokens": _tokens,
    "sim-usage-huge": _transcribe(usage={"type": "duration", "seconds": 1e9}),
    "sim-usage-negative": _transcribe(usage={"type": "duration", "seconds": -1}),
    "sim-usage-string": _transcribe(usage={"type": "duration", "seconds": "long"}),
    "sim-no-events": _speak,
    "sim-endless": _speak_without_end,
    "sim-empty-stream": lambda q: (http_response(200, b"", "audio/mpeg"),),
    "sim-html-audio": lambda q: (
        http_response(200, b"<!doctype html><title>Sign in</title>", "audio/mpeg"),),
    "sim-reset-stream": lambda q: _speak(q, end=_GONE),
    "sim-close-stream": lambda q: _speak(q, end=(Signal.CLOSE,)),
    "sim-error-stream": lambda q: (
        _head(q, "text/event-stream"),
        http_chunk(to_sse([encode_json({"type": "speech.audio.delta", "audio": "UklGRgAA"})])[0]),
        0.2,
        http_chunk(to_sse([encode_json(error_object(500))])[0]),
        b"0\r\n\r\n",
    ),
}  # fmt: skip
