#!/usr/bin/env bash
# web3-utils: a small negative amount is written 0.0000-1
#
# Software: web3-utils 4.3.3, viem 2.57.20 (npm)
# Guess:    fromWei writes a refund or a difference as it writes a payment, with a minus before it,
#           or refuses it.
# Seen:     -1 unit of six decimals becomes "0.0000-1", -50000 becomes "0.-5"; -1500000 is right
#           ("-1.5"). The way back is blind to it: toWei("-0.0000005", "mwei") is "-", and toWei of
#           "0.0000-1" raises. viem writes -0.000001 and -0.05.
# Matters:  A statement or a reconciliation with differences below a dollar holds texts that are no
#           numbers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund web3-utils@4.3.3 viem@2.57.20
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { formatUnits } from 'viem';
import { fromWei, toWei } from 'web3-utils';

const amounts = [-1n, -50000n, -1500000n];
const seen = amounts.map((amount) => [fromWei(amount, 'mwei'), formatUnits(amount, 6)]);
console.log('web3-utils, viem:', seen);
assert.deepEqual(seen, [
  ['0.0000-1', '-0.000001'],
  ['0.-5', '-0.05'],
  ['-1.5', '-1.5'],
]);
assert.equal(toWei('-0.0000005', 'mwei'), '-');
assert.throws(() => toWei('0.0000-1', 'mwei'));
JAVASCRIPT
node check.mjs
