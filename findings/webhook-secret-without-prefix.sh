#!/usr/bin/env bash
# Standard Webhooks: a secret without "whsec_" is another key for OpenAI's SDKs than for the others
#
# Software: openai 3.57.0, standardwebhooks 1.1.0, svix 2.9.1 (PyPI), openai 7.59.0 (npm)
# Guess:    One standard, one secret: "whsec_" is a mark, and what follows it is the key in base64,
#           with the mark or without it.
# Seen:     With the mark all four accept a signature. Without it standardwebhooks and svix still
#           decode the text, and both of OpenAI's SDKs take its letters as the key and refuse the
#           signature: "does not match".
# Matters:  A receiver that stores secrets without the mark loses every event when it changes the
#           verifier. Give the secret out with its mark, and keep it so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    openai==3.57.0 standardwebhooks==1.1.0 svix==2.9.1
cd "$folder"
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund openai@7.59.0
cat >verify.mjs <<'JAVASCRIPT'
import OpenAI from 'openai';

const [secret, payload, headers] = process.argv.slice(2);
const { webhooks } = new OpenAI({ apiKey: 'none' });
try {
  await webhooks.verifySignature(payload, JSON.parse(headers), secret);
} catch (error) {
  console.log(error.message);
}
JAVASCRIPT
"$folder/venv/bin/python" - <<'PYTHON'
import base64
import datetime
import json
import subprocess

import openai
import standardwebhooks
import svix

NOW = datetime.datetime.now(datetime.UTC)
BODY = '{"type": "test"}'
KEY = base64.b64encode(b"a key of twenty-four by.").decode()
HEADERS = {
    "webhook-id": "msg_1", "webhook-timestamp": str(int(NOW.timestamp())),
    "webhook-signature": standardwebhooks.Webhook(f"whsec_{KEY}").sign("msg_1", NOW, BODY),
}


def in_javascript(secret: str) -> None:
    command = ["node", "verify.mjs", secret, BODY, json.dumps(HEADERS)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if printed:
        raise ValueError(printed.strip())


VERIFIERS = {
    "standardwebhooks": lambda secret: standardwebhooks.Webhook(secret).verify(BODY, HEADERS),
    "svix": lambda secret: svix.Webhook(secret).verify(BODY, HEADERS),
    "openai (Python)": lambda secret: openai.OpenAI(api_key="none").webhooks.verify_signature(
        BODY, HEADERS, secret=secret
    ),
    "openai (JavaScript)": in_javascript,
}
seen = {}
for name, verify in VERIFIERS.items():
    for secret in (f"whsec_{KEY}", KEY):
        try:
            verify(secret)
            seen[name, secret] = "accepted"
        except Exception as error:
            seen[name, secret] = str(error)
        print(name, secret, seen[name, secret])
for (name, secret), result in seen.items():
    refused = "openai" in name and secret == KEY
    assert ("does not match" in result) == refused and (result == "accepted") != refused, name
PYTHON
