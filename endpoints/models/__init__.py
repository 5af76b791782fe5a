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
