#!/usr/bin/env bash
# AI SDK: streamed choices are mixed into one text, and [DONE] ends nothing
#
# Software: ai 6.0.326 with @ai-sdk/openai-compatible 2.0.92 (npm)
# Guess:    Chunks whose choice has index 1 are left out or kept apart, and the stream ends at
#           [DONE].
# Seen:     The first choice of each chunk is taken whatever its index says, so two answers are
#           written into each other; what stands after [DONE] is appended.
# Matters:  A gateway that sets n, or a server that goes on writing after [DONE], shows nonsense to
#           this client: end the stream there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund ai@6.0.326 @ai-sdk/openai-compatible@2.0.92
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText } from 'ai';

const chunk = (index, content, finish_reason = null) =>
  JSON.stringify({ id: '1', object: 'chat.completion.chunk', created: 1, model: 'm',
    choices: [{ index, delta: content === null ? {} : { content }, finish_reason }] });

async function read(events) {
  const server = http.createServer((request, response) => {
    response.setHeader('content-type', 'text/event-stream');
    response.end(events.map((event) => `data: ${event}\n\n`).join(''));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
  const model = createOpenAICompatible({ name: 'x', baseURL })('m');
  let text = '';
  for await (const part of streamText({ model, prompt: 'hi', maxRetries: 0 }).textStream) text += part;
  server.close();
  return text;
}

const two = await read([chunk(0, 'zero'), chunk(1, 'one'), chunk(0, null, 'stop'), chunk(1, null, 'stop'), '[DONE]']);
console.log('two choices in a stream:', two);
assert.equal(two, 'zeroone');
const late = await read([chunk(0, 'a'), chunk(0, null, 'stop'), '[DONE]', chunk(0, 'late')]);
console.log('content after [DONE]:', late);
assert.equal(late, 'alate');
JAVASCRIPT
node check.mjs
