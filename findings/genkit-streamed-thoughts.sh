#!/usr/bin/env bash
# Genkit: of the thoughts that were streamed, the answer keeps the last piece
#
# Software: genkit 1.42.0 with @genkit-ai/compat-oai 1.42.0 (npm)
# Guess:    The message at the end of `generateStream` is the sum of its pieces: text and thoughts
#           alike, as in a plain answer.
# Seen:     The pieces come right. In the message the text is whole, and of the thoughts, which
#           came in three pieces of `reasoning_content`, the last one is left.
# Matters:  What is stored or shown as the model's reasoning is its last word, and a history that
#           sends thoughts back, as some models want beside tool calls, sends that.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund genkit@1.42.0 @genkit-ai/compat-oai@1.42.0
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { openAICompatible } from '@genkit-ai/compat-oai';
import { genkit } from 'genkit';

const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { stream } = JSON.parse(body);
    const answer = { id: 'c', created: 1, model: 'm',
                     object: stream ? 'chat.completion.chunk' : 'chat.completion' };
    if (!stream) {
      const message = { role: 'assistant', reasoning_content: 'First A, then B.', content: 'Done.' };
      const choices = [{ index: 0, message, finish_reason: 'stop' }];
      response.setHeader('content-type', 'application/json');
      return response.end(JSON.stringify({ ...answer, choices }));
    }
    response.setHeader('content-type', 'text/event-stream');
    const deltas = [{ role: 'assistant', content: '' }, { reasoning_content: 'First A, ' },
                    { reasoning_content: 'then ' }, { reasoning_content: 'B.' },
                    { content: 'Do' }, { content: 'ne.' }, {}];
    for (const delta of deltas) {
      const finish_reason = Object.keys(delta).length ? null : 'stop';
      const chunk = { ...answer, choices: [{ index: 0, delta, finish_reason }] };
      response.write(`data: ${JSON.stringify(chunk)}\n\n`);
    }
    response.end('data: [DONE]\n\n');
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
const ai = genkit({ plugins: [openAICompatible({ name: 'own', apiKey: 'none', baseURL })] });

const plain = await ai.generate({ model: 'own/m', prompt: 'Hi' });
const { stream, response } = ai.generateStream({ model: 'own/m', prompt: 'Hi' });
const pieces = [];
for await (const piece of stream) pieces.push(...piece.content);
const streamed = await response;
console.log('plain:', plain.message.content, 'pieces:', pieces, 'stream:', streamed.message.content);
assert.deepStrictEqual(plain.message.content, [{ reasoning: 'First A, then B.' }, { text: 'Done.' }]);
assert.strictEqual(pieces.map((each) => each.reasoning ?? '').join(''), 'First A, then B.');
assert.deepStrictEqual(streamed.message.content, [{ reasoning: 'B.' }, { text: 'Done.' }]);
process.exit(0);
JAVASCRIPT
node check.mjs
