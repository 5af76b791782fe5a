"""Django's admin with the console's site, pages and roles."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from config.apps import declaring_apps
from config.console.roles import update_roles


class ConsoleConfig(AdminConfig):
    """Replaces Django's admin site, registers pages, and updates the roles after each migration.

    It must follow Django's auth in ``INSTALLED_APPS``: the roles are updated after Django has
    stored the permissions of the last app.
    """

    default_site = "config.console.site.ConsoleSite"

    def ready(self) -> None:
        super().ready()
        # Django looks for the pages of the app "config" only in the module config.admin.
        autodiscover_modules("audit.admin", "console.second_factors.admin", register_to=admin.site)
        post_migrate.connect(update_roles, sender=declaring_apps()[-1])
