#!/usr/bin/env bash
# zod-to-json-schema: null becomes an object, and for OpenAPI the text "null"
#
# Software: zod-to-json-schema 3.25.2, openai 6.49.0, zod 3.25.76 (npm), checked with
#           @cfworker/json-schema 4.1.6 (npm)
# Guess:    z.literal(null) is {"const": null} or {"type": "null"}: what zod takes, the schema does.
# Seen:     It is {"type": "object"}, so of a union of a text and null null is invalid and {} is
#           valid, while zod refuses {}. A union of literals alone is right. The helpers of the
#           openai SDK do the same. With target openApi3 z.null() allows the text "null".
# Matters:  A model that keeps to the schema writes {} where the program knows null or a text only:
#           each such answer is refused by the very definition that asked for it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund zod-to-json-schema@3.25.2 openai@6.49.0 zod@3.25.76 \
    @cfworker/json-schema@4.1.6
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { Validator } from '@cfworker/json-schema';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { zodToJsonSchema } from 'zod-to-json-schema';

const answer = z.object({ reason: z.union([z.string(), z.literal(null)]) });
const makers = {
  'zod-to-json-schema': zodToJsonSchema(answer),
  openai: zodResponseFormat(answer, 'answer').json_schema.schema,
};
const values = [{ reason: 'a' }, { reason: null }, { reason: {} }];
for (const [name, schema] of Object.entries(makers)) {
  const bySchema = values.map((value) => new Validator(schema).validate(value).valid);
  const byZod = values.map((value) => answer.safeParse(value).success);
  console.log(name, JSON.stringify(schema.properties), bySchema, 'zod:', byZod);
  assert.deepEqual(bySchema, [true, false, true]);
  assert.deepEqual(byZod, [true, true, false]);
}
const literals = zodToJsonSchema(z.union([z.literal('a'), z.literal(null)]));
const open = zodToJsonSchema(z.null(), { target: 'openApi3' });
console.log(JSON.stringify(literals), JSON.stringify(open));
assert.deepEqual(literals.type, ['string', 'null']);
assert.deepEqual(open, { enum: ['null'], nullable: true });
JAVASCRIPT
node check.mjs
