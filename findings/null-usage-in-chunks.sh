#!/usr/bin/env bash
# "usage": null, as OpenAI's chunks have it, ends a stream of OpenRouter's SDK; its twin reads it
#
# Software: @openrouter/sdk 1.3.19 (npm), openrouter 1.3.84 (PyPI)
# Guess:    OpenAI documents `usage` as null in all chunks but the last once usage is asked for, so
#           null is as good as an absent member to clients of this format.
# Seen:     The npm SDK raises at the first chunk: "expected object, received null". The Python SDK
#           of the same maker reads the same bytes, text and usage. Without the null both do.
# Matters:  A gateway that passes on an upstream's chunks as they came breaks every stream of this
#           client, though what it sends is right: leave usage out where there is none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check openrouter==1.3.84
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @openrouter/sdk@1.3.19
cat >ask.py <<'PYTHON'
import json
import sys

from openrouter import OpenRouter

asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
with OpenRouter(api_key="none", server_url=sys.argv[1]) as client:
    chunks = [*client.chat.send(**asked, stream=True)]
text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
print(json.dumps([text, chunks[-1].usage.prompt_tokens]))
PYTHON
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { execFile } from 'node:child_process';
import http from 'node:http';
import { promisify } from 'node:util';
import { OpenRouter } from '@openrouter/sdk';

const deltas = [{ role: 'assistant', content: 'Hel' }, { content: 'lo' }];
let none;
const server = http.createServer((request, response) => {
  const chunk = { id: 'c', object: 'chat.completion.chunk', created: 1, model: 'm' };
  const usage = { prompt_tokens: 9, completion_tokens: 2, total_tokens: 11 };
  const chunks = deltas.map((delta, at) => ({
    ...chunk, choices: [{ index: 0, delta, finish_reason: at ? 'stop' : null }], ...none,
  }));
  response.setHeader('content-type', 'text/event-stream');
  response.end([...chunks, { ...chunk, choices: [], usage }].map(
    (each) => `data: ${JSON.stringify(each)}\n\n`).join('') + 'data: [DONE]\n\n');
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const serverURL = `http://127.0.0.1:${server.address().port}/api/v1`;
const client = new OpenRouter({ apiKey: 'none', serverURL });
const chatRequest = { model: 'm', stream: true, messages: [{ role: 'user', content: 'Hi' }] };

async function npm() {
  const chunks = [];
  for await (const each of await client.chat.send({ chatRequest })) chunks.push(each);
  const text = chunks.map((each) => each.choices[0]?.delta.content ?? '').join('');
  return [text, chunks.at(-1).usage.promptTokens];
}
async function both(given) {
  none = given;
  const python = await promisify(execFile)('venv/bin/python', ['ask.py', serverURL]);
  const found = [await npm().catch((error) => String(error)), JSON.parse(python.stdout)];
  console.log(given, 'npm', found[0], 'PyPI', found[1]);
  return found;
}
assert.deepStrictEqual(await both({}), [['Hello', 9], ['Hello', 9]]);
const [error, read] = await both({ usage: null });
assert.match(error, /"usage"[^]*expected object, received null/);
assert.deepStrictEqual(read, ['Hello', 9]);
process.exit(0);
JAVASCRIPT
node check.mjs
