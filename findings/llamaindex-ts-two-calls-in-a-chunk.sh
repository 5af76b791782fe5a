#!/usr/bin/env bash
# LlamaIndex.TS: of two calls that come in one chunk of a stream, the second is lost
#
# Software: @llamaindex/openai 0.4.23 with @llamaindex/core 0.6.23 (npm)
# Guess:    `tool_calls` of a delta is a list: what it holds is read, however calls are divided
#           among chunks.
# Seen:     Two calls in one chunk, as a server sends that has both at once: the first is handed on,
#           and nothing says that there was another. In two chunks, one after the other, both are;
#           in a plain answer both are. Arguments that are an empty text end the stream in a
#           SyntaxError, and plain they do not.
# Matters:  An agent does half of what the model decided, and the model reads one result of two. A
#           gateway should send one call a chunk, and {} for no arguments.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @llamaindex/openai@0.4.23 \
    @llamaindex/core@0.6.23 @llamaindex/env@0.1.31
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { OpenAI } from '@llamaindex/openai';

let chunks;
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { stream } = JSON.parse(body);
    const answer = { id: 'c', created: 1, model: 'm',
                     object: stream ? 'chat.completion.chunk' : 'chat.completion' };
    const write = (choice) => JSON.stringify({ ...answer, choices: [{ index: 0, ...choice }] });
    const message = { role: 'assistant', content: null };
    response.setHeader('content-type', stream ? 'text/event-stream' : 'application/json');
    const events = [...chunks.map((calls) => write(
      { delta: { ...message, tool_calls: calls }, finish_reason: null })),
      write({ delta: {}, finish_reason: 'tool_calls' }), '[DONE]'];
    response.end(stream ? events.map((each) => `data: ${each}\n\n`).join('') : write(
      { message: { ...message, tool_calls: chunks.flat() }, finish_reason: 'tool_calls' }));
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
const model = new OpenAI({ model: 'gpt-4o', apiKey: 'none', baseURL, maxRetries: 0 });

async function ask(...sent) {
  chunks = sent;
  const messages = [{ role: 'user', content: 'Hi' }];
  const plain = (await model.chat({ messages })).message.options.toolCall.map((each) => each.name);
  const streamed = new Set();
  try {
    for await (const each of await model.chat({ messages, stream: true })) {
      for (const call of each.options?.toolCall ?? []) streamed.add(call.name);
    }
  } catch (error) {
    streamed.add(error.name);
  }
  console.log(JSON.stringify(sent), 'plain', plain, 'stream', [...streamed]);
  return [plain, [...streamed]];
}
const call = (index, name, text) =>
  ({ index, id: `call_${index}`, type: 'function', function: { name, arguments: text } });
const [first, second] = [call(0, 'f', '{"x":1}'), call(1, 'g', '{"y":2}')];
assert.deepStrictEqual(await ask([first], [second]), [['f', 'g'], ['f', 'g']]);
assert.deepStrictEqual(await ask([first, second]), [['f', 'g'], ['f']]);
assert.deepStrictEqual(await ask([call(0, 'f', '')]), [['f'], ['f', 'SyntaxError']]);
process.exit(0);
JAVASCRIPT
node check.mjs
