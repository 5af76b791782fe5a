#!/usr/bin/env bash
# standardwebhooks: a rightly signed text that is no JSON raises JSONDecodeError; svix returns None
#
# Software: standardwebhooks 1.1.0, svix 2.9.1 (PyPI)
# Guess:    verify() of both checks the signature and returns the payload.
# Seen:     standardwebhooks parses the body as JSON after the check, so a valid signature over
#           another text is an exception that its own error class does not cover; svix 2 returns
#           None for every body that passes.
# Matters:  A receiver that tests the truth of the result refuses everything after a change of the
#           library; one that catches WebhookVerificationError alone answers 500 to a plain-text
#           ping.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check standardwebhooks==1.1.0 svix==2.9.1
"$folder/venv/bin/python" - <<'PYTHON'
import base64
import datetime
import json

from standardwebhooks.webhooks import Webhook
from svix.webhooks import Webhook as SvixWebhook

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdefghijklmn").decode()
NOW = datetime.datetime.now(datetime.timezone.utc)


def verify(kind: type, prefix: str, body: str) -> object:
    webhook = kind(SECRET)
    signature = webhook.sign("msg_1", NOW, body)
    stamp = str(int(NOW.timestamp()))
    names = {"id": "msg_1", "timestamp": stamp, "signature": signature}
    try:
        return webhook.verify(body, {f"{prefix}-{name}": value for name, value in names.items()})
    except json.JSONDecodeError:
        return "JSONDecodeError"


seen = [
    verify(Webhook, "webhook", '{"a": 1}'),
    verify(Webhook, "webhook", "ping"),
    verify(SvixWebhook, "svix", '{"a": 1}'),
    verify(SvixWebhook, "svix", "ping"),
]
print(seen)
assert seen == [{"a": 1}, "JSONDecodeError", None, None], seen
PYTHON
