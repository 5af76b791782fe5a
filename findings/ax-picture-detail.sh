#!/usr/bin/env bash
# ax: how closely a picture shall be looked at is sent under a name that nobody reads
#
# Software: @ax-llm/ax 24.0.21 (npm), `openai` against an own server
# Guess:    `details: 'low'` of a picture becomes the member `detail` of its image_url, as the
#           format has it.
# Seen:     It is sent as `details`, and `detail` is absent. Without a choice `details: "auto"` is
#           sent all the same.
# Matters:  A server that ignores names it does not know looks at every picture as closely as it
#           likes and charges for that; one that does not ignore them refuses all pictures.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @ax-llm/ax@24.0.21
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { ai } from '@ax-llm/ax';

let asked;
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    asked = JSON.parse(body);
    const message = { role: 'assistant', content: 'A dot.' };
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ id: 'c', object: 'chat.completion', created: 1, model: 'm',
                                  choices: [{ index: 0, message, finish_reason: 'stop' }] }));
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const llm = ai({ name: 'openai', apiKey: 'none', config: { model: 'gpt-4o-mini' },
                 apiURL: `http://127.0.0.1:${server.address().port}/v1` });

const found = {};
for (const details of ['low', undefined]) {
  const picture = { type: 'image', mimeType: 'image/png', image: 'aGk=', details };
  await llm.chat({ chatPrompt: [{ role: 'user', content: [picture] }] }, { stream: false });
  const { url, ...others } = asked.messages[0].content[0].image_url;
  assert.strictEqual(url, 'data:image/png;base64,aGk=');
  found[details ?? 'no choice'] = others;
}
console.log('beside url:', found);
assert.deepStrictEqual(found, { 'low': { details: 'low' }, 'no choice': { details: 'auto' } });
process.exit(0);
JAVASCRIPT
node check.mjs
