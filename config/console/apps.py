"""Django's admin with the console's site, pages and roles."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules

from config.apps import declaring_apps
from config.console.roles import RoleKeeper


class ConsoleConfig(AdminConfig):
    """Replaces Django's admin site, registers pages, and updates the roles after each migration.

    It must follow Django's auth in ``INSTALLED_APPS``: the roles are updated after Django has
    stored the permissions of the last app.
    """

    default_site = "config.console.site.ConsoleSite"
    role_keeper = RoleKeeper()

    def ready(self) -> None:
        super().ready()
        # Django looks for the pages of the app "config" only in the module config.admin.
        autodiscover_modules("audit.admin", "console.sign_in.admin", register_to=admin.site)
        last = declaring_apps()[-1]
        pre_migrate.connect(self.role_keeper.remember_permissions, sender=last)
        post_migrate.connect(self.role_keeper.update_roles, sender=last)
