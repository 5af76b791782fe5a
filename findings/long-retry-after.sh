#!/usr/bin/env bash
# "Retry-After: 3600": one SDK sleeps an hour, one a minute, one half a second, one gives up
#
# Software: openai 3.57.0, anthropic 2.14.0, cohere 7.3.1, groq 1.7.0 (PyPI), as they are set
# Guess:    Asked to come back in an hour, an SDK raises its error for a rate limit at once: nobody
#           waits for so long inside a call.
# Seen:     So does openai. anthropic sleeps 3,600 seconds, and once more when it is refused again.
#           cohere asks again after 60 seconds. groq passes over the header and asks again within a
#           second. The three send three requests.
# Matters:  A budget that is spent until the next hour makes one client hang for two and others ask
#           in vain. A gateway should say a minute at most.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    openai==3.57.0 anthropic==2.14.0 cohere==7.3.1 groq==1.7.0
"$folder/venv/bin/python" - <<'PYTHON'
import http.server
import threading
import time
from typing import Any

import anthropic
import cohere
import groq
import openai

requests: list[str] = []
slept: list[float] = []
time.sleep = slept.append  # So that nobody waits here.


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        requests.append(self.path)
        body = b'{"error": {"message": "The budget of this hour is spent."}}'
        self.send_response(429)
        self.send_header("retry-after", "3600")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
where: Any = {"api_key": "none", "base_url": f"http://127.0.0.1:{server.server_port}"}
asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
WAYS = {
    "openai": lambda: openai.OpenAI(**where).chat.completions.create(**asked),
    "anthropic": lambda: anthropic.Anthropic(**where).messages.create(**asked, max_tokens=9),
    "cohere": lambda: cohere.ClientV2(**where).chat(**asked),
    "groq": lambda: groq.Groq(**where).chat.completions.create(**asked),
}
seen = {}
for name, ask in WAYS.items():
    requests.clear()
    slept.clear()
    try:
        ask()
    except Exception as error:
        print(name, type(error).__name__, "after", len(requests), "requests; slept", slept)
    seen[name] = (len(requests), list(slept))
assert seen["openai"] == (1, []), seen
assert seen["anthropic"] == (3, [3600.0, 3600.0]), seen
assert seen["cohere"] == (3, [60.0, 60.0]), seen
assert seen["groq"][0] == 3 and max(seen["groq"][1]) <= 1, seen
PYTHON
