"""The checks of a validation: their reasons, and the result that collects them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from catalog.pricing import Usage
from endpoints.models import Validation

Outcome = Validation.Outcome


class Reason(StrEnum):
    """The reason of a failed check, as the public API names it."""

    DATABASE_ERROR = "database_error"
    ENDPOINT_LIMIT_REACHED = "endpoint_limit_reached"
    INVALID_BASE_URL = "invalid_base_url"
    MODEL_NOT_FOUND = "model_not_found"
    PROVIDER_NOT_FOUND = "provider_not_found"
    ENDPOINT_NOT_FOUND = "endpoint_not_found"
    WORKSPACE_NOT_FOUND = "workspace_not_found"
    NO_BYOK_KEY = "no_byok_key"
    KEY_DECRYPTION_FAILED = "key_decryption_failed"
    UPSTREAM_ERROR = "upstream_error"
    INVALID_RESPONSE = "invalid_response"
    INVALID_STREAM = "invalid_stream"
    MISSING_USAGE = "missing_usage"
    MODEL_MISMATCH = "model_mismatch"
    NOT_VALIDATED = "not_validated"
    VALIDATION_STALE = "validation_stale"


# Why a deployment could not be reached, or its answer not be read, as its owner learns it.
KINDS: Final = ("certificate", "refused", "name", "timeout", "reset", "protocol")


class CheckFailed(Exception):
    """Ends a validation at a failed check after which later checks are meaningless."""

    def __init__(
        self,
        name: str,
        reason: Reason,
        *,
        outcome: Outcome = Outcome.FAILED,
        **details: Any,
    ) -> None:
        super().__init__(name)
        self.outcome = outcome
        self.check = {"name": name, "passed": False, "reason": str(reason), **details}


@dataclass(slots=True)
class Result:
    """The results of one validation, collected while it runs.

    ``has_sent`` says whether the secret was sent to the host.
    """

    checks: list[dict[str, Any]] = field(default_factory=list)
    outcome: Outcome = Outcome.PASSED
    usages: list[Usage] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)
    operations: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    has_sent: bool = False

    def add_reached(self) -> None:
        """Adds the passed check of the base URL, once: the egress policy allowed the connection."""
        if all(check["name"] != "base_url" for check in self.checks):
            self.add_pass("base_url")

    def add_pass(self, name: str, *, notes: Iterable[str] = (), **details: Any) -> None:
        """Adds a passed check; ``notes`` say what requests get repaired."""
        noted = {"notes": sorted(notes)} if notes else {}
        self.checks.append({"name": name, "passed": True, **details, **noted})

    def add_failure(self, name: str, reason: Reason, **details: Any) -> None:
        self.checks.append({"name": name, "passed": False, "reason": str(reason), **details})
        self.outcome = Outcome.FAILED
