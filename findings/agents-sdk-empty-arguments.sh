#!/usr/bin/env bash
# OpenAI Agents: a function without parameters runs in Python, and in JavaScript it never does
#
# Software: @openai/agents 0.20.0 with openai 7.59.0 (npm), openai-agents 0.24.0 (PyPI)
# Guess:    A call whose arguments are an empty text, as servers send it for a function without
#           parameters, runs the function, as {} does; the two SDKs are one design.
# Seen:     Python runs it and sends "{}" back as its arguments. JavaScript does not, sends ""
#           back, and tells the model: "An error occurred while parsing tool arguments. Please try
#           again with valid JSON." With "{}" both run it.
# Matters:  The model did nothing wrong and is told to repeat it, and each repetition is paid. A
#           gateway should turn an empty text into {}.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check openai-agents==0.24.0
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @openai/agents@0.20.0 openai@7.59.0
cat >ask.py <<'PYTHON'
import sys

import agents
from openai import AsyncOpenAI


@agents.function_tool
def now() -> str:
    """Tells the time."""
    return "noon"


agents.set_tracing_disabled(True)
client = AsyncOpenAI(base_url=sys.argv[1], api_key="none")
model = agents.OpenAIChatCompletionsModel("m", client)
agents.Runner.run_sync(agents.Agent("a", model=model, tools=[now]), "Hi")
PYTHON
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { execFile } from 'node:child_process';
import http from 'node:http';
import { promisify } from 'node:util';
import { Agent, OpenAIChatCompletionsModel, run, setTracingDisabled, tool } from '@openai/agents';
import OpenAI from 'openai';

let given, asked;
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    asked = JSON.parse(body).messages;
    const call = { id: 'call_1', type: 'function', function: { name: 'now', arguments: given } };
    const first = asked.at(-1).role === 'user';
    const message = { role: 'assistant', ...(first ? { content: null, tool_calls: [call] }
                                                   : { content: 'Done.' }) };
    const choice = { index: 0, message, finish_reason: first ? 'tool_calls' : 'stop' };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ id: 'c', object: 'chat.completion', created: 1, model: 'm',
                                  choices: [choice] }));
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
setTracingDisabled(true);
const model = new OpenAIChatCompletionsModel(new OpenAI({ baseURL, apiKey: 'none' }), 'm');
const now = tool({
  name: 'now', description: 'Tells the time.', strict: false, execute: () => 'noon',
  parameters: { type: 'object', properties: {}, required: [], additionalProperties: true },
});
const ways = {
  JavaScript: () => run(new Agent({ name: 'a', model, tools: [now] }), 'Hi'),
  Python: () => promisify(execFile)('venv/bin/python', ['ask.py', baseURL]),
};
for (const [name, way] of Object.entries(ways)) {
  for (given of ['{}', '']) {
    await way();
    const [call, result] = asked.slice(-2);
    const back = call.tool_calls[0].function.arguments;
    console.log(name, JSON.stringify(given), 'sent back', JSON.stringify(back), result.content);
    const refused = name === 'JavaScript' && given === '';
    assert.strictEqual(back, refused ? '' : '{}');
    assert.match(result.content, refused ? /error occurred while parsing tool arg/ : /^noon$/);
  }
}
process.exit(0);
JAVASCRIPT
node check.mjs
