#!/usr/bin/env bash
# Langfuse: a stream behind with_raw_response leaves no trace, though the same plain call does
#
# Software: langfuse 5.0.4, openinference-instrumentation-openai 0.1.66, with openai 3.57.0 (PyPI)
# Guess:    An observer of the SDK records every answer: with_raw_response only adds the headers.
# Seen:     Plain, both record the tokens. Streamed, Langfuse has no observation at all,
#           OpenInference has the tokens.
# Matters:  Whoever wants a header of the gateway (a request id, a rate limit) beside a stream takes
#           its tokens and cost out of the books.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    langfuse==5.0.4 openinference-instrumentation-openai==0.1.66 openai==3.57.0
cat >"$folder/observe.py" <<'PYTHON'
import http.server
import json
import os
import sys
import threading
from typing import Any

import openai
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

USAGE = {"prompt_tokens": 4321, "completion_tokens": 20, "total_tokens": 4341}


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        stream = json.loads(self.rfile.read(int(self.headers["content-length"]))).get("stream")
        text = {"role": "assistant", "content": "Hello"}
        choice = {"index": 0, "delta" if stream else "message": text, "finish_reason": "stop"}
        answer = {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": USAGE,
                  "object": "chat.completion.chunk" if stream else "chat.completion"}
        body = json.dumps(answer)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if stream else "application/json")
        self.end_headers()
        self.wfile.write((f"data: {body}\n\ndata: [DONE]\n\n" if stream else body).encode())

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
if sys.argv[1] == "langfuse":
    import langfuse
    import langfuse.openai

    langfuse.Langfuse(public_key="p", secret_key="s", base_url="http://127.0.0.1:9",
                      tracer_provider=provider)
else:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=provider)
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def count() -> tuple[int, bool]:
    """Returns how many spans there are, and whether one has the tokens of the prompt."""
    found = spans.get_finished_spans()
    spans.clear()
    return len(found), any("4321" in str(dict(each.attributes or {})) for each in found)


client.chat.completions.with_raw_response.create(**asked).parse()
plain = count()
list(client.chat.completions.with_raw_response.create(**asked, stream=True).parse())
print(sys.argv[1], "plain", plain, "stream", count(), flush=True)
os._exit(0)  # Langfuse would go on trying to send
PYTHON
for observer in langfuse openinference; do
    "$folder/venv/bin/python" "$folder/observe.py" "$observer" 2>/dev/null
done | tee "$folder/seen"
diff "$folder/seen" - <<'SEEN'
langfuse plain (1, True) stream (0, False)
openinference plain (1, True) stream (1, True)
SEEN
