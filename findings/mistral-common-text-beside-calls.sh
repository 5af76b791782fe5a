#!/usr/bin/env bash
# mistral-common: an assistant's message must not have both text and tool calls, until v7
#
# Software: mistral-common 1.13.1 (PyPI), tokenizers v2, v3 (tekken) and v7
# Guess:    A message that says "Let me look." and calls a tool is an ordinary turn, which all
#           versions of the format can write.
# Seen:     v2 and v3 refuse it: "Assistant message must have either content or tool_calls, but not
#           both." v7 takes it. With null or an empty text beside the calls all three take it.
# Matters:  Models that think aloud before a call send such messages, and agents send them back: the
#           second turn of a conversation is refused once it moves to an older Mistral model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "mistral-common[sentencepiece]==1.13.1"
"$folder/venv/bin/python" - <<'PYTHON'
from mistral_common.exceptions import InvalidAssistantMessageException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "look", "content": "sunny"}
TOKENIZERS = {
    "v2": MistralTokenizer.v2(),
    "v3": MistralTokenizer.v3(is_tekken=True),
    "v7": MistralTokenizer.v7(),
}


def judge(tokenizer: MistralTokenizer, text: str | None) -> str:
    assistant = {"role": "assistant", "content": text, "tool_calls": [CALL]}
    messages = [{"role": "user", "content": "a"}, assistant, RESULT]
    try:
        tokenizer.encode_chat_completion(ChatCompletionRequest.from_openai(messages))
    except InvalidAssistantMessageException as exc:
        return str(exc)
    return "taken"


REFUSED = "Assistant message must have either content or tool_calls, but not both."
for name, tokenizer in TOKENIZERS.items():
    found = [judge(tokenizer, text) for text in ("Let me look.", "", None)]
    print(name, found)
    assert found == ["taken" if name == "v7" else REFUSED, "taken", "taken"], found
PYTHON
