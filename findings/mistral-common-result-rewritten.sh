#!/usr/bin/env bash
# mistral-common: what a tool has answered is read as JSON and written anew, until v7
#
# Software: mistral-common 1.13.1 (PyPI), tokenizers v2, v3 (tekken) and v7
# Guess:    The content of a tool's message is a text, and the model sees that text.
# Seen:     With v2 and v3 a text that happens to be JSON becomes its value: version 1.10 is 1.1,
#           1e3 is 1000.0, and of two members of one name the last one stays. 007 is no JSON, and
#           stays in quotes. v7 writes the text.
# Matters:  A tool that answers with a version, a code or an amount tells an older Mistral model
#           another one. A sentence around the value keeps it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "mistral-common[sentencepiece]==1.13.1"
"$folder/venv/bin/python" - <<'PYTHON'
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ANSWERS = ("1.10", "1e3", '{"a": 1, "a": 2}', "007", "version 1.10")
TOKENIZERS = {
    "v2": MistralTokenizer.v2(),
    "v3": MistralTokenizer.v3(is_tekken=True),
    "v7": MistralTokenizer.v7(),
}


def render(tokenizer: MistralTokenizer, answer: str) -> str:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "look", "content": answer},
    ]
    text = tokenizer.encode_chat_completion(ChatCompletionRequest.from_openai(messages)).text
    # SentencePiece shows a space as a low bar.
    return text.partition("[TOOL_RESULTS]")[2].removesuffix("[/TOOL_RESULTS]").replace("▁", " ")


seen = {name: [render(each, answer) for answer in ANSWERS] for name, each in TOKENIZERS.items()}
for name, texts in seen.items():
    print(name, *texts, sep="\n    ")
values = ("1.1", "1000.0", '{"a": 2}', '"007"', '"version 1.10"')
assert seen["v2"] == [f' [{{"name": "look", "content": {value}}}]' for value in values]
assert seen["v3"] == [f'{{"content": {value}, "call_id": "abcdefghi"}}' for value in values]
assert seen["v7"] == [f" abcdefghi[TOOL_CONTENT] {answer}" for answer in ANSWERS]
PYTHON
