#!/usr/bin/env bash
# litellm: a generated picture without counts of tokens costs nothing, though the list has its price
#
# Software: litellm 1.110.2 (PyPI) with its packaged price list
# Guess:    An answer of gpt-image-1 without `usage` costs what the list says for its quality and
#           size: the list has a row "high/1024-x-1024/gpt-image-1" with 0.167 USD.
# Seen:     completion_cost says 0.0, with quality and size given. With counts of tokens it charges
#           them; the rows by quality and size are never looked at for this model.
# Matters:  A server or proxy that leaves `usage` out makes pictures free in budgets and reports
#           that rest on this number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check litellm==1.110.2
export LITELLM_LOCAL_MODEL_COST_MAP=True
"$folder/venv/bin/python" - <<'PYTHON'
import litellm
from litellm.types.utils import ImageResponse, ImageUsage, ImageUsageInputTokensDetails


def cost(usage: ImageUsage | None) -> float:
    answer = ImageResponse(created=1, data=[{"b64_json": "eA=="}], usage=usage)
    return litellm.completion_cost(
        completion_response=answer,
        model="gpt-image-1",
        custom_llm_provider="openai",
        call_type="image_generation",
        quality="high",
        size="1024x1024",
        n=1,
    )


# What OpenAI counts for such a picture: 4,160 tokens.
details = ImageUsageInputTokensDetails(image_tokens=0, text_tokens=10)
counted = ImageUsage(
    input_tokens=10, input_tokens_details=details, output_tokens=4160, total_tokens=4170
)
listed = litellm.model_cost["high/1024-x-1024/gpt-image-1"]["input_cost_per_image"]
print("listed", listed, "with usage", cost(counted), "without", cost(None))
assert (listed, cost(None)) == (0.167, 0.0)
assert round(cost(counted), 5) == 0.16645, cost(counted)
PYTHON
