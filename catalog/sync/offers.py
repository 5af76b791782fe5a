"""The common form of all price lists: offers of models by providers; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from catalog.pricing.rules import KIND_OF_KEY, KINDS
from catalog.sync.documents import MAX_ROWS, InvalidRow, UnreadableList, rate_text

_MAX_COUNT: Final = 10**12
_MAX_REFUSED: Final = 100
_MAX_NAME: Final = 120
_BATCH: Final = ":batch"
# The rates that each pricing object has.
FREE: Final[Mapping[str, Any]] = {"prompt": "0", "completion": "0"}


class ListOffer(msgspec.Struct, frozen=True):
    """One row of a price list: a model at a provider, with its price.

    ``name`` is its name in the list. ``pricing`` has the keys of a catalogue file, as texts of
    decimals; it is empty where the list states no price. ``model`` has the members of a model's row
    and is ``None`` where the list does not tell who made the model. ``is_unclear`` says that the
    list does not tell what the model does, or in which format. Without ``has_limits``, its limits
    are used for a new endpoint alone: the list means something else by them. ``uncharged`` names
    the prices of uses that we cannot charge.
    """

    name: str
    provider: str
    upstream_model_id: str
    pricing: Mapping[str, Any]
    lines: tuple[Mapping[str, Any], ...] = ()
    context_length: int | None = None
    max_completion_tokens: int | None = None
    model: Mapping[str, Any] | None = None
    is_unclear: bool = False
    has_limits: bool = True
    uncharged: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return offer_key(self.provider, self.upstream_model_id)


def offer_key(provider: str, upstream_model_id: str) -> tuple[str, str]:
    """Returns the key by which an offer and an endpoint are found; lists spell case differently."""
    return provider, upstream_model_id.lower()


class PriceList(msgspec.Struct):
    """What a source lists.

    ``offers`` are found by provider and the model's name there. ``providers`` are the rows of
    providers that the source itself is. ``refused`` has the rows that cannot be used, at most 100
    of ``refused_count``, each with its problem; ``ignored`` counts rows of other providers and of
    models that no route serves.
    """

    offers: dict[tuple[str, str], ListOffer] = {}
    providers: tuple[Mapping[str, Any], ...] = ()
    refused: list[tuple[str, str]] = []
    refused_count: int = 0
    ignored: int = 0

    def refuse(self, name: str, problem: str) -> None:
        self.refused_count += 1
        if len(self.refused) < _MAX_REFUSED:
            self.refused.append((clean_name(name), problem))


def clean_name(name: str) -> str:
    """Returns a name of a list safe to print: no control characters, at most 120 characters."""
    shown = "".join(char if char.isprintable() else "\ufffd" for char in name[:_MAX_NAME])
    return shown if len(name) <= _MAX_NAME else f"{shown}…"


def read_offers(
    rows: Iterable[tuple[str, Any]], make: Callable[[str, Mapping[str, Any]], ListOffer | None]
) -> PriceList:
    """Returns the offers that ``make`` makes of the rows; a row that it refuses is reported.

    Raises :class:`UnreadableList` for a list of too many rows, and for one without a usable row: an
    error page that happens to be JSON changes nothing.
    """
    found = PriceList(offers={}, refused=[])
    for number, (name, row) in enumerate(rows, 1):
        if number > MAX_ROWS:
            raise UnreadableList(f"The list has more than {MAX_ROWS} rows.")
        try:
            if not isinstance(row, dict):
                raise InvalidRow("is not an object")
            offer = make(name, row)
        except InvalidRow as exc:
            found.refuse(name, str(exc))
            continue
        # Of several rows for one endpoint, the first counts. A row of batches has half the price,
        # and serves no chat.
        if offer is None or offer.key in found.offers or offer.key[1].endswith(_BATCH):
            found.ignored += 1
        else:
            found.offers[offer.key] = _leave_out_repeats(offer)
    if not found.offers:
        raise UnreadableList("The list has no row that can be used. Is it of this source?")
    return found


def _leave_out_repeats(offer: ListOffer) -> ListOffer:
    """Returns an offer without the rates that only repeat the one that applies without them.

    Where overrides change the repeated rate alone, such a rate would hide them: images in a long
    prompt would cost what they cost in a short one.
    """
    pricing, overrides = offer.pricing, offer.pricing.get("overrides", ())
    changed = {KIND_OF_KEY[key].name for each in overrides for key in each if key in KIND_OF_KEY}
    stated = {KIND_OF_KEY[key].name: rate for key, rate in pricing.items() if key in KIND_OF_KEY}
    stated |= {_name_line(line): line["price"] for line in offer.lines}
    repeated = set()
    for kind in KINDS:
        followed = next((name for name in kind.otherwise if name in stated), None)
        if followed not in changed or kind.name in changed:
            continue
        if stated.get(kind.name) == stated[followed]:
            repeated.add(kind.name)
            del stated[kind.name]
    if not repeated:
        return offer
    names = {key for key, kind in KIND_OF_KEY.items() if kind.name in repeated}
    return replace(
        offer,
        pricing={key: rate for key, rate in pricing.items() if key not in names},
        lines=tuple(line for line in offer.lines if _name_line(line) not in repeated),
    )


def _name_line(line: Mapping[str, Any]) -> tuple[Any, str]:
    return line["billable"], line.get("variant", "")


def read_rate(row: Mapping[str, Any], key: str, *, per: int = 0) -> str | None:
    """Returns the rate of a key of a row; ``None`` if the row states none."""
    value = row.get(key)
    if value is None:
        return None
    try:
        return rate_text(value, per=per)
    except InvalidRow as exc:
        raise InvalidRow(f"{key} {exc}") from None


def read_rates(row: Mapping[str, Any], names: Mapping[str, str], *, per: int = 0) -> dict[str, Any]:
    """Returns the rates of a row by our names; one of 0 for anything but tokens is none."""
    return {
        name: rate
        for key, name in names.items()
        if (rate := read_rate(row, key, per=per)) is not None and (rate != "0" or name in FREE)
    }


def read_count(row: Mapping[str, Any], key: str) -> int | None:
    """Returns a positive whole number of a row; ``None`` if it states none, or 0."""
    value = row.get(key)
    if value is None or isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    if value > _MAX_COUNT:
        raise InvalidRow(f"{key} is larger than {_MAX_COUNT}")
    return value


def read_words(value: Any) -> list[str]:
    """Returns the texts of a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [word for word in value if isinstance(word, str)]


def read_day(value: Any) -> date | None:
    """Returns the day of a text such as ``2026-11-12`` or ``2026-11``; ``None`` for others."""
    if not isinstance(value, str):
        return None
    try:
        return date.fromisoformat(value if len(value) > 7 else f"{value}-01")
    except ValueError:
        return None


def unix_time(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def describe_model(
    slug: str,
    *,
    name: str,
    created: date,
    inputs: list[str],
    outputs: list[str],
    context_length: int | None,
    parameters: list[str] | None = None,
    canonical_slug: str | None = None,
) -> dict[str, Any]:
    """Returns the members of a model's row."""
    is_known = bool(inputs and outputs)
    return {
        "id": slug,
        "canonical_slug": canonical_slug or slug,
        "name": name,
        "created": unix_time(created),
        "context_length": context_length,
        "architecture": {
            "input_modalities": inputs,
            "output_modalities": outputs,
            "modality": f"{'+'.join(inputs)}->{'+'.join(outputs)}" if is_known else None,
        },
        "supported_parameters": parameters or [],
    }
