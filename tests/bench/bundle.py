"""Renews the prices of the bundled catalogue: python -m tests.bench.bundle FILE --as-of DAY

``FILE`` is the price file of a release of the Python package litellm.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from catalog import dialects
from catalog.capabilities import Capabilities
from catalog.operations import served_operations
from catalog.sync import litellm
from catalog.sync.documents import UnreadableList, read_json
from catalog.sync.offers import PriceList, offer_key
from config.local.bootstrap import PROJECT

_BUNDLED: Final = PROJECT / "catalog" / "data" / "catalogue.json"
_ZEROS: Final = {"prompt": "0", "completion": "0", "image": "0", "request": "0"}
_NOTE: Final = (
    "list prices in USD of the standard service tier, as the price file of the Python package "
    "litellm carries them; dates, limits, addresses and policies are public facts, not checked "
    "one by one; check them against your contract before you bill by them"
)
_SOURCE: Final = "litellm"


def main(arguments: Sequence[str]) -> None:
    """Runs the command; writes nothing if the list has no price of any endpoint."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bundle", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--as-of", metavar="DAY", type=date.fromisoformat, required=True)
    parser.add_argument("--output", metavar="FILE", type=Path, default=_BUNDLED)
    options = parser.parse_args(arguments)
    try:
        found = litellm.read_list(read_json(options.file.read_bytes()), options.as_of)
    except UnreadableList as exc:
        parser.error(str(exc))
    bundle, left_out = _rebuild(json.loads(_BUNDLED.read_text()), found, as_of=options.as_of)
    if not bundle["endpoints"]:
        parser.error("The list has no price of any endpoint.")
    options.output.write_text(json.dumps(bundle, indent=2, ensure_ascii=False) + "\n")
    print(*(f"left out: {line}" for line in left_out), sep="\n")


def _rebuild(
    bundle: Mapping[str, Any], found: PriceList, *, as_of: date
) -> tuple[dict[str, Any], list[str]]:
    """Returns the catalogue with the prices and limits of a list, and what it leaves out.

    Rows keep their facts. An endpoint without a price in the list is left out, and so is one that
    no route serves; then the models and providers without any endpoint.
    """
    left_out: list[str] = []
    models = {model["canonical_slug"]: model for model in bundle["models"]}
    providers = {provider["slug"]: provider for provider in bundle["providers"]}
    endpoints = []
    for endpoint in bundle["endpoints"]:
        name = f"{endpoint['model']} {endpoint['provider']} {endpoint['upstream_model_id']}"
        offer = found.offers.get(offer_key(endpoint["provider"], endpoint["upstream_model_id"]))
        if not _is_served(models[endpoint["model"]], providers[endpoint["provider"]]):
            left_out.append(f"{name}: no route serves it")
        elif offer is None or not (offer.lines or _is_priced(offer.pricing)):
            left_out.append(f"{name}: the list has no price")
        else:
            lines = {"lines": list(offer.lines)} if offer.lines else {}
            pricing = {**_ZEROS, **offer.pricing}
            endpoints.append(_insert(endpoint, "pricing", {"pricing": pricing, **lines}))
    served = {endpoint["model"] for endpoint in endpoints}
    used = {endpoint["provider"] for endpoint in endpoints}
    left_out += [f"{slug}: no endpoint is left" for slug in sorted(models.keys() - served)]
    left_out += [f"{slug}: no endpoint is left" for slug in sorted(providers.keys() - used)]
    return {
        "about": {"as_of": as_of.isoformat(), "source": _SOURCE, "note": _NOTE},
        "providers": [row for slug, row in sorted(providers.items()) if slug in used],
        "models": sorted(
            (row for slug, row in models.items() if slug in served), key=lambda row: row["id"]
        ),
        "endpoints": sorted(endpoints, key=_place),
    }, left_out


def _is_served(model: Mapping[str, Any], provider: Mapping[str, Any]) -> bool:
    capabilities = msgspec.convert(model.get("capabilities", {}), Capabilities)
    dialect = dialects.get(provider["dialect"], capabilities)
    return bool(served_operations(model["architecture"]["output_modalities"], dialect))


def _is_priced(pricing: Mapping[str, Any]) -> bool:
    return any(Decimal(rate) > 0 for name, rate in pricing.items() if name != "overrides")


def _insert(row: Mapping[str, Any], after: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row with these members in the place of one of them, in their order."""
    made: dict[str, Any] = {}
    for name, value in row.items():
        if name == after:
            made |= members
        elif name not in members and name != "lines":
            made[name] = value
    return made


def _place(endpoint: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return (
        endpoint["model"], endpoint["provider"], endpoint["upstream_model_id"], endpoint["region"],
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
