#!/usr/bin/env bash
# OpenAI Agents for JavaScript: a text beside a call goes back with the call inside the text too
#
# Software: @openai/agents 0.20.0 with openai 7.59.0 (npm), Chat Completions
# Guess:    An answer with a text and a tool call stands in the next request as it came: `content`
#           has the text, `tool_calls` the call.
# Seen:     The text becomes a part that has all other members of the answer's message: its role,
#           its refusal and, a second time, its tool_calls. From a stream the part has annotations
#           instead, empty ones.
# Matters:  A server that knows the members of a part refuses the second turn, and one that counts
#           bytes or tokens sees the call twice. A gateway should drop what a part cannot have.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @openai/agents@0.20.0 openai@7.59.0 zod@4.4.3
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { Agent, OpenAIChatCompletionsModel, run, setTracingDisabled, tool } from '@openai/agents';
import OpenAI from 'openai';
import { z } from 'zod';

const call = { id: 'call_1', type: 'function',
               function: { name: 'weather', arguments: '{"city":"Oslo"}' } };
let asked;
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { messages, stream } = JSON.parse(body);
    const first = !messages.some(({ role }) => role === 'tool');
    if (!first) asked = messages;
    const tool_calls = [stream ? { index: 0, ...call } : call];
    const message = first ? { content: 'Let me look.', tool_calls } : { content: 'Rain.' };
    const choice = { index: 0, finish_reason: first ? 'tool_calls' : 'stop',
                     [stream ? 'delta' : 'message']: { role: 'assistant', refusal: null,
                                                       ...message } };
    const text = JSON.stringify({ id: 'c', created: 1, model: 'm', choices: [choice],
                                  object: stream ? 'chat.completion.chunk' : 'chat.completion' });
    response.setHeader('content-type', stream ? 'text/event-stream' : 'application/json');
    response.end(stream ? `data: ${text}\n\ndata: [DONE]\n\n` : text);
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
const client = new OpenAI({ apiKey: 'none', baseURL });
setTracingDisabled(true);
const weather = tool({ name: 'weather', description: 'Tells the weather.',
                       parameters: z.object({ city: z.string() }), execute: async () => 'rain' });
const agent = new Agent({ name: 'A', tools: [weather],
                          model: new OpenAIChatCompletionsModel(client, 'm') });

async function history(stream) {
  const result = await run(agent, 'Hi', { stream });
  if (stream) await result.completed;
  return asked.filter(({ role }) => role === 'assistant');
}

const plain = await history(false);
const streamed = await history(true);
console.log('plain:', JSON.stringify(plain), '\nstream:', JSON.stringify(streamed));
for (const messages of [plain, streamed]) {
  assert.strictEqual(messages.length, 1);
  assert.strictEqual(messages[0].content[0].text, 'Let me look.');
  assert.strictEqual(messages[0].tool_calls[0].id, 'call_1');
}
const names = (message) => Object.keys(message.content[0]).sort();
assert.deepStrictEqual(names(plain[0]), ['refusal', 'role', 'text', 'tool_calls', 'type']);
assert.deepStrictEqual(names(streamed[0]), ['annotations', 'text', 'type']);
process.exit(0);
JAVASCRIPT
node check.mjs
