#!/usr/bin/env bash
# gpt-tokenizer: GPT-4o, GPT-4.1 and GPT-5 have one price, that of GPT-4 Turbo
#
# Software: gpt-tokenizer 4.0.0 with its packaged prices, against ai-tokenizer 1.0.6 with its own
#           (npm)
# Guess:    `estimateCost` of a model's module says what a million tokens of that model cost; for
#           well-known models two tables agree.
# Seen:     For gpt-4o, gpt-4.1, gpt-5 and gpt-4-turbo it says 10 and 30 USD: of a prompt that is 4,
#           5 and 8 times the other table's price. o3 has o1's, 7.5 times the other's. gpt-5-codex
#           agrees, gpt-5-mini is an error, and gpt-oss-120b costs 0.0005 USD a million.
# Matters:  An estimate before a call, or a limit that rests on it, refuses what it should allow,
#           and nothing tells a right price from a wrong one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund gpt-tokenizer@4.0.0 ai-tokenizer@1.0.6
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { models } from 'ai-tokenizer';

async function price(name) {
  try {
    const { main } = (await import(`gpt-tokenizer/model/${name}`)).estimateCost(1_000_000);
    return [main.input, main.output];
  } catch (error) {
    return error.message;
  }
}
const round = (number) => Number(number.toPrecision(6));
const found = {};
for (const name of ['gpt-4-turbo', 'gpt-4o', 'gpt-4.1', 'gpt-5', 'o1', 'o3', 'gpt-5-codex',
                    'gpt-5-mini', 'gpt-oss-120b']) {
  const other = models[`openai/${name}`]?.pricing;
  found[name] = [await price(name),
                 other && [round(other.input * 1e6), round(other.output * 1e6)]];
}
console.log(found);
assert.deepStrictEqual(found, {
  'gpt-4-turbo': [[10, 30], [10, 30]],
  'gpt-4o': [[10, 30], [2.5, 10]],
  'gpt-4.1': [[10, 30], [2, 8]],
  'gpt-5': [[10, 30], [1.25, 10]],
  'o1': [[15, 60], [15, 60]],
  'o3': [[15, 60], [2, 8]],
  'gpt-5-codex': [[1.25, 10], [1.25, 10]],
  'gpt-5-mini': ['No cost information available for model: gpt-5-mini-2025-08-07', [0.25, 2]],
  'gpt-oss-120b': [[0.0005, 0.0015], found['gpt-oss-120b'][1]],
});
assert.ok(found['gpt-oss-120b'][1][0] > 0.01);
JAVASCRIPT
node check.mjs
