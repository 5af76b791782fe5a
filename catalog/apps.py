from typing import ClassVar

from config.apps import (
    HOST,
    INTERNAL,
    NAME,
    SLUG,
    CausewayApp,
    MenuEntry,
    MenuPage,
    ModelDeclaration,
    Role,
    Waiting,
)
from config.events.kinds import EventKind


def _wait_for(title: str, permission: str, *reasons: str) -> Waiting:
    """Returns the proposals of some reasons, which decide what permission a decision needs."""
    return Waiting(
        title,
        permission,
        {"status": "waiting", "reason__in": reasons},
        {"status__exact": "waiting", "reason__in": ",".join(reasons)},
    )


class CatalogConfig(CausewayApp):
    default = True
    name = "catalog"
    verbose_name = "Catalogue"
    menu = (
        MenuEntry("Endpoints", "hub", 4, (MenuPage("Public endpoints", "catalog.modelendpoint"),)),
        MenuEntry(
            "Models",
            "neurology",
            5,
            (
                MenuPage("Models", "catalog.languagemodel"),
                MenuPage("Aliases", "catalog.modelalias"),
            ),
        ),
        MenuEntry("Providers", "cloud", 6, (MenuPage("Providers", "catalog.provider"),)),
        MenuEntry("System", "dns", 11, (MenuPage("Proposals", "catalog.catalogproposal"),)),
    )
    events: ClassVar = (
        EventKind(
            "catalog.proposed",
            "A price list proposes changes of the catalogue.",
            "{count} changes of the catalogue from {source} wait for an operator.",
            {"source": "litellm", "count": 3, "risky": 1, "subjects": ["acme/falcon-9 at acme"]},
            for_operators=True,
        ),
    )
    models_declared: ClassVar = {
        "provider": ModelDeclaration(
            "cloud",
            title_columns=("name", "slug"),
            finders=(NAME, SLUG, HOST),
            waiting=(
                Waiting(
                    "Refused credentials",
                    "catalog.change_provider",
                    {"refusal__isnull": False},
                    {"credential": "refused"},
                ),
            ),
        ),
        "languagemodel": ModelDeclaration(
            "neurology", title_columns=("name", "slug"), finders=(NAME, SLUG)
        ),
        "modelendpoint": ModelDeclaration("hub", permissions={Role.FINANCE: ("change",)}),
        "modelalias": ModelDeclaration(
            "alternate_email",
            permissions={Role.SUPPORT: ("add", "change", "delete")},
            finders=(NAME,),
        ),
        "priceversion": ModelDeclaration("sell", words=("costs",)),
        "catalogproposal": ModelDeclaration(
            "price_change",
            title_columns=("subject",),
            waiting=(
                _wait_for("Price proposals", "catalog.change_modelendpoint", "rise", "fall"),
                _wait_for(
                    "Catalogue proposals",
                    "catalog.add_modelendpoint",
                    "unpriced",
                    "vanished",
                    "new",
                    "unclear",
                    "change",
                ),
            ),
        ),
        "catalogversion": INTERNAL,
        "catalogchange": INTERNAL,
        "credentialrefusal": INTERNAL,
    }
