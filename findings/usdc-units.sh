#!/usr/bin/env bash
# Half a unit of USDC: one library rounds up, one cuts off, one raises, one makes an empty text
#
# Software: viem 2.57.20, ethers 6.17.0, web3-utils 4.3.3 (npm), eth-utils 6.0.0 (PyPI)
# Guess:    An amount with more decimals than the token has is refused, or cut off, by all of them.
# Seen:     0.0000005 with six decimals: viem says 1, ethers raises, web3-utils returns an empty
#           text, eth-utils 0. 1.9999995: viem says 2000000, web3-utils and eth-utils 1999999.
# Matters:  The amount that a wallet asks for differs by a unit from the one that is waited for: a
#           payment is short, or none. BigInt("") is 0. Round before, and pass texts of six
#           decimals.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund viem@2.57.20 ethers@6.17.0 web3-utils@4.3.3
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check eth-utils==6.0.0 \
    eth-hash==0.8.0 pycryptodome==3.24.1
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { parseUnits as ethers } from 'ethers';
import { parseUnits as viem } from 'viem';
import { toWei } from 'web3-utils';

const seen = {};
for (const amount of ['1.5', '0.0000005', '1.9999995']) {
  let strict;
  try {
    strict = ethers(amount, 6);
  } catch (error) {
    strict = error.code;
  }
  seen[amount] = [viem(amount, 6), strict, toWei(amount, 'mwei')];
}
assert.equal(BigInt(''), 0n);
console.log('viem, ethers, web3-utils:', seen);
assert.deepEqual(seen, {
  1.5: [1500000n, 1500000n, '1500000'],
  '0.0000005': [1n, 'NUMERIC_FAULT', ''],
  1.9999995: [2000000n, 'NUMERIC_FAULT', '1999999'],
});
JAVASCRIPT
node check.mjs
venv/bin/python - <<'PYTHON'
from eth_utils import to_wei

seen = [to_wei(amount, "mwei") for amount in ("1.5", "0.0000005", "1.9999995")]
print("eth-utils:", seen)
assert seen == [1_500_000, 0, 1_999_999], seen
PYTHON
