"""Reads the usage exports of providers: CSV and the JSON of their usage interfaces.

The formats are those of OpenAI's ``/organization/usage`` and ``/organization/costs``, Anthropic's
``/organizations/usage_report/messages`` and ``/organizations/cost_report``, the CSV files of both
consoles, OpenRouter's ``/activity``, its CSV file and its export of generations, and a plain CSV
file; see ``docs/commands.md``. Credits are negative costs.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from catalog.sync.documents import InvalidRow, UnreadableList, rate_text, read_value
from config.api.text import NOT_STORABLE
from config.bulk.problems import Problems

MAX_LINES: Final = 1_000_000
HEADER: Final = "id,date,model,requests,prompt_tokens,completion_tokens,cost"
_MAX_COUNT: Final = 10**15
_CENTS: Final = 2
# The first service that sold tokens opened in June 2020. An earlier day is a cell with another
# meaning, such as the zero of a spreadsheet, and would have every generation read.
_FIRST_DAY: Final = date(2020, 1, 1)
# The days after each day are needed too.
_LAST_DAY: Final = date(9998, 12, 31)

# The columns of a CSV file, each under the names that providers give it. The first name that a file
# has counts; names in one group are added up.
_ID: Final = ("id", "generation_id")
_DAY: Final = ("date", "day", "created_at", "usage_date_utc", "start_time_iso", "start_time")
_MODEL: Final = ("model", "slug", "model_permaslug", "model_version", "line_item")
# What is billed besides the use of a model has one of these.
_CHARGE: Final = ("line_item", "description", "cost_type")
_REQUESTS: Final = (("requests",), ("num_model_requests",))
_PROMPT: Final = (
    ("prompt_tokens",), ("tokens_prompt",), ("input_tokens",),
    ("usage_input_tokens_no_cache", "usage_input_tokens_cache_write_5m",
     "usage_input_tokens_cache_write_1h", "usage_input_tokens_cache_read"),
)  # fmt: skip
_COMPLETION: Final = (
    ("completion_tokens",), ("tokens_completion",), ("output_tokens",), ("usage_output_tokens",),
)  # fmt: skip
_COST: Final = (("cost",), ("cost_total",), ("cost_usd",), ("amount_value",), ("usage",))
_CURRENCY: Final = ("currency", "amount_currency")
# The columns by which the file of costs of Anthropic's console is known; its costs are rounded.
_ROUNDED: Final = ("usage_date_utc", "cost_usd")
_ANTHROPIC_PROMPT: Final = ("uncached_input_tokens", "cache_read_input_tokens")


class InvoiceLine(NamedTuple):
    """A line of a provider's bill: one generation, or (``id`` empty) a model's use on a day.

    Days are UTC days. ``cost`` is in USD. ``None`` means that the export does not say it. Without
    an ``id`` and a ``model``, nothing was used on the day. ``other_name`` is a second name that the
    export has of the model. The true cost is at most ``rounding`` USD away.
    """

    id: str
    day: date
    model: str
    requests: int | None = None
    prompt: int | None = None
    completion: int | None = None
    cost: Decimal | None = None
    other_name: str = ""
    rounding: Decimal = Decimal(0)


def read_invoice(data: bytes) -> list[InvoiceLine]:
    """Returns the lines of an export; raises :class:`ImportRefused` with its problems."""
    problems = Problems()
    lines: list[InvoiceLine] = []
    data = data.removeprefix(codecs.BOM_UTF8)
    rows = _iter_json(data, problems) if data.lstrip()[:1] in (b"{", b"[") else _iter_csv(
        data, problems
    )  # fmt: skip
    for place, read in rows:
        try:
            lines.append(read())
        except InvalidRow as exc:
            problems.add_at(place, str(exc))
        if len(lines) > MAX_LINES:
            problems.add_at(place, f"the export has more than {MAX_LINES} lines; split it by day")
            break
    problems.raise_if_any()
    if not lines:
        problems.add_at("the export", "has no lines")
        problems.raise_if_any()
    return lines


_Place = tuple[str, Callable[[], InvoiceLine]]
"""Where a row of an export stands, and the function that makes a line of it."""


def _iter_csv(data: bytes, problems: Problems) -> Iterator[_Place]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        problems.stop(1, "not UTF-8")
    # Only line feeds end a line: the name of an application may have other separators.
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        # Headers for people, such as "Prompt Tokens", have the names of the JSON.
        reader.fieldnames = [_header(name) for name in reader.fieldnames or ()]
    except csv.Error as exc:
        problems.stop(1, f"not CSV: {exc}")
    names = set(reader.fieldnames)
    if repeated := {name for name in names if name and reader.fieldnames.count(name) > 1}:
        problems.stop(1, f"the header names {min(repeated)} twice")
    measures = [_find(group, names) for group in (_REQUESTS, _PROMPT, _COMPLETION, _COST)]
    day = next((name for name in _DAY if name in names), None)
    model = next((name for name in _MODEL if name in names), None)
    if day is None or model is None or not any(measures):
        problems.stop(1, f"no header of a known export. A plain one is {HEADER}")
    key = next((name for name in _ID if name in names), None)
    try:
        for row in reader:
            if not any(row.values()):
                continue  # spreadsheets write lines of empty cells
            make = partial(_read_row, row, key, day, model, measures)
            yield f"line {reader.line_num}", make
    except csv.Error as exc:
        problems.stop(reader.line_num, f"not CSV: {exc}")


def _header(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _find(groups: Iterable[tuple[str, ...]], names: set[str]) -> tuple[str, ...]:
    """Returns the first group of which the header has a name, reduced to those that it has."""
    for group in groups:
        if found := tuple(name for name in group if name in names):
            return found
    return ()


def _read_row(
    row: Mapping[str, Any], key: str | None, day: str, model: str, measures: list[tuple[str, ...]]
) -> InvoiceLine:
    requests, prompt, completion, cost = measures
    # A decimal comma makes one cell two, for instance.
    if None in row or None in row.values():
        raise InvalidRow("has more or fewer cells than the header")
    if cost:
        for name in _CURRENCY:
            _require_usd(row.get(name))
    amount = _read_cost(row[cost[0]]) if cost else None
    if not any(row[name] for name in (key or model, model, *requests, *prompt, *completion, *cost)):
        return _read_unused(row[day])
    return InvoiceLine(
        id=_text(row.get(key)) if key else "",
        day=_read_day(row[day]),
        model=_read_model(row[model] or _name_charge(row, amount)),
        requests=_add_counts(row, requests),
        prompt=_add_counts(row, prompt),
        completion=_add_counts(row, completion),
        cost=amount,
        rounding=_read_rounding(row[cost[0]]) if (day, *cost) == _ROUNDED else Decimal(0),
    )


def _iter_json(data: bytes, problems: Problems) -> Iterator[_Place]:
    try:
        document = read_value(data)
    except UnreadableList as exc:
        problems.add_at("the export", str(exc))
        return
    if isinstance(document, list):  # the data alone, as people cut it out
        document = {"data": document}
    if document.get("has_more") is True:
        problems.add_at("the export", "is one page of several; join the pages' data in one file")
        return
    buckets = document.get("data")
    if not isinstance(buckets, list):
        problems.add_at("the export", "has no list of data")
        return
    for number, bucket in enumerate(buckets):
        if not isinstance(bucket, dict):
            problems.add_at(f"data[{number}]", "is not an object")
            continue
        results = bucket.get("results")
        if not isinstance(results, list):
            yield f"data[{number}]", partial(_read_activity, bucket)
            continue
        start = bucket.get("start_time", bucket.get("starting_at"))
        if not results:
            yield f"data[{number}]", partial(_read_unused, start)
        for index, result in enumerate(results):
            yield f"data[{number}].results[{index}]", partial(_read_result, result, start)


def _read_activity(row: Mapping[str, Any]) -> InvoiceLine:
    """Reads a row of OpenRouter's activity."""
    return InvoiceLine(
        id=_text(row.get("id") or row.get("generation_id")),
        day=_read_day(row.get("date") or row.get("created_at")),
        model=_read_model(row.get("model") or row.get("model_permaslug")),
        requests=_add_counts(row, ("requests",)),
        prompt=_add_counts(row, ("prompt_tokens",)),
        completion=_add_counts(row, ("completion_tokens",)),
        cost=_read_cost(row["usage"]) if row.get("usage") is not None else None,
        other_name=_text(row.get("model_permaslug")),
    )


