from typing import ClassVar

from config.apps import CausewayApp, Finder, ModelDeclaration, Role, Section, Tab


class EndUsersConfig(CausewayApp):
    default = True
    name = "endusers"
    verbose_name = "End users"
    section = Section("Customers", position=1)
    models_declared: ClassVar = {
        "enduser": ModelDeclaration(
            "group",
            permissions={Role.SUPPORT: ("add", "change")},
            title_columns=("user",),
            tab=Tab("End users", 8),
            finders=(Finder("user__startswith"),),
        ),
    }
