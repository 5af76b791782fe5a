#!/usr/bin/env bash
# Streamed arguments of a tool: what a number is while it is cut off
#
# Software: partial-json 0.1.7, best-effort-json-parser 1.5.1 (npm)
# Guess:    Both leave a number out until it is certain.
# Seen:     partial-json drops a number that ends in a point or a sign but believes "12", which may
#           become 120; best-effort-json-parser makes -→0 and "1."→1; both read "t" as true.
# Matters:  A form that shows arguments as they arrive jumps, and a member that was there vanishes
#           with the next byte (12 → 12. → 12.5).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund partial-json@0.1.7 best-effort-json-parser@1.5.1
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { parse } from 'partial-json';
import { parse as guess } from 'best-effort-json-parser';

const seen = {};
for (const text of ['{"n": -', '{"n": 1.', '{"n": 12', '{"ok": t']) {
  seen[text] = [parse(text), guess(text)];
}
console.log(JSON.stringify(seen));
assert.deepEqual(seen, {
  '{"n": -': [{}, { n: 0 }],
  '{"n": 1.': [{}, { n: 1 }],
  '{"n": 12': [{ n: 12 }, { n: 12 }],
  '{"ok": t': [{ ok: true }, { ok: true }],
});
JAVASCRIPT
node check.mjs
