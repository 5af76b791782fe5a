#!/usr/bin/env bash
# x402: half a millionth of a dollar is a payment of 0, and seven decimals were a broken unit
#
# Software: @x402/evm 2.27.0 with @x402/core, x402 1.2.0 (npm)
# Guess:    A price that USDC cannot pay exactly (it has six decimals) is refused or rounded up.
# Seen:     @x402/evm cuts it off without a word: $0.0000005 asks for 0, 0.0000019 for 1. x402 1
#           makes "123456.7" of 0.1234567, and its own schema for what a server asks refuses that.
# Matters:  Prices of a token lie below that unit: such a call is free, or each is paid up to a unit
#           short. Ask for a sum of calls, rounded up.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @x402/core@2.27.0 @x402/evm@2.27.0 x402@1.2.0
cat >check.mjs <<'JAVASCRIPT'
import assert from 'node:assert';
import { ExactEvmScheme } from '@x402/evm/exact/server';
import { processPriceToAtomicAmount } from 'x402/shared';
import { PaymentRequirementsSchema } from 'x402/types';

const scheme = new ExactEvmScheme();
const seen = {};
for (const price of ['$0.01', '$0.0000005', '0.0000019', 1.9999999]) {
  seen[price] = (await scheme.parsePrice(price, 'eip155:8453')).amount;
}
const { maxAmountRequired, asset } = processPriceToAtomicAmount('0.1234567', 'base');
console.log('@x402/evm', seen, 'x402 0.1234567:', maxAmountRequired);
const cut = { '$0.01': '10000', '$0.0000005': '0', '0.0000019': '1', 1.9999999: '1999999' };
assert.deepEqual(seen, cut);
assert.equal(maxAmountRequired, '123456.7');

const ask = (amount) =>
  PaymentRequirementsSchema.safeParse({ scheme: 'exact', network: 'base', maxAmountRequired: amount,
    resource: 'https://example.com/v1/chat', description: '', mimeType: 'application/json',
    payTo: asset.address, maxTimeoutSeconds: 60, asset: asset.address, extra: {} });
assert.equal(ask('123456').success, true, JSON.stringify(ask('123456').error));
assert.equal(ask(maxAmountRequired).success, false);
JAVASCRIPT
node check.mjs
