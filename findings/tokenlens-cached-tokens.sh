#!/usr/bin/env bash
# tokenlens: a prompt that is found in the cache costs more than one that is not
#
# Software: tokenlens 1.3.1 (npm), which prices usages "across providers and SDKs"
# Guess:    `costFromUsage` charges the cached part of a prompt at its own rate and the rest at the
#           full one, whichever of the known shapes the usage has.
# Seen:     In OpenAI's shape and in the AI SDK's, where the prompt includes its cached tokens, they
#           are charged twice: at the full rate and at their own. With 400,000 of 1,000,000 cached
#           the cost rises by 0.20 USD; it should fall by 0.60. In Anthropic's shape, where the
#           prompt excludes them, the sum is right. In the shape of Responses they are not seen.
# Matters:  Budgets and meters that rest on it fill faster the better a cache works, and two
#           providers with the same prices seem to differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund tokenlens@1.3.1
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { costFromUsage } from 'tokenlens';

const usages = {
  'nothing cached': { prompt_tokens: 1_000_000, completion_tokens: 100_000 },
  'OpenAI': { prompt_tokens: 1_000_000, completion_tokens: 100_000,
              prompt_tokens_details: { cached_tokens: 400_000 } },
  'AI SDK': { inputTokens: 1_000_000, outputTokens: 100_000, cachedInputTokens: 400_000 },
  'Anthropic': { input_tokens: 600_000, output_tokens: 100_000,
                 cache_read_input_tokens: 400_000 },
  'Responses': { input_tokens: 1_000_000, output_tokens: 100_000,
                 input_tokens_details: { cached_tokens: 400_000 } },
};
const cost = (usage) => Number(costFromUsage({ id: 'openai:gpt-4.1', usage }).toFixed(6));
const found = Object.fromEntries(Object.entries(usages).map(([name, each]) => [name, cost(each)]));
console.log(found);
assert.deepStrictEqual(found, {
  'nothing cached': 2.8, 'OpenAI': 3, 'AI SDK': 3, 'Anthropic': 2.2, 'Responses': 2.8,
});
JAVASCRIPT
node check.mjs
