#!/usr/bin/env bash
# litellm: who asks Claude to think shall have a shorter answer, a twelfth at the lowest effort
#
# Software: litellm 1.110.2 (PyPI), `anthropic/claude-sonnet-4-5` against an own server
# Guess:    reasoning_effort adds thoughts; the bound of the answer stays what it was.
# Seen:     Without it the request has max_tokens 64000. With "minimal" or "low" it has 5120, of
#           which 1024 are for thoughts, with "high" 8192 and 4096. A caller's own max_tokens of
#           2000 stays as it is, below the 4096 for thoughts.
# Matters:  An answer that has room without an effort may be cut with one, though nobody set a
#           length.
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
    asked: dict[str, Any] = {}

    def do_POST(self) -> None:
        Upstream.asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"id": "msg_1", "type": "message", "role": "assistant", "stop_sequence": None,
                  "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "Hello"}],
                  "stop_reason": "end_turn", "usage": {"input_tokens": 9, "output_tokens": 1}}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"


def ask(**more: Any) -> tuple[int, int | None]:
    """Returns the bound and the share of thoughts in what is sent."""
    question = [{"role": "user", "content": "Hi"}]
    litellm.completion("anthropic/claude-sonnet-4-5", question, api_base=base, api_key="none",
                       **more)
    return Upstream.asked["max_tokens"], Upstream.asked.get("thinking", {}).get("budget_tokens")


found = {effort: ask(reasoning_effort=effort) for effort in ("minimal", "low", "medium", "high")}
found |= {"none asked": ask(), "high, 2000": ask(reasoning_effort="high", max_tokens=2000)}
print(found)
assert found == {
    "minimal": (5120, 1024), "low": (5120, 1024), "medium": (6144, 2048), "high": (8192, 4096),
    "none asked": (64000, None), "high, 2000": (2000, 4096),
}
PYTHON
