#!/usr/bin/env bash
# A Python client of openapi-generator: a list of alternatives inside an alternative
#
# Software: openapi-generator-cli 7.26.0 (PyPI, generator `python`; needs Java 11 or newer)
# Guess:    `from_dict` reads what the document allows, and `to_json` gives the same back.
# Seen:     With `content: anyOf [string, array of anyOf [Text, Link]]`, the items of the list are
#           read as empty objects without an error. In their place the JSON has members of the
#           generator's own (`actual_instance`, `any_of_schemas`). A text comes back.
# Matters:  A conversation that is kept as JSON and read into such a client loses its contents in
#           silence. Build the objects by their classes instead.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet openapi-generator-cli==7.26.0
cat >document.json <<'JSON'
{"openapi": "3.1.0", "info": {"title": "t", "version": "1"},
 "paths": {"/": {"post": {"operationId": "send", "requestBody": {"content": {"application/json":
   {"schema": {"$ref": "#/components/schemas/Message"}}}}, "responses": {"200": {"description": "ok"}}}}},
 "components": {"schemas": {
  "Message": {"type": "object", "required": ["content"], "properties": {"content": {"anyOf": [
     {"type": "string"},
     {"type": "array", "items": {"anyOf": [{"$ref": "#/components/schemas/Text"},
                                           {"$ref": "#/components/schemas/Link"}]}}]}}},
  "Text": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
  "Link": {"type": "object", "required": ["url"], "properties": {"url": {"type": "string"}}}}}}
JSON
venv/bin/openapi-generator-cli generate -g python -i document.json -o made \
    --package-name made >/dev/null 2>&1
venv/bin/pip install --quiet ./made
venv/bin/python - <<'PYTHON'
import json

from made.models.message import Message

seen = [
    json.loads(Message.from_dict({"content": content}).to_json())["content"]
    for content in ("hi", [{"text": "hi"}])
]
print(seen)
text, [item] = seen
assert text == "hi"
assert "text" not in item
assert item["actual_instance"] is None
PYTHON