def _read_result(row: Any, start: Any) -> InvoiceLine:
    """Reads a result of a bucket of OpenAI or Anthropic."""
    if not isinstance(row, dict):
        raise InvalidRow("is not an object")
    amount = row.get("amount")
    cost = None
    if isinstance(amount, dict):
        _require_usd(amount.get("currency"))
        cost = _read_cost(amount.get("value"))
    elif amount is not None:
        # Anthropic's amounts are in cents.
        _require_usd(row.get("currency"))
        cost = _read_cost(amount, per=_CENTS)
    written = row.get("cache_creation")
    return InvoiceLine(
        id="",
        day=_read_day(start),
        model=_read_model(row.get("model") or _name_charge(row, cost)),
        requests=_add_counts(row, ("num_model_requests",)),
        prompt=_sum_known(
            _add_counts(row, ("input_tokens",)),
            _add_counts(row, _ANTHROPIC_PROMPT),
            _add_counts(written, tuple(written)) if isinstance(written, dict) else None,
        ),
        completion=_add_counts(row, ("output_tokens",)),
        cost=cost,
    )


def _read_unused(start: Any) -> InvoiceLine:
    """Reads the day of a bucket without a result, which OpenAI's files have too."""
    return InvoiceLine("", _read_day(start), "")


def _sum_known(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _add_counts(row: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Returns the sum of the counts of these names; ``None`` if the row has none of them."""
    found = []
    for name in names:
        value = row.get(name)
        if value is None or value == "":
            continue
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 16:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
            raise InvalidRow(f"{name} is not a count")
        found.append(value)
    return _sum_known(*found)


def _read_cost(value: Any, *, per: int = 0) -> Decimal | None:
    """Returns an amount; a credit is negative."""
    if value is None or value == "":
        return None
    sign = 1
    if isinstance(value, str) and value.startswith("-"):
        sign, value = -1, value[1:]
    elif isinstance(value, int | Decimal) and value < 0:
        sign, value = -1, Decimal(value).copy_abs()
    try:
        return sign * Decimal(rate_text(value, per=per))
    except InvalidRow as exc:
        raise InvalidRow(f"the cost {exc}") from None


def _read_rounding(cost: str) -> Decimal:
    """Returns half of the last decimal of a rounded cost, at most half a cent.

    A spreadsheet leaves out the zeros at the end.
    """
    if not cost:
        return Decimal(0)
    return Decimal((0, (5,), min(int(Decimal(cost).as_tuple().exponent), -_CENTS) - 1))


def _require_usd(currency: Any) -> None:
    """Raises :class:`InvalidRow` for an amount in another currency; without a name it is USD."""
    if currency not in (None, "") and str(currency).upper() != "USD":
        raise InvalidRow("has a cost in another currency than USD")


def _read_day(value: Any) -> date:
    """Returns the UTC day of a day, a time in ISO 8601, or a time in Unix seconds."""
    text = str(value)
    try:
        day = _parse_day(text)
    except (ValueError, OverflowError, OSError):
        raise InvalidRow("has no day such as 2026-11-12") from None
    if day < _FIRST_DAY:
        raise InvalidRow(f"has a day before {_FIRST_DAY}")
    if day > _LAST_DAY:
        raise InvalidRow(f"has a day after {_LAST_DAY}")
    return day


def _parse_day(text: str) -> date:
    if text.isascii() and text.isdecimal() and len(text) != len("20261112"):
        return datetime.fromtimestamp(int(text), UTC).date()
    if len(text) in (len("20261112"), len("2026-11-12")):
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text.removesuffix(" UTC"))
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).date()


def _read_model(value: Any) -> str:
    """Returns the name of a model; a line item such as ``gpt-4o, input`` begins with it."""
    text = _text(value).partition(", ")[0]
    if not text:
        raise InvalidRow(
            "names no model; group the export by model, or OpenAI's costs by line item"
        )
    return text


def _name_charge(row: Mapping[str, Any], cost: Decimal | None) -> Any:
    """Returns the name of a charge without a model, such as Anthropic's for searches."""
    unnamed = "credit" if cost is not None and cost < 0 else None
    return next((row[name] for name in _CHARGE if row.get(name)), unnamed)


def _text(value: Any) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if NOT_STORABLE.search(text):  # such a text cannot be shown, either
        raise InvalidRow("has a name with NUL or a lone surrogate")
    return text
