"""Private endpoints: an organization's own deployments."""

from endpoints.models.attestation import Attestation
from endpoints.models.drafts import (
    Draft,
    InvalidBaseURL,
    OperationNotServed,
    ProviderNotFound,
    canonical_base_url,
    refusal_of_operation,
    require_base_url,
)
from endpoints.models.endpoint import (
    EndpointLimitReached,
    EndpointNotFound,
    NotValidated,
    PrivateEndpoint,
    ValidationStale,
)
from endpoints.models.slots import ValidationsBusy, ValidationSlot
from endpoints.models.validation import Validation, base_url_refused

__all__ = [
    "Attestation",
    "Draft",
    "EndpointLimitReached",
    "EndpointNotFound",
    "InvalidBaseURL",
    "NotValidated",
    "OperationNotServed",
    "PrivateEndpoint",
    "ProviderNotFound",
    "Validation",
    "ValidationSlot",
    "ValidationStale",
    "ValidationsBusy",
    "base_url_refused",
    "canonical_base_url",
    "refusal_of_operation",
    "require_base_url",
]
