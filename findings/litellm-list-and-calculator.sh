#!/usr/bin/env bash
# litellm: what its calculator charges for a cached token is not in its price list
#
# Software: litellm 1.110.2 (PyPI) with its packaged price list
# Guess:    A row without a rate for cached tokens means that they cost as much as the others: so it
#           does for Together, and whoever reads the list charges the same as its calculator.
# Seen:     For Fireworks the calculator charges half, by a constant in its code; more than 200 rows
#           of the list have no such rate. (Fireworks documents the half as its default.)
# Matters:  A bill that is computed from the list alone is up to twice as high for agents, whose
#           prompts are mostly cached.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PYTHON'
import litellm
from litellm.cost_calculator import cost_per_token
from litellm.types.utils import PromptTokensDetailsWrapper, Usage

RATE = "cache_read_input_token_cost"


def share(provider: str, model: str) -> float:
    """Returns what a cached token costs, as a share of another one's price."""
    row = litellm.model_cost[f"{provider}/{model}"]
    assert RATE not in row, row
    details = PromptTokensDetailsWrapper(cached_tokens=10_000)
    usage = Usage(prompt_tokens=10_000, total_tokens=10_000, prompt_tokens_details=details)
    cost, _ = cost_per_token(model=model, custom_llm_provider=provider, usage_object=usage)
    return cost / (10_000 * row["input_cost_per_token"])


fireworks = share("fireworks_ai", "accounts/fireworks/models/deepseek-v3")
together = share("together_ai", "openai/gpt-oss-20b")
silent = [
    name
    for name, row in litellm.model_cost.items()
    if row.get("litellm_provider") == "fireworks_ai" and row.get("mode") == "chat"
    and row.get("input_cost_per_token") and RATE not in row
]
print("Fireworks", fireworks, "Together", together, "rows without the rate", len(silent))
assert (round(fireworks, 6), round(together, 6)) == (0.5, 1.0)
assert len(silent) > 200
PYTHON
