#!/usr/bin/env bash
# mistral-common: the system prompt moves to the last user message in each turn
#
# Software: mistral-common 1.13.1 (PyPI), tokenizers v3 (tekken) and v7
# Guess:    A system message stands at the beginning of the prompt, so the next turn shares it as a
#           prefix.
# Seen:     With v3 it is written before the text of the LAST user message, so each turn changes the
#           prompt from the first user message on; v7 keeps it in front in [SYSTEM_PROMPT].
# Matters:  A prefix cache of a v3 model never covers more than the first turns: cached prompt
#           tokens stay near zero in long conversations.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "mistral-common[sentencepiece]==1.13.1"
"$folder/venv/bin/python" - <<'PYTHON'
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

FIRST = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "a"},
]
SECOND = [*FIRST, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def render(tokenizer: MistralTokenizer, messages: list[dict[str, str]]) -> str:
    request = ChatCompletionRequest.from_openai(messages)
    return tokenizer.encode_chat_completion(request).text


older, newer = MistralTokenizer.v3(is_tekken=True), MistralTokenizer.v7()
texts = [render(older, FIRST), render(older, SECOND)]
print(texts)
assert texts == ["<s>[INST]S\n\na[/INST]", "<s>[INST]a[/INST]b</s>[INST]S\n\nc[/INST]"], texts
steady = render(newer, SECOND)
print(steady)
assert steady.index("S") < steady.index("a") and "[SYSTEM_PROMPT]" in steady, steady
PYTHON
