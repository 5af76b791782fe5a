#!/usr/bin/env bash
# ax: of a refusal that is streamed the first word is left
#
# Software: @ax-llm/ax 24.0.21 (npm), `openai` against an own server
# Guess:    A refusal is an AxAIRefusalError with the model's words in `refusalMessage`, whether it
#           comes at once or in pieces.
# Seen:     The error is raised at the first piece: of "I'm sorry, but I cannot help with that." it
#           holds "I'm". In a plain answer it holds the whole sentence.
# Matters:  Nobody learns why the model declined, and a program that sorts refusals by their words
#           sees one kind.
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

const pieces = ["I'm", ' sorry, but I cannot', ' help with that.'];
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { stream } = JSON.parse(body);
    const answer = { id: 'c', created: 1, model: 'm',
                     object: stream ? 'chat.completion.chunk' : 'chat.completion' };
    if (!stream) {
      const message = { role: 'assistant', content: null, refusal: pieces.join('') };
      response.setHeader('content-type', 'application/json');
      return response.end(JSON.stringify({ ...answer,
        choices: [{ index: 0, message, finish_reason: 'stop' }] }));
    }
    response.setHeader('content-type', 'text/event-stream');
    const deltas = [{ role: 'assistant', content: null, refusal: '' },
                    ...pieces.map((refusal) => ({ refusal })), {}];
    for (const delta of deltas) {
      const finish_reason = Object.keys(delta).length ? null : 'stop';
      response.write(`data: ${JSON.stringify({ ...answer,
        choices: [{ index: 0, delta, finish_reason }] })}\n\n`);
    }
    response.end('data: [DONE]\n\n');
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const llm = ai({ name: 'openai', apiKey: 'none', config: { model: 'gpt-4o-mini' },
                 apiURL: `http://127.0.0.1:${server.address().port}/v1` });

async function refusal(stream) {
  try {
    const answer = await llm.chat({ chatPrompt: [{ role: 'user', content: 'Hi' }] }, { stream });
    if (stream) for await (const piece of answer) void piece;
  } catch (error) {
    return [error.name, error.refusalMessage ?? error.message];
  }
}

const found = { plain: await refusal(false), stream: await refusal(true) };
console.log(found);
assert.deepStrictEqual(found, {
  plain: ['AxAIRefusalError', "I'm sorry, but I cannot help with that."],
  stream: ['AxAIRefusalError', "I'm"],
});
process.exit(0);
JAVASCRIPT
node check.mjs
