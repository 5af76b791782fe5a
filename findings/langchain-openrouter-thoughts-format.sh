#!/usr/bin/env bash
# LangChain's OpenRouter model: signed thoughts of a stream go back without their format
#
# Software: langchain-openrouter 0.2.9 with langchain-core 1.8.3, openrouter 0.11.46 (PyPI)
# Guess:    `reasoning_details` come in pieces with one index, as text does; put together they are
#           those of a plain answer, and the next request repeats them unchanged.
# Seen:     Text and signature are put together rightly, and `format` is joined as if it were text:
#           "anthropic-claude-v1anthropic-claude-v1anthropic-claude-v1". The next request has the
#           text and the signature, and no format. After a plain answer it is there.
# Matters:  The format says who can check the signature. Only agents that stream send it back
#           without one; a gateway must not take such a thought for an unsigned one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    langchain-openrouter==0.2.9 langchain-core==1.8.3 openrouter==0.11.46
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openrouter import ChatOpenRouter

SAME = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
CALL = {"index": 0, "id": "call_1", "type": "function",
        "function": {"name": "f", "arguments": "{}"}}


class Upstream(http.server.BaseHTTPRequestHandler):
    asked: dict[str, Any] = {}

    def do_POST(self) -> None:
        Upstream.asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        stream = self.asked.get("stream")
        whole = {**SAME, "text": "Look first.", "signature": "c2ln"}
        pieces = [{"text": "Look "}, {"text": "first."}, {"signature": "c2ln"}]
        parts = [{"reasoning_details": [{**SAME, **each}]} for each in pieces]
        parts = parts if stream else [{"reasoning_details": [whole]}]
        parts[-1] |= {"content": None, "tool_calls": [CALL]}
        answers = []
        for part in parts:
            choice = {"index": 0, "delta" if stream else "message": {"role": "assistant", **part},
                      "finish_reason": "tool_calls" if part is parts[-1] else None}
            answers.append(json.dumps({
                "id": "c", "object": "chat.completion.chunk" if stream else "chat.completion",
                "created": 1, "model": "m", "system_fingerprint": "f", "choices": [choice]}))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if stream else "application/json")
        self.end_headers()
        events = [f"data: {each}\n\n" for each in [*answers, "[DONE]"]] if stream else answers
        self.wfile.write("".join(events).encode())

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}/api/v1"
model = ChatOpenRouter(model="m", api_key="none", base_url=base)


def go_on(answer: Any) -> tuple[str, dict[str, Any]]:
    """Returns the format in the answer, and what the next request says of the thought."""
    (read,) = answer.additional_kwargs["reasoning_details"]
    model.invoke([HumanMessage("Hi"), answer, ToolMessage("done", tool_call_id="call_1")])
    (sent,) = Upstream.asked["messages"][1]["reasoning_details"]
    print("read", read, "sent", sent)
    return read["format"], sent


known = SAME["format"]
thought = {"type": "reasoning.text", "index": 0, "text": "Look first.", "signature": "c2ln"}
assert go_on(model.invoke("Hi")) == (known, {**thought, "format": known})
first, *others = model.stream("Hi")
assert go_on(sum(others, first)) == (known * 3, thought)
PYTHON
