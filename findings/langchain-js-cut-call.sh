#!/usr/bin/env bash
# LangChain.js: a tool call that was cut off is invalid in a plain answer and valid in a stream
#
# Software: @langchain/openai 1.6.0 with @langchain/core 1.4.0 (npm)
# Guess:    The same answer gives the same calls, streamed or not: arguments that are no JSON stand
#           under `invalid_tool_calls`, where an agent finds them.
# Seen:     So it is plain. Streamed, the half text is closed and the call stands under `tool_calls`
#           with it; finish_reason is "length" in both. Arguments that are an empty text, as servers
#           send them for a function without parameters, are {} streamed and invalid plain.
# Matters:  An agent that streams writes half a text where one that does not asks again; and a
#           function without parameters can be called in a stream alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @langchain/openai@1.6.0 @langchain/core@1.4.0
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { ChatOpenAI } from '@langchain/openai';

let text, reason;
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { stream } = JSON.parse(body);
    const call = { index: 0, id: 'call_1', type: 'function',
                   function: { name: 'write', arguments: text } };
    const message = { role: 'assistant', content: null, tool_calls: [call] };
    const answer = { id: 'c', created: 1, model: 'm',
                     object: stream ? 'chat.completion.chunk' : 'chat.completion' };
    const choices = (choice) => ({ ...answer, choices: [{ index: 0, ...choice }] });
    if (stream) {
      response.setHeader('content-type', 'text/event-stream');
      const first = choices({ delta: message, finish_reason: null });
      const last = choices({ delta: {}, finish_reason: reason });
      response.end(`data: ${JSON.stringify(first)}\n\ndata: ${JSON.stringify(last)}\n\n` +
                   'data: [DONE]\n\n');
    } else {
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(choices({ message, finish_reason: reason })));
    }
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
const model = new ChatOpenAI({ model: 'm', apiKey: 'none', configuration: { baseURL } });

async function ask(given, finish) {
  [text, reason] = [given, finish];
  const plain = await model.invoke('Hi');
  let streamed;
  for await (const piece of await model.stream('Hi')) {
    streamed = streamed ? streamed.concat(piece) : piece;
  }
  const found = [plain, streamed].map((each) => [
    each.tool_calls.map((call) => call.args), each.invalid_tool_calls.length,
    each.response_metadata.finish_reason,
  ]);
  console.log(JSON.stringify(given), 'plain', found[0], 'stream', found[1]);
  return found;
}

assert.deepStrictEqual(await ask('{"path": "a.txt", "text": "Dear cust', 'length'), [
  [[], 1, 'length'], [[{ path: 'a.txt', text: 'Dear cust' }], 0, 'length'],
]);
assert.deepStrictEqual(await ask('', 'tool_calls'), [
  [[], 1, 'tool_calls'], [[{}], 0, 'tool_calls'],
]);
process.exit(0);
JAVASCRIPT
node check.mjs
