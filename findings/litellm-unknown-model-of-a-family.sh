#!/usr/bin/env bash
# litellm: an unknown Claude, GPT or Gemini costs nothing; an unknown Mistral or Grok is an error
#
# Software: litellm 1.110.2 (PyPI) with its packaged price list
# Guess:    A model without a row in the list has no price: cost_per_token raises an error.
# Seen:     So it does for names of most makers. A name that looks like a Claude, a GPT-5 or later
#           or a Gemini Pro costs 0.0 without a warning. By OpenRouter's names Claude Sonnet 4.5,
#           GPT-5 and Gemini 2.5 Pro are among these, and GPT-4o is an error.
# Matters:  The dearest models are free in budgets and reports until the list knows their names; a
#           guard that waits for the error never sees them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PYTHON'
import litellm

litellm.suppress_debug_info = True
free = [
    "anthropic/claude-sonnet-9", "openai/gpt-9", "gemini/gemini-9-pro",
    "openrouter/anthropic/claude-sonnet-4.5", "openrouter/openai/gpt-5",
    "openrouter/google/gemini-2.5-pro",
]
refused = [
    "mistral/mistral-9", "xai/grok-9", "deepseek/deepseek-v9", "groq/llama-9",
    "openrouter/openai/gpt-4o", "openrouter/x-ai/grok-4",
]
for name in free:
    assert name not in litellm.model_cost
    found = litellm.cost_per_token(model=name, prompt_tokens=1_000_000, completion_tokens=100_000)
    print(name, found)
    assert found == (0.0, 0.0)
for name in refused:
    assert name not in litellm.model_cost
    try:
        found = litellm.cost_per_token(model=name, prompt_tokens=1_000_000, completion_tokens=1)
    except Exception as error:
        print(name, type(error).__name__)
        assert "isn't mapped yet" in str(error), error
    else:
        raise AssertionError((name, found))
PYTHON
