#!/usr/bin/env bash
# openai SDK with zod 3: a text that may be null is sent as one that must not be
#
# Software: openai 6.49.0, zod 3.25.76 (npm), against jsonschema 4.26.0, llguidance 1.9.1,
#           outlines-core 0.2.14 (PyPI)
# Guess:    z.string().nullable() becomes a schema that allows null, whichever zod describes it.
# Seen:     zodResponseFormat and zodFunction make {"type": "string", "nullable": true} of it, and
#           the member is required. `nullable` is no keyword of JSON Schema: the validator and both
#           engines refuse null. The same line with zod's v4 gives anyOf with null. An enum that may
#           be null is right with both.
# Matters:  A server that keeps to the schema forces the model to invent a text, or a number, where
#           it meant "unknown", and "strict" is set.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund openai@6.49.0 zod@3.25.76
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check \
    jsonschema==4.26.0 llguidance==1.9.1 outlines-core==0.2.14
cat >make.mjs <<'JAVASCRIPT'
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z as v3 } from 'zod';
import { z as v4 } from 'zod/v4';

const made = {};
for (const [name, z] of Object.entries({ v3, v4 })) {
  const answer = z.object({ due: z.string().nullable(), sum: z.number().nullish(),
                            unit: z.enum(['EUR', 'USD']).nullable() });
  const format = zodResponseFormat(answer, 'answer').json_schema;
  const tool = zodFunction({ name: 'pay', parameters: answer }).function;
  made[name] = [{ strict: format.strict, schema: format.schema },
                { strict: tool.strict, schema: tool.parameters }];
}
console.log(JSON.stringify(made));
JAVASCRIPT
node make.mjs >made.json
venv/bin/python - <<'PYTHON'
import json
import re

import jsonschema
from llguidance import LLMatcher, LLTokenizer
from outlines_core.json_schema import build_regex_from_schema


def llguidance(schema: dict, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    return matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()


seen = {}
for version, made in json.load(open("made.json")).items():
    for what, each in zip(("format", "tool"), made):
        assert each["strict"] and sorted(each["schema"]["required"]) == ["due", "sum", "unit"]
        for member, schema in each["schema"]["properties"].items():
            seen[version, what, member] = row = [
                jsonschema.Draft7Validator(schema).is_valid(None), llguidance(schema, "null"),
                bool(re.fullmatch(build_regex_from_schema(json.dumps(schema)), "null"))]
            print(version, what, member, json.dumps(schema), "null:", *row)
for (version, _, member), row in seen.items():
    assert row == [version == "v4" or member == "unit"] * 3
PYTHON
