#!/usr/bin/env bash
# Usage in every chunk: LangChain and agno add it up, the Agents SDK takes the last
#
# Software: langchain-openai 1.7.4, agno 3.1.10, openai-agents 0.24.0 (PyPI)
# Guess:    A chunk's `usage` tells what the answer has used so far, so the last one counts.
# Seen:     Of an answer of 100 prompt tokens in five chunks LangChain and agno make 500, and of 2
#           completion tokens 7; openai-agents says 100 and 2.
# Matters:  Bills, limits and traces of such a client grow with the number of chunks. A gateway
#           should pass on one usage, in the last chunk, whatever its upstream sends.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    langchain-openai==1.7.4 agno==3.1.10 openai-agents==0.24.0
"$folder/venv/bin/python" - <<'PYTHON'
import asyncio
import http.server
import json
import threading
from typing import Any

import agents
from agno.agent import Agent
from agno.models.openai import OpenAIChat
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI


class Upstream(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        deltas = [{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}, {}]
        for number, delta in enumerate([*deltas, None]):
            reason = None if delta else "stop"
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            written = min(number, 2)
            usage = {"prompt_tokens": 100, "completion_tokens": written,
                     "total_tokens": 100 + written}
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                     "choices": [] if delta is None else [choice], "usage": usage}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: Any) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}/v1"
agents.set_tracing_disabled(True)


def langchain() -> tuple[int, int]:
    model = ChatOpenAI(model="m", base_url=base, api_key="none", stream_usage=True)
    chunks = list(model.stream("Hi"))
    usage = sum(chunks[1:], chunks[0]).usage_metadata
    return usage["input_tokens"], usage["output_tokens"]


def agno() -> tuple[int, int]:
    agent = Agent(model=OpenAIChat(id="m", base_url=base, api_key="none"), telemetry=False)
    *_, last = agent.run("Hi", stream=True, stream_events=True)
    return last.metrics.input_tokens, last.metrics.output_tokens


async def openai_agents() -> tuple[int, int]:
    client = AsyncOpenAI(base_url=base, api_key="none")
    model = agents.OpenAIChatCompletionsModel("m", client)
    run = agents.Runner.run_streamed(agents.Agent("a", model=model), "Hi")
    async for _ in run.stream_events():
        pass
    usage = run.context_wrapper.usage
    return usage.input_tokens, usage.output_tokens


found = {"LangChain": langchain(), "agno": agno(), "openai-agents": asyncio.run(openai_agents())}
print(found)
assert found == {"LangChain": (500, 7), "agno": (500, 7), "openai-agents": (100, 2)}
PYTHON
