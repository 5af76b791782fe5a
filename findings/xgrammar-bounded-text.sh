#!/usr/bin/env bash
# xgrammar: a text with a longest length may hold a raw tab, and neither a quote nor a line feed
#
# Software: xgrammar 0.2.9 (PyPI), against llguidance 1.9.1
# Guess:    "maxLength": 200 bounds how many characters a text has, and what is written is JSON.
# Seen:     With maxLength or minLength no escape can be written: \n, \" and \\ are refused, though
#           the length is not reached. A raw tab, which JSON forbids in a text, is allowed, and
#           Python's json refuses the answer. Without a length it is the other way round in all.
#           llguidance keeps to JSON both ways.
# Matters:  A model that is told to be short can neither quote nor begin a new line, and may write
#           what no reader takes, although the server promises valid JSON.
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


FREE, BOUNDED = {"type": "string"}, {"type": "string", "maxLength": 200}
seen = {}
for text in ('"short"', r'"two\nlines"', r'"a \"quote\""', r'"a\\b"', '"a\ttab"'):
    seen[text] = [engine(schema, text) for engine in (in_xgrammar, in_llguidance)
                  for schema in (FREE, BOUNDED)]
    print(repr(text), "xgrammar free, bounded; llguidance free, bounded:", seen[text])
*escaped, tab = list(seen.values())[1:]
assert seen['"short"'] == [True] * 4
assert escaped == [[True, False, True, True]] * 3, seen
assert tab == [False, True, False, False], seen
try:
    json.loads('"a\ttab"')
except json.JSONDecodeError as error:
    print("json:", error)
else:
    raise AssertionError("json reads a raw tab")
PYTHON
