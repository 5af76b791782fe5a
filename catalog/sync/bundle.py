"""Makes the bundled catalogue's prices anew from a price list of LiteLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import msgspec

from catalog import dialects
from catalog.capabilities import Capabilities
from catalog.operations import served_operations
from catalog.sync.offers import PriceList, offer_key
from catalog.sync.plans.comparing import is_priced

_ZEROS: Final = {"prompt": "0", "completion": "0", "image": "0", "request": "0"}
_NOTE: Final = (
    "list prices in USD of the standard service tier, as the price file of the Python package "
    "litellm carries them; dates, limits, addresses and policies are public facts, not checked "
    "one by one; check them against your contract before you bill by them"
)
_SOURCE: Final = "litellm"


def rebuild_bundle(
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
        elif offer is None or not (is_priced(offer.pricing) or offer.lines):
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


def render_bundle(bundle: Mapping[str, Any]) -> str:
    return json.dumps(bundle, indent=2, ensure_ascii=False) + "\n"


def _is_served(model: Mapping[str, Any], provider: Mapping[str, Any]) -> bool:
    capabilities = msgspec.convert(model.get("capabilities", {}), Capabilities)
    dialect = dialects.get(provider["dialect"], capabilities)
    return bool(served_operations(model["architecture"]["output_modalities"], dialect))


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
