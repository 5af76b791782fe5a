from typing import ClassVar

from config.apps import HOST, INTERNAL, NAME, SLUG, CausewayApp, ModelDeclaration, Role, Section


class CatalogConfig(CausewayApp):
    default = True
    name = "catalog"
    verbose_name = "Catalogue"
    section = Section("Catalogue", position=3)
    models_declared: ClassVar = {
        "provider": ModelDeclaration(
            "cloud",
            title_columns=("name", "slug"),
            finders=(NAME, SLUG, HOST),
            is_shared=True,
        ),
        "languagemodel": ModelDeclaration(
            "neurology", title_columns=("name", "slug"), finders=(NAME, SLUG), is_shared=True
        ),
        "modelendpoint": ModelDeclaration(
            "hub", permissions={Role.FINANCE: ("change",)}, is_shared=True
        ),
        "modelalias": ModelDeclaration(
            "alternate_email",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            finders=(NAME,),
            is_shared=True,
            shared_rows="organization_id IS NULL",
        ),
        "priceversion": ModelDeclaration(
            # The other cells number the prices of their private endpoints themselves.
            "sell",
            is_shared=True,
            shared_rows="id < 8796093022208",
        ),
        "catalogproposal": ModelDeclaration("price_change", title_columns=("subject",)),
        "catalogversion": INTERNAL,
        "catalogchange": INTERNAL,
        "credentialrefusal": INTERNAL,
    }
