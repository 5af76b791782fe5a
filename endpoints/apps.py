from typing import ClassVar

from config.apps import HOST, INTERNAL, CausewayApp, ModelDeclaration, Role, Section, Tab


class EndpointsConfig(CausewayApp):
    default = True
    name = "endpoints"
    verbose_name = "Private endpoints"
    section = Section("Endpoints", position=2)
    models_declared: ClassVar = {
        "privateendpoint": ModelDeclaration(
            "dns",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            tab=Tab("Endpoints", 7),
            finders=(HOST,),
        ),
        "validation": ModelDeclaration("fact_check"),
        "attestation": ModelDeclaration(),
        "validationslot": INTERNAL,
    }
