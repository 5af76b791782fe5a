#!/usr/bin/env bash
# Mistral's SDKs: a tool call that is streamed in pieces, as OpenAI streams it, ends in an error
#
# Software: @mistralai/mistralai 2.7.0 (npm), mistralai 3.7.0 (PyPI)
# Guess:    The SDKs read Chat Completions of other servers too: `id`, `type` and `index` of a
#           streamed call may be absent, so its pieces are put together by index.
# Seen:     A piece without the function's name, as all but the first are in OpenAI's format, is a
#           validation error in both, and the stream ends there. A call that comes in one chunk is
#           read.
# Matters:  A gateway that passes on another provider's chunks breaks every tool call of these
#           clients. Send a call at once, or repeat its name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mistralai==3.7.0
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @mistralai/mistralai@2.7.0
cat >ask.py <<'PYTHON'
import sys

from mistralai.client import Mistral

stream = Mistral(api_key="none", server_url=sys.argv[1]).chat.stream(
    model="m", messages=[{"role": "user", "content": "Hi"}]
)
try:
    for event in stream:
        for call in event.data.choices[0].delta.tool_calls or []:
            print(call.function.name, call.function.arguments, end=" ")
except Exception as error:
    print(type(error).__name__, end="")
PYTHON
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { execFile } from 'node:child_process';
import http from 'node:http';
import { promisify } from 'node:util';
import { Mistral } from '@mistralai/mistralai';

const start = { index: 0, id: 'call12345', type: 'function' };
const call = (given, more = {}) => ({ tool_calls: [{ index: 0, ...more, function: given }] });
const ways = {
  'one chunk': [call({ name: 'weather', arguments: '{"city":"Oslo"}' }, start)],
  'pieces': [call({ name: 'weather', arguments: '' }, start), call({ arguments: '{"city":' }),
             call({ arguments: '"Oslo"}' })],
};
let deltas;
const server = http.createServer((request, response) => {
  request.resume();
  request.on('end', () => {
    response.setHeader('content-type', 'text/event-stream');
    for (const delta of [{ role: 'assistant', content: '' }, ...deltas, { content: '' }]) {
      const finish_reason = delta.content === '' && !delta.role ? 'tool_calls' : null;
      response.write(`data: ${JSON.stringify({ id: 'c', object: 'chat.completion.chunk', created: 1,
        model: 'm', choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
    }
    response.end('data: [DONE]\n\n');
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const serverURL = `http://127.0.0.1:${server.address().port}`;

async function inJavaScript() {
  const client = new Mistral({ apiKey: 'none', serverURL });
  let read = '';
  try {
    const messages = [{ role: 'user', content: 'Hi' }];
    const stream = await client.chat.stream({ model: 'm', messages });
    for await (const { data } of stream) {
      for (const each of data.choices[0].delta.toolCalls ?? []) {
        read += `${each.function.name} ${each.function.arguments} `;
      }
    }
  } catch (error) {
    read += error.constructor.name;
  }
  return read;
}
const inPython = async () =>
  (await promisify(execFile)('venv/bin/python', ['ask.py', serverURL])).stdout;

const found = {};
for (const [name, chunks] of Object.entries(ways)) {
  deltas = chunks;
  found[name] = [await inJavaScript(), await inPython()].map((each) => each.trim());
}
console.log('JavaScript, Python:', found);
assert.deepStrictEqual(found['one chunk'], Array(2).fill('weather {"city":"Oslo"}'));
for (const read of found.pieces) assert.match(read, /^weather +\w*Error$/);
process.exit(0);
JAVASCRIPT
node check.mjs
