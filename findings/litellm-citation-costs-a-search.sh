#!/usr/bin/env bash
# litellm: an answer that cites a page costs 2.5 cents more, though nobody searched
#
# Software: litellm 1.110.2 (PyPI) with its packaged price list
# Guess:    The cost of an answer comes from its counts of tokens: 100 and 20 tokens of gpt-4o-mini
#           are 0.000027 USD.
# Seen:     With one `url_citation` among the annotations it is 0.025027, 927 times as much: the
#           citation counts as a web search. The request has no search and no tool, and three
#           citations cost as much as one.
# Matters:  A server that cites its own documents in this form empties budgets that rest on this
#           number. With `usage.cost` in the answer that cost is believed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import json
import threading
from typing import Any

import litellm


class Upstream(http.server.BaseHTTPRequestHandler):
    message: dict[str, Any] = {}
    usage: dict[str, Any] = {}

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "message": self.message, "finish_reason": "stop"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini",
                  "choices": [choice], "usage": self.usage}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}/v1"
citation = {"url": "http://wiki.example/a", "title": "A", "start_index": 0, "end_index": 3}


def cost(citations: int, stated: float | None = None) -> float:
    Upstream.message = {"role": "assistant", "content": "See A."}
    if citations:
        entry = {"type": "url_citation", "url_citation": citation}
        Upstream.message["annotations"] = [entry] * citations
    Upstream.usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    if stated is not None:
        Upstream.usage["cost"] = stated
    question = [{"role": "user", "content": "Where?"}]
    answer = litellm.completion("openai/gpt-4o-mini", question, base_url=base, api_key="none")
    return litellm.completion_cost(answer)


found = [cost(0), cost(1), cost(3), cost(1, stated=0.0001)]
print("none", found[0], "one", found[1], "three", found[2], "stated", found[3])
assert [round(each, 6) for each in found] == [0.000027, 0.025027, 0.025027, 0.0001]
PYTHON
