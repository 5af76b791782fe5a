#!/usr/bin/env bash
# LangChain and litellm: a refusal is kept in a plain answer and lost in a stream
#
# Software: langchain-openai 1.7.4, litellm 1.110.2 (PyPI)
# Guess:    `refusal` of a message and of its deltas end in the same place.
# Seen:     Plain, both have the text. Streamed, both give an empty answer with finish_reason "stop"
#           and no refusal; litellm passes on the first, empty piece and drops the two with text.
# Matters:  A model that declines looks like one that said nothing: a program that retries empty
#           answers pays for each refusal again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    langchain-openai==1.7.4 litellm==1.110.2
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

import litellm
from langchain_openai import ChatOpenAI


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"id": "c", "created": 1, "model": "m"}
        if asked.get("stream"):
            first = {"role": "assistant", "content": None, "refusal": ""}
            body = ""
            for delta in [first, {"refusal": "I can"}, {"refusal": "not."}, {}]:
                reason = None if delta else "stop"
                choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
                chunk = {**answer, "object": "chat.completion.chunk", "choices": choices}
                body += f"data: {json.dumps(chunk)}\n\n"
            body += "data: [DONE]\n\n"
        else:
            message = {"role": "assistant", "content": None, "refusal": "I cannot."}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            body = json.dumps({**answer, "object": "chat.completion", "choices": choices})
        self.send_response(200)
        form = "text/event-stream" if asked.get("stream") else "application/json"
        self.send_header("content-type", form)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}/v1"
model = ChatOpenAI(model="m", base_url=base, api_key="none")
plain = model.invoke("Hi")
chunks = list(model.stream("Hi"))
stream = sum(chunks[1:], chunks[0])
print("LangChain plain", plain.additional_kwargs, "stream", stream)
assert plain.additional_kwargs["refusal"] == "I cannot."
assert "not." not in repr(stream) and stream.response_metadata["finish_reason"] == "stop"
asked: Any = {"model": "openai/m", "messages": [{"role": "user", "content": "Hi"}],
              "base_url": base, "api_key": "none"}
whole = litellm.completion(**asked).choices[0].message
pieces = [piece.choices[0].delta for piece in litellm.completion(**asked, stream=True)]
print("litellm plain", whole.refusal, "stream", pieces)
assert whole.refusal == "I cannot." and "not." not in repr(pieces)
assert any(getattr(piece, "refusal", None) == "" for piece in pieces)
PYTHON
