#!/usr/bin/env bash
# huggingface_hub: a stream breaks off at a line separator of Unicode in its text
#
# Software: huggingface_hub 2.4.0 with httpx2 2.16.2 (PyPI)
# Guess:    InferenceClient reads text as it was sent: JSON need not escape U+0085, U+2028 or
#           U+2029, and in server-sent events only CR and LF end a line.
# Seen:     JSONDecodeError at the event that has one of them. The same event with the character
#           escaped is read. httpx2's `iter_lines` ends a line at all three.
# Matters:  A server or gateway should escape them in events: most JSON encoders do not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    huggingface_hub==2.4.0 httpx2==2.16.2
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

from huggingface_hub import InferenceClient


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [choice]}


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    text, escapes = "", False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        chunks = [chunk({"role": "assistant", "content": self.text}), chunk({}, "stop")]
        events = [json.dumps(each, ensure_ascii=self.escapes) for each in chunks]
        body = "".join(f"data: {each}\n\n" for each in [*events, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
client = InferenceClient(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")


def read() -> str:
    stream = client.chat_completion([{"role": "user", "content": "Hello"}], stream=True)
    return "".join(each.choices[0].delta.content or "" for each in stream)


for character in "\u0085\u2028\u2029":
    Upstream.text = f"one{character}two"
    Upstream.escapes = True
    assert read() == Upstream.text
    Upstream.escapes = False
    try:
        found = read()
    except json.JSONDecodeError as error:
        print(f"{ascii(character)}: {error}")
    else:
        raise AssertionError(found)
PYTHON
