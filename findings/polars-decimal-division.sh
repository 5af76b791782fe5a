#!/usr/bin/env bash
# polars: 0.15 USD per million, divided by a million, is 0.00; other readers say 0.00000015
#
# Software: polars 2.1.0, duckdb 2.0.1, pyarrow 26.0.1 (PyPI)
# Guess:    A quotient or product of decimals has the digits that it needs, or is a float.
# Seen:     polars keeps the scale of the column: a price with two decimals divided by 1,000,000 is
#           0.00, and a million tokens cost 0.00. Multiplied first they cost 0.15. Rates 0.05 and
#           0.10 multiplied are 0.00 (the product is 0.005). duckdb divides in floats, pyarrow
#           gives 22 decimals; both multiply exactly.
# Matters:  A report on exported prices shows no cost at all, or one that hangs on the order of
#           operations. Cast to a wide scale before.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import duckdb
import polars
import pyarrow
import pyarrow.compute as compute

MONEY = pyarrow.decimal128(9, 2)
prices = pyarrow.table({
    "price": pyarrow.array([Decimal("0.15")], MONEY),
    "rate": pyarrow.array([Decimal("0.05")], MONEY),
    "share": pyarrow.array([Decimal("0.10")], MONEY),
})
price, rate, share = (polars.col(name) for name in ("price", "rate", "share"))
frame = polars.from_arrow(prices).select(
    token=price / 1_000_000,
    divided_first=price / 1_000_000 * 1_000_000,
    multiplied_first=price * 1_000_000 / 1_000_000,
    product=rate * share,
)
print(frame)
assert frame.row(0) == (0, 0, Decimal("0.15"), 0), frame.row(0)

duck = duckdb.sql("select price / 1000000, rate * share from prices").fetchall()[0]
million = pyarrow.scalar(1_000_000)
arrow = (
    compute.divide(prices["price"], million)[0].as_py(),
    compute.multiply(prices["rate"], prices["share"])[0].as_py(),
)
print("duckdb", duck, "pyarrow", arrow)
assert duck == (1.5e-07, Decimal("0.0050")), duck
assert arrow == (Decimal("1.5E-7"), Decimal("0.0050")), arrow
PYTHON
