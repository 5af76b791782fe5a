#!/usr/bin/env bash
# Chat templates in JavaScript: a tool with a parameter called "items" is an error
#
# Software: @huggingface/jinja 0.5.11, minijinja-js 2.11.0 (npm), against Jinja2 3.1.6 and minijinja
#           3.1.0 (PyPI)
# Guess:    `parameters.properties.items()`, as templates write out a tool, goes through its
#           parameters, whatever their names are.
# Seen:     It is so in Python, with both engines. In JavaScript both take the parameter "items" for
#           what is called, and raise: "not a function", "object is not callable". So it is for
#           "keys" where a template calls keys(). Other names, and `|items`, work in all four.
# Matters:  A tool for an order or a list makes the whole request fail, and only where the template
#           is rendered in JavaScript.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jinja2==3.1.6 minijinja==3.1.0
npm init --yes >/dev/null
npm install --silent --no-audit --no-fund @huggingface/jinja@0.5.11 minijinja-js@2.11.0
cat >cases.json <<'JSON'
[["{% for name, each in properties.items() %}<{{ name }}: {{ each.type }}>{% endfor %}", "note"],
 ["{% for name, each in properties.items() %}<{{ name }}: {{ each.type }}>{% endfor %}", "items"],
 ["{% for name, each in properties|items %}<{{ name }}: {{ each.type }}>{% endfor %}", "items"],
 ["{% for name in properties.keys() %}<{{ name }}>{% endfor %}", "keys"]]
JSON
cat >first.py <<'PYTHON'
import json

import minijinja
from jinja2.sandbox import ImmutableSandboxedEnvironment

jinja2 = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
for source, name in json.load(open("cases.json")):
    context = {"properties": {name: {"type": "array"}}}
    print("Jinja2:", jinja2.from_string(source).render(context))
    print("minijinja:", minijinja.Environment().render_str(source, **context))
PYTHON
cat >second.mjs <<'JAVASCRIPT'
import fs from 'node:fs';
import { Template } from '@huggingface/jinja';
import * as minijinja from 'minijinja-js/dist/node/minijinja_js.js';

const environment = new minijinja.Environment();
environment.enablePyCompat();
for (const [source, name] of JSON.parse(fs.readFileSync('cases.json', 'utf8'))) {
  const context = { properties: { [name]: { type: 'array' } } };
  for (const [engine, render] of Object.entries({
    '@huggingface/jinja': () => new Template(source).render(context),
    'minijinja-js': () => environment.renderStr(source, context),
  })) {
    try {
      console.log(`${engine}:`, render());
    } catch (error) {
      const found = /not (a function|callable)/.exec(error.message ?? error);
      console.log(`${engine}: error,`, found?.[0] ?? error);
    }
  }
}
JAVASCRIPT
{ venv/bin/python first.py && node second.mjs; } | tee seen.txt
diff seen.txt - <<'TEXT'
Jinja2: <note: array>
minijinja: <note: array>
Jinja2: <items: array>
minijinja: <items: array>
Jinja2: <items: array>
minijinja: <items: array>
Jinja2: <keys>
minijinja: <keys>
@huggingface/jinja: <note: array>
minijinja-js: <note: array>
@huggingface/jinja: error, not a function
minijinja-js: error, not callable
@huggingface/jinja: <items: array>
minijinja-js: <items: array>
@huggingface/jinja: error, not a function
minijinja-js: error, not callable
TEXT
