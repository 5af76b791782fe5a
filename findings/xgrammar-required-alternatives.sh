#!/usr/bin/env bash
# xgrammar: "an e-mail address or a telephone number is required" allows anything at all
#
# Software: xgrammar 0.2.9 (PyPI), against llguidance 1.9.1
# Guess:    An anyOf of two lists of required names beside type and properties, as JSON Schema
#           writes "one of these must be there", narrows the object, or is refused.
# Seen:     The anyOf replaces what stands beside it: 5, "text" and an object with a wrong type are
#           all allowed, without a warning. Without the anyOf all three are refused. llguidance
#           keeps both, or says that it cannot.
# Matters:  One more rule takes all the others away. Write the whole object into each alternative.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    apache-tvm-ffi numpy pydantic typing-extensions llguidance==1.9.1
# Without torch and transformers, which only its kernels and its tokenizers use.
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps xgrammar==0.2.9
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys
from unittest import mock

import tvm_ffi  # noqa: F401
from llguidance import LLMatcher, LLTokenizer

sys.modules |= {name: mock.MagicMock() for name in ("torch", "transformers")}
import xgrammar

COMPILER = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo([]))
BYTES = LLTokenizer("byte")


def in_xgrammar(schema: dict, text: str) -> bool:
    grammar = COMPILER.compile_json_schema(json.dumps(schema))
    matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
    return matcher.accept_string(text) and matcher.is_terminated()


def in_llguidance(schema: dict, text: str) -> bool:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and (
        matcher.is_accepting()
    )


PLAIN = {
    "type": "object", "additionalProperties": False,
    "properties": {"email": {"type": "string"}, "phone": {"type": "string"}},
}
EITHER = PLAIN | {"anyOf": [{"required": ["email"]}, {"required": ["phone"]}]}
seen = {}
for text in ('{"email": "a@b.c"}', "5", '"text"', '{"email": 5}', '{"other": []}'):
    seen[text] = in_xgrammar(PLAIN, text), in_xgrammar(EITHER, text), in_llguidance(EITHER, text)
    print(text, "xgrammar without, with anyOf; llguidance:", seen[text])
first, *others = seen.values()
assert first == (True, True, True), seen
assert others == [(False, True, False)] * 4, seen
PYTHON
