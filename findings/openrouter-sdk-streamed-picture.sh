#!/usr/bin/env bash
# OpenRouter's own SDKs: a picture is lost in a stream, and citations are lost always
#
# Software: @openrouter/sdk 1.3.19 (npm), openrouter 1.3.84 (PyPI)
# Guess:    The maker's SDK reads the maker's members: `images` and `annotations` of a message
#           and of its deltas, as OpenRouter sends them.
# Seen:     Both SDKs have the picture of a plain answer and drop it from the delta of a stream,
#           without an error; citations (`url_citation`) they drop in both. A plain picture loses
#           its `type`.
# Matters:  A model that draws seems to draw nothing once the caller streams, and whoever must show
#           sources needs another client.
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

asked = {"model": "m", "messages": [{"role": "user", "content": "Draw"}]}
with OpenRouter(api_key="none", server_url=sys.argv[1]) as client:
    plain = client.chat.send(**asked).choices[0].message.model_dump()
    stream = client.chat.send(**asked, stream=True)
    deltas = [piece.choices[0].delta.model_dump() for piece in stream]
print(json.dumps([plain, deltas]))
PYTHON
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { execFile } from 'node:child_process';
import http from 'node:http';
import { promisify } from 'node:util';
import { OpenRouter } from '@openrouter/sdk';

const images = [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } }];
const annotations = [{ type: 'url_citation', url_citation: {
  url: 'http://wiki.example/a', title: 'A', content: 'a', start_index: 0, end_index: 4 } }];
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { stream } = JSON.parse(body);
    const message = { role: 'assistant', content: 'Here', images, annotations };
    const choice = { index: 0, finish_reason: 'stop', [stream ? 'delta' : 'message']: message };
    const object = stream ? 'chat.completion.chunk' : 'chat.completion';
    const text = JSON.stringify({ id: 'c', object, created: 1, model: 'm',
                                  system_fingerprint: 'f', choices: [choice] });
    response.setHeader('content-type', stream ? 'text/event-stream' : 'application/json');
    response.end(stream ? `data: ${text}\n\ndata: [DONE]\n\n` : text);
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const serverURL = `http://127.0.0.1:${server.address().port}/api/v1`;

const client = new OpenRouter({ apiKey: 'none', serverURL });
const asked = { model: 'm', messages: [{ role: 'user', content: 'Draw' }] };
const npm = [(await client.chat.send({ chatRequest: asked })).choices[0].message, []];
for await (const piece of await client.chat.send({ chatRequest: { ...asked, stream: true } })) {
  npm[1].push(piece.choices[0].delta);
}
const python = await promisify(execFile)('venv/bin/python', ['ask.py', serverURL]);
for (const found of [npm, JSON.parse(python.stdout)]) {
  const [plain, stream] = found.map((each) => JSON.stringify(each));
  console.log('plain', plain, 'stream', stream);
  assert.ok(plain.includes('base64,AAAA') && !plain.includes('"type"'));
  assert.ok(!plain.includes('wiki.example'));
  assert.ok(stream.includes('Here') && !/AAAA|wiki/.test(stream));
}
process.exit(0);
JAVASCRIPT
node check.mjs
