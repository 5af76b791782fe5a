#!/usr/bin/env bash
# Three price calculators, one request of 200,001 prompt tokens: a factor of two apart
#
# Software: genai-prices 0.2.3, litellm 1.110.2 with its packaged list, tokencost 0.1.26 (PyPI)
# Guess:    Calculators of public list prices agree on well-known models.
# Seen:     For Gemini 2.5 Pro tokencost knows no tier and says half; for Claude Sonnet 4.5 genai-
#           prices doubles the whole prompt above 200,000 tokens and litellm has no tier.
# Matters:  A bill that is checked against one of them can be "wrong" by half; a tier is of the
#           whole prompt, not of what exceeds it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check genai-prices==0.2.3 litellm==1.110.2 tokencost==0.1.26
"$folder/venv/bin/python" - <<'PYTHON'
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
from decimal import Decimal

from genai_prices import Usage, calc_price
from litellm import cost_per_token
from tokencost import calculate_cost_by_tokens

TOKENS = 200_001


def round_cents(value: object) -> Decimal:
    return Decimal(str(value)).quantize(Decimal("0.01"))


def ours(model: str) -> list[Decimal]:
    price = calc_price(Usage(input_tokens=TOKENS, output_tokens=0), model_ref=model).total_price
    lite = cost_per_token(model=model, prompt_tokens=TOKENS, completion_tokens=0)[0]
    return [round_cents(price), round_cents(lite)]


gemini = [*ours("gemini-2.5-pro"), round_cents(calculate_cost_by_tokens(TOKENS, "gemini-2.5-pro", "input"))]
claude = ours("claude-sonnet-4-5")
print("gemini-2.5-pro: genai-prices, litellm, tokencost:", *gemini)
print("claude-sonnet-4-5: genai-prices, litellm:", *claude)
assert gemini == [Decimal("0.50"), Decimal("0.50"), Decimal("0.25")], gemini
assert claude == [Decimal("1.20"), Decimal("0.60")], claude
PYTHON
