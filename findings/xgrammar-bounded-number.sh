#!/usr/bin/env bash
# xgrammar: a number with a bound has six decimals at most: a price of 0.00000015 becomes 0
#
# Software: xgrammar 0.2.9 (PyPI), against llguidance 1.9.1
# Guess:    {"type": "number", "minimum": 0} takes every number from 0 on; a bound takes away what
#           lies outside of it, and nothing else.
# Seen:     With a bound no number may have an exponent or a seventh decimal: 0.00000015 and 1.5e-7
#           are refused, and 0.000000 is what is left of them. Without a bound both are written.
#           llguidance refuses the exponent too, and writes the decimals.
# Matters:  A price of a token, or a probability, that a model read rightly comes out as 0, and is
#           valid. Ask for the price of a million tokens, or leave the bound out.
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


BOUNDED = {"type": "number", "minimum": 0}
seen = {}
for text in ("0.15", "0.000001", "0.00000015", "1.5e-7"):
    seen[text] = [engine(schema, text) for engine in (in_xgrammar, in_llguidance)
                  for schema in ({"type": "number"}, BOUNDED)]
    print(text, "xgrammar free, bounded; llguidance free, bounded:", seen[text])
assert seen == {
    "0.15": [True] * 4, "0.000001": [True] * 4,
    "0.00000015": [True, False, True, True], "1.5e-7": [True, False, True, False],
}, seen
assert in_xgrammar(BOUNDED, "0.000000")
PYTHON
