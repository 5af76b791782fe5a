"""Writes generations as FOCUS 1.2, the cost and usage specification of the FinOps Foundation.

https://focus.finops.org/focus-specification/v1-2/ defines the columns. Each ended generation is one
charge; columns of our own begin with ``x_``. The billing account is the organization, and the sub
account its workspace. What a BYOK credential paid to the provider is no charge of ours: it stands
in ``x_UpstreamCost``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from config.bulk.tables import Column, ColumnKind, Row, format_usd
from config.partitions.spans import MONTH
from inference.archive.exports import ExportQuery

_ISSUER: Final = "Causeway"
_SECOND: Final = timedelta(seconds=1)


class _Charge(NamedTuple):
    """The columns that are selected of a generation."""

    id: str
    created_at: datetime
    organization_id: str
    organization: str
    workspace_id: str
    workspace: str
    api_key_hash: str | None
    api_key: str | None
    end_user: str | None
    region: str
    operation: str
    model: str
    provider_name: str
    is_byok: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    units: str | None
    cost_nano: int
    upstream_cost_nano: int
    duration_ms: int | None


QUERY: Final = ExportQuery(
    "g.id, g.created_at, g.organization_id::text, o.name, g.workspace_id::text, w.name, k.digest, "
    "k.name, g.end_user, g.region, g.operation, g.model, g.provider_name, g.is_byok, "
    "g.prompt_tokens, g.completion_tokens, g.units::text, g.cost_nano, g.upstream_cost_nano, "
    "g.duration_ms",
    joins="JOIN accounts_organization AS o ON o.id = g.organization_id "
    "JOIN accounts_workspace AS w ON w.id = g.workspace_id",
    condition="g.status <> 'pending'",
)
_NAMES: Final = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd",
    "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost",
    "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingCategory", "PricingQuantity",
    "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName", "ServiceCategory",
    "ServiceName", "ServiceSubcategory", "SubAccountId", "SubAccountName", "x_ApiKeyHash",
    "x_ApiKeyName", "x_CompletionTokens", "x_EndUser", "x_GenerationId", "x_IsByok", "x_Operation",
    "x_PromptTokens", "x_UpstreamCost",
)  # fmt: skip
COLUMNS: Final = tuple(Column(name, ColumnKind.TEXT) for name in _NAMES)
# What is measured of a generation without tokens: the member of its units, and the name.
_MEASURES: Final = (
    ("output_images", "Images", 1), ("images", "Images", 1), ("milliseconds", "Seconds", 1000),
    ("characters", "Characters", 1), ("searches", "Searches", 1),
)  # fmt: skip


def write_charges(rows: Iterable[Row]) -> Iterator[Row]:
    """Yields the row of each charge, in the order of the columns."""
    for row in rows:
        yield [*_describe(_Charge._make(row)).values()]


def _describe(charge: _Charge) -> dict[str, str | None]:
    start = charge.created_at.astimezone(UTC).replace(microsecond=0)
    month = MONTH.begin(start)
    seconds = -(-(charge.duration_ms or 0) // 1000)
    quantity, unit = _measure(charge)
    billed = _amount(charge.cost_nano)
    values = {
        "BilledCost": billed,
        "BillingAccountId": charge.organization_id,
        "BillingAccountName": charge.organization,
        "BillingCurrency": "USD",
        "BillingPeriodEnd": _time(MONTH.following(month)),
        "BillingPeriodStart": _time(month),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"{charge.operation} with {charge.model} at {charge.provider_name}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _time(start + max(seconds, 1) * _SECOND),
        "ChargePeriodStart": _time(start),
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "ContractedCost": billed,
        "EffectiveCost": billed,
        "InvoiceIssuerName": _ISSUER,
        "ListCost": billed,
        "PricingCategory": "Standard",
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        # Who sells, who invoices, and who produces: the model runs at its provider.
        "ProviderName": _ISSUER,
        "PublisherName": charge.provider_name,
        "RegionId": charge.region,
        "RegionName": charge.region,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": charge.model,
        "ServiceSubcategory": "Generative AI",
        "SubAccountId": charge.workspace_id,
        "SubAccountName": charge.workspace,
        "x_ApiKeyHash": charge.api_key_hash,
        "x_ApiKeyName": charge.api_key,
        "x_CompletionTokens": _count(charge.completion_tokens),
        "x_EndUser": charge.end_user,
        "x_GenerationId": charge.id,
        "x_IsByok": "true" if charge.is_byok else "false",
        "x_Operation": charge.operation,
        "x_PromptTokens": _count(charge.prompt_tokens),
        "x_UpstreamCost": _amount(charge.upstream_cost_nano),
    }
    return {name: values[name] for name in _NAMES}


def _measure(charge: _Charge) -> tuple[str, str]:
    """Returns the quantity that was used, with a decimal point, and its unit."""
    if tokens := (charge.prompt_tokens or 0) + (charge.completion_tokens or 0):
        return f"{tokens}.0", "Tokens"
    units: dict[str, Any] = json.loads(charge.units or "{}")
    for name, unit, per in _MEASURES:
        if isinstance(count := units.get(name), int) and count > 0:
            return (f"{count}.0" if per == 1 else f"{count / per:.3f}"), unit
    return "1.0", "Requests"


def _amount(nano: int) -> str:
    text = format_usd(nano)
    return text if "." in text else f"{text}.0"


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number}.0"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
