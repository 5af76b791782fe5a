from typing import ClassVar, Final

from config.apps import (
    HOST,
    INTERNAL,
    CausewayApp,
    MenuEntry,
    MenuPage,
    ModelDeclaration,
    Role,
    Tab,
    Waiting,
)
from config.events.kinds import EventKind

_ENDPOINT: Final = {
    "id": "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a10",
    "model": "acme/falcon-9-2026-06-01",
    "provider": "Acme AI",
    "upstream_model_id": "falcon-9",
}


class EndpointsConfig(CausewayApp):
    default = True
    name = "endpoints"
    verbose_name = "Private endpoints"
    menu = (
        MenuEntry(
            "Endpoints",
            "hub",
            4,
            (
                MenuPage("Private endpoints", "endpoints.privateendpoint"),
                MenuPage("Validations", "endpoints.validation"),
                MenuPage("Own models", "endpoints.ownmodel"),
                MenuPage("Own providers", "endpoints.privateprovider"),
            ),
        ),
    )
    events: ClassVar = (
        EventKind(
            "endpoint.activated",
            "A private endpoint is activated, or enabled again.",
            "The endpoint of {model} at {provider} is active.",
            _ENDPOINT,
        ),
        EventKind(
            "endpoint.disabled",
            "A private endpoint is disabled.",
            "The endpoint of {model} at {provider} is disabled.",
            {**_ENDPOINT, "reason": "Moved to another region."},
        ),
        EventKind(
            "endpoint.drifted",
            "A private endpoint answers otherwise than when it was activated.",
            "The endpoint of {model} at {provider} is no longer the deployment that was activated.",
            {**_ENDPOINT, "changes": [{"name": "prompt_tokens", "was": 21, "is": 34}]},
        ),
        EventKind(
            "validation.failed",
            "A validation of a private endpoint fails.",
            "A validation of the endpoint of {model} at {provider} failed.",
            {**_ENDPOINT, "failed": [{"check": "stream", "reason": "invalid_stream"}]},
        ),
    )
    models_declared: ClassVar = {
        "privateendpoint": ModelDeclaration(
            "dns",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Endpoints", 5),
            finders=(HOST,),
            waiting=(
                Waiting(
                    "Drifted endpoints",
                    "endpoints.change_privateendpoint",
                    {"drifted_at__isnull": False, "deleted_at": None},
                    {"drifted_at__isnull": "False"},
                ),
            ),
        ),
        "ownmodel": ModelDeclaration(
            "model_training",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Own models", 18),
        ),
        "privateprovider": ModelDeclaration(
            "host",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Own providers", 19),
        ),
        "validation": ModelDeclaration("fact_check"),
        "attestation": ModelDeclaration(),
        "validationslot": INTERNAL,
    }
