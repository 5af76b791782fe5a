from typing import ClassVar

from config.apps import CausewayApp, Finder, MenuEntry, MenuPage, ModelDeclaration, Role, Tab


class EndUsersConfig(CausewayApp):
    default = True
    name = "endusers"
    verbose_name = "End users"
    menu = (MenuEntry("End users", "group", 3, (MenuPage("End users", "endusers.enduser"),)),)
    models_declared: ClassVar = {
        "enduser": ModelDeclaration(
            "group",
            permissions={Role.SUPPORT: ("add", "change")},
            title_columns=("user",),
            tab=Tab("End users", 4),
            finders=(Finder("user__startswith"),),
        ),
    }
