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
    AlreadyActive,
    EndpointLimitReached,
    EndpointNotFound,
    NotValidated,
    PrivateEndpoint,
    Replacement,
    ValidationStale,
)
from endpoints.models.own_models import (
    ModelExists,
    ModelInUse,
    NewModel,
    OwnModel,
    OwnModelNotFound,
    create_own_model,
    edit_own_model,
    remove_own_model,
)
from endpoints.models.providers import (
    PrivateProvider,
    PrivateProviderNotFound,
    ProviderExists,
    ProviderInUse,
)
from endpoints.models.settings import InvalidParameters, InvalidSettings, show_settings
from endpoints.models.slots import ValidationsBusy, ValidationSlot
from endpoints.models.validation import (
    IMAGE_INPUT,
    Proof,
    Validation,
    base_url_refused,
    lost_operations,
    offered_parameters,
    proven_names,
)

__all__ = [
    "IMAGE_INPUT",
    "AlreadyActive",
    "Attestation",
    "Draft",
    "EndpointLimitReached",
    "EndpointNotFound",
    "InvalidBaseURL",
    "InvalidParameters",
    "InvalidSettings",
    "ModelExists",
    "ModelInUse",
    "NewModel",
    "NotValidated",
    "OperationNotServed",
    "OwnModel",
    "OwnModelNotFound",
    "PrivateEndpoint",
    "PrivateProvider",
    "PrivateProviderNotFound",
    "Proof",
    "ProviderExists",
    "ProviderInUse",
    "ProviderNotFound",
    "Replacement",
    "Validation",
    "ValidationSlot",
    "ValidationStale",
    "ValidationsBusy",
    "base_url_refused",
    "canonical_base_url",
    "create_own_model",
    "edit_own_model",
    "lost_operations",
    "offered_parameters",
    "proven_names",
    "refusal_of_operation",
    "remove_own_model",
    "require_base_url",
    "show_settings",
]
