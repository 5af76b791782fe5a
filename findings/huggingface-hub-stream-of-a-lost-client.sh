#!/usr/bin/env bash
# huggingface_hub: a stream ends in an error once nobody refers to its client any more
#
# Software: huggingface_hub 2.4.0 with httpx2 2.16.2 (PyPI)
# Guess:    The iterator that `chat_completion(stream=True)` returns keeps what it reads from, so a
#           function may make a client and return the iterator alone.
# Seen:     httpx2.StreamClosed at the first event, although the server has sent the whole stream.
#           With the client in a variable it is read. A client closes its connections when Python
#           collects it, and the iterator does not refer to it.
# Matters:  To the server this is a caller who left: the answer counts as cancelled, and is charged
#           as far as it was written.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    huggingface_hub==2.4.0 httpx2==2.16.2
"$folder/venv/bin/python" - <<'PYTHON'
import contextlib
import http.server
import json
import threading
from collections.abc import Iterable
from typing import Any

import httpx2
from huggingface_hub import InferenceClient

WORDS = ["one", " two", " three"]


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        events = [
            json.dumps({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                        "choices": [{"index": 0, "delta": {"content": word},
                                     "finish_reason": None}]})
            for word in WORDS
        ]
        body = "".join(f"data: {each}\n\n" for each in [*events, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()


def make() -> InferenceClient:
    return InferenceClient(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")


def ask(client: InferenceClient) -> Iterable[Any]:
    return client.chat_completion([{"role": "user", "content": "Hello"}], stream=True)


def ask_anew() -> Iterable[Any]:
    return ask(make())


def read(stream: Iterable[Any]) -> str:
    return "".join(each.choices[0].delta.content or "" for each in stream)


kept = make()
print("with its client:", read(ask(kept)))
try:
    found = read(ask_anew())
except httpx2.StreamClosed as error:
    print("without its client:", error)
else:
    raise AssertionError(found)
PYTHON
