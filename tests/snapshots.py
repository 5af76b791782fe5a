"""What the database holds, for the proof that a refusal changed nothing."""

from __future__ import annotations

from typing import Any

from accounts.models import ApiKey, ByokCredential, Organization, Workspace
from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider
from endpoints.models import PrivateEndpoint, Validation
from endusers.models import EndUser

_TABLES = (
    Organization,
    Workspace,
    ApiKey,
    ByokCredential,
    Provider,
    LanguageModel,
    ModelEndpoint,
    PriceVersion,
    PrivateEndpoint,
    Validation,
    EndUser,
)


def everything() -> dict[str, list[dict[str, Any]]]:
    """Returns every row of every table that a management route can write."""
    return {
        table.__name__: [
            {name: bytes(value) if isinstance(value, memoryview) else value
             for name, value in row.items()}
            for row in table._base_manager.order_by("pk").values()
        ]
        for table in _TABLES
    }  # fmt: skip
