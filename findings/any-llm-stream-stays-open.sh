#!/usr/bin/env bash
# any-llm: closing a stream leaves its connection open if more events have come
#
# Software: any-llm-sdk 1.27.0 with openai 3.54.0 (PyPI)
# Guess:    close() of the iterator that `responses(stream=True)` or `completion(stream=True)`
#           returns ends the HTTP request, as close() of the openai package's own stream does.
# Seen:     After a burst of events close() returns and the connection stays open, in each of five
#           runs, for the three seconds that the server looks. While no further event has come it
#           is closed.
# Matters:  A server or gateway does not see that its caller has left: the model goes on, and the
#           caller pays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    'any-llm-sdk[openai]==1.27.0' openai==3.54.0
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import queue
import select
import threading
from typing import Any

import any_llm
import openai

NAMES = ("completion", "responses", "openai")
SEEN: "queue.Queue[bool]" = queue.Queue()


def events(path: str, count: int) -> bytes:
    chunk: dict[str, Any]
    if "responses" not in path:
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: %b\n\n" % json.dumps({**chunk, "choices": [choice]}).encode() * count
    kind = "response.output_text.delta"
    chunk = {"type": kind, "item_id": "m", "output_index": 0, "content_index": 0, "delta": "word "}
    return b"".join(
        b"event: %b\ndata: %b\n\n"
        % (kind.encode(), json.dumps({**chunk, "logprobs": [], "sequence_number": each}).encode())
        for each in range(count)
    )


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count = 1

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(events(self.path, self.count))
        # A connection that the client closes becomes readable.
        SEEN.put(bool(select.select([self.connection], [], [], 3)[0]))
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


def closes(name: str, count: int) -> list[bool]:
    Upstream.count = count
    found = []
    for _ in range(5):
        options: dict[str, Any] = {
            "model": "m",
            "provider": "openai",
            "api_key": "none",
            "api_base": f"http://127.0.0.1:{server.server_port}/v1",
            "stream": True,
        }
        if name == "openai":
            own = openai.OpenAI(api_key="none", base_url=options["api_base"])
            stream = own.responses.create(model="m", input="Hello", stream=True)
        elif name == "responses":
            stream = any_llm.responses(input_data="Hello", **options)
        else:
            stream = any_llm.completion(messages=[{"role": "user", "content": "Hello"}], **options)
        next(stream)
        stream.close()
        found.append(SEEN.get(timeout=30))
    return found


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
seen = {(name, n): closes(name, n) for name in NAMES for n in (1, 3000)}
for (name, count), found in seen.items():
    print(f"{name}, {count} events: closed {found.count(True)} of 5")
for name in ("completion", "responses"):
    assert seen.pop((name, 3000)) == [False] * 5
assert all(found == [True] * 5 for found in seen.values())
PYTHON
