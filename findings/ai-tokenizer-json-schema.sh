#!/usr/bin/env bash
# ai-tokenizer: a tool that is described by a JSON schema has no parameters to count
#
# Software: ai-tokenizer 1.0.6, ai 5.0.277, zod 4.4.3 (npm)
# Guess:    `count` takes the AI SDK's tools, so a tool costs the same whether its parameters are
#           written with zod or with the SDK's own `jsonSchema`, as tools of MCP servers are.
# Seen:     With `jsonSchema` the parameters count 0 tokens, and nothing says so. With zod the same
#           object counts 33, and once it is optional 6: its members are left out.
# Matters:  A prompt that is cut to the window, or priced, by this number is too long by all its
#           tools: with MCP that is often most of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund ai-tokenizer@1.0.6 ai@5.0.277 zod@4.4.3
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { jsonSchema, tool } from 'ai';
import Tokenizer, { models } from 'ai-tokenizer';
import * as encoding from 'ai-tokenizer/encoding/o200k_base';
import { count } from 'ai-tokenizer/sdk';
import { z } from 'zod';

const address = z.object({
  street: z.string().describe('The street and the number of the house.'),
  city: z.string().describe('The city, without the country.'),
});
const shapes = {
  zod: z.object({ address }),
  json: jsonSchema(z.toJSONSchema(z.object({ address }))),
  optional: z.object({ address: address.optional() }),
};
const found = {};
for (const [name, inputSchema] of Object.entries(shapes)) {
  const send = tool({ description: 'Sends a parcel.', inputSchema });
  const result = count({ tokenizer: new Tokenizer(encoding), model: models['openai/gpt-5'],
                         messages: [{ role: 'user', content: 'Hi' }], tools: { send } });
  found[name] = result.tools.definitions.send.inputSchema;
}
console.log('tokens of the parameters:', found);
assert.deepStrictEqual(found, { zod: 33, json: 0, optional: 6 });
JAVASCRIPT
node check.mjs
