#!/usr/bin/env bash
# LlamaIndex: a tool call that was cut off is mended, and what is missing becomes None
#
# Software: llama-index-llms-openai-like 0.8.1 with llama-index-core 0.14.25 (PyPI)
# Guess:    Arguments that end in the middle of a text, with finish_reason "length", are an error,
#           or are handed on as they are.
# Seen:     get_tool_calls_from_response closes the object: {"path": "a.txt", "text": "Dear cust
#           becomes path "a.txt" and text None, without an error; the half text is lost.
#           predict_and_call runs the tool with it.
# Matters:  A token limit turns "write this text" into "write nothing": a file is emptied. Check the
#           finish_reason before tools run.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    llama-index-llms-openai-like==0.8.1 llama-index-core==0.14.25
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

CUT = '{"path": "a.txt", "text": "Dear cust'


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        function = {"name": "write", "arguments": CUT}
        call = {"id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "length"}
        usage = {"prompt_tokens": 9, "completion_tokens": 16, "total_tokens": 25}
        body = json.dumps({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
                           "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
ran = []


def write(path: str, text: str | None = "") -> str:
    """Replaces the text of a file."""
    ran.append((path, text))
    return "done"


model = OpenAILike(model="m", api_base=f"http://127.0.0.1:{server.server_port}/v1", api_key="none",
                   is_chat_model=True, is_function_calling_model=True)
tools = [FunctionTool.from_defaults(write)]
answer = model.chat_with_tools(tools, "Write to the customer.")
(call,) = model.get_tool_calls_from_response(answer)
print("sent", CUT, "read", call.tool_kwargs)
assert call.tool_kwargs == {"path": "a.txt", "text": None}
model.predict_and_call(tools, "Write to the customer.")
print("the tool ran with", ran)
assert ran == [("a.txt", None)]
PYTHON
