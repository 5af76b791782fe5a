#!/usr/bin/env bash
# LangChain: a streamed Claude answer has no prompt tokens unless its end repeats them
#
# Software: langchain-anthropic 1.7.10, anthropic 2.14.0 (PyPI)
# Guess:    `message_start` tells the input, `message_delta` the output (of its counts only
#           `output_tokens` is required): a stream has the usage of a plain answer.
# Seen:     Counts of `message_start` are dropped. With an end that has output tokens alone, 100
#           prompt tokens are 0 and the cached ones are absent; Anthropic's SDK, on which it rests,
#           reads 100 from the same bytes. With all counts in `message_delta` both read 100.
# Matters:  Behind a server that does not repeat them, every streamed prompt is free in budgets and
#           traces. A gateway should write all counts into the last event.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    langchain-anthropic==1.7.10 anthropic==2.14.0
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

from anthropic import Anthropic
from langchain_anthropic import ChatAnthropic

INPUT = {"input_tokens": 10, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 60}


class Upstream(http.server.BaseHTTPRequestHandler):
    last: dict[str, int] = {}

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [],
                   "model": "m", "stop_reason": None, "stop_sequence": None,
                   "usage": {**INPUT, "output_tokens": 1}}
        events: list[dict[str, Any]] = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0,
             "content_block": {"type": "text", "text": "Hello"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "usage": self.last,
             "delta": {"stop_reason": "end_turn", "stop_sequence": None}},
            {"type": "message_stop"},
        ]
        body = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"


model = ChatAnthropic(model="claude-sonnet-4-5", base_url=base, api_key="none")


def langchain() -> tuple[int, int | None]:
    chunks = list(model.stream("Hi"))
    usage = sum(chunks[1:], chunks[0]).usage_metadata
    return usage["input_tokens"], usage["input_token_details"].get("cache_read")


def sdk() -> tuple[int, int]:
    asked: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
    with Anthropic(base_url=base, api_key="none").messages.stream(**asked) as stream:
        usage = stream.get_final_message().usage
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return usage.input_tokens + read + written, read


Upstream.last = {"output_tokens": 20}
few = langchain(), sdk()
Upstream.last = {**INPUT, "output_tokens": 20}
full = langchain(), sdk()
print("prompt and cached: LangChain", few[0], "SDK", few[1], "with all counts", full)
assert few == ((0, None), (100, 60)) and full == ((100, 60), (100, 60))
PYTHON
