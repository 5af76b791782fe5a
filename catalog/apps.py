from typing import ClassVar

from config.apps import INTERNAL, CausewayApp, ModelDeclaration, Role, Section


class CatalogConfig(CausewayApp):
    default = True
    name = "catalog"
    verbose_name = "Catalogue"
    section = Section("Catalogue", position=3)
    models_declared: ClassVar = {
        "provider": ModelDeclaration("cloud", title_columns=("name", "slug")),
        "languagemodel": ModelDeclaration("neurology", title_columns=("name", "slug")),
        "modelendpoint": ModelDeclaration("hub", permissions={Role.FINANCE: ("change",)}),
        "modelalias": ModelDeclaration(
            "alternate_email", permissions={Role.SUPPORT: ("add", "change", "delete")}
        ),
        "priceversion": ModelDeclaration("sell"),
        "catalogproposal": ModelDeclaration("price_change", title_columns=("subject",)),
        "catalogversion": INTERNAL,
        "catalogchange": INTERNAL,
        "credentialrefusal": INTERNAL,
    }
