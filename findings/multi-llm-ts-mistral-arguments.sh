#!/usr/bin/env bash
# multi-llm-ts: with Mistral a tool gets its arguments as one text, unless the answer is streamed
#
# Software: multi-llm-ts 5.1.1 (npm), engines `mistralai` and `openai` against an own server
# Guess:    A tool's `execute` gets an object with the parameters that it declared, whichever engine
#           and whether by `complete` or by `generate`.
# Seen:     By `complete`, engine `mistralai`, it gets the JSON text: its parameter `city` is
#           undefined, and it runs. By `generate`, and by both with engine `openai`, it gets the
#           object. The answers hold the same call, with arguments as a text.
# Matters:  A tool runs with its defaults, or for nothing, and nothing fails: the model is told a
#           result for something else.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund multi-llm-ts@5.1.1
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import http from 'node:http';
import { igniteEngine, Message, Plugin } from 'multi-llm-ts';

const call = { index: 0, id: 'call12345', type: 'function',
               function: { name: 'weather', arguments: '{"city":"Oslo"}' } };
const usage = { prompt_tokens: 9, completion_tokens: 2, total_tokens: 11 };
const server = http.createServer((request, response) => {
  let body = '';
  request.on('data', (piece) => (body += piece));
  request.on('end', () => {
    const { messages, stream } = JSON.parse(body);
    const first = messages.at(-1).role === 'user';
    const message = first ? { role: 'assistant', content: '', tool_calls: [call] }
                          : { role: 'assistant', content: 'Done.' };
    const choice = { index: 0, [stream ? 'delta' : 'message']: message,
                     finish_reason: first ? 'tool_calls' : 'stop' };
    const text = JSON.stringify({ id: 'c', created: 1, model: 'm', choices: [choice], usage,
                                  object: stream ? 'chat.completion.chunk' : 'chat.completion' });
    response.setHeader('content-type', stream ? 'text/event-stream' : 'application/json');
    response.end(stream ? `data: ${text}\n\ndata: [DONE]\n\n` : text);
  });
});
await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
const base = `http://127.0.0.1:${server.address().port}`;

let got;
class Weather extends Plugin {
  isEnabled() { return true; }
  getName() { return 'weather'; }
  getDescription() { return 'Tells the weather.'; }
  getRunningDescription() { return 'Looking.'; }
  getParameters() {
    return [{ name: 'city', type: 'string', description: 'The city.', required: true }];
  }
  async execute(context, parameters) {
    got.push([typeof parameters, parameters.city]);
    return { weather: 'rain' };
  }
}
const found = {};
for (const [name, baseURL] of [['mistralai', base], ['openai', `${base}/v1`]]) {
  const engine = igniteEngine(name, { apiKey: 'none', baseURL });
  engine.addPlugin(new Weather());
  const model = { ...engine.buildModel('m'), capabilities: { tools: true } };
  got = [];
  const thread = () => [new Message('system', 'Help.'), new Message('user', 'Hi')];
  await engine.complete(model, thread());
  for await (const each of engine.generate(model, thread())) void each;
  found[name] = got;
}
console.log('by complete, by generate:', JSON.stringify(found));
assert.deepStrictEqual(found, {
  mistralai: [['string', undefined], ['object', 'Oslo']],
  openai: [['object', 'Oslo'], ['object', 'Oslo']],
});
process.exit(0);
JAVASCRIPT
node check.mjs
