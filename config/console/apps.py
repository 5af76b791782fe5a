"""Django's admin with the console's site, pages and roles."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules
from django_otp.plugins.otp_totp.apps import DefaultConfig as OtpConfig

from config.apps import declaring_apps
from config.console.columns import name_columns
from config.console.sign_in.roles import RoleKeeper


class ConsoleConfig(SimpleAdminConfig):
    """Replaces Django's admin site, and updates the roles after each migration.

    The pages are registered by :func:`discover_pages` when the routes are loaded, and not at the
    start of every command: they import half of the product.

    It must follow Django's auth in ``INSTALLED_APPS``: the roles are updated after Django has
    stored the permissions of the last app.
    """

    default_site = "config.console.site.ConsoleSite"
    role_keeper = RoleKeeper()

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(_check_pages, checks.Tags.admin)
        last = declaring_apps()[-1]
        pre_migrate.connect(self.role_keeper.remember_permissions, sender=last)
        post_migrate.connect(self.role_keeper.update_roles, sender=last)


class SecondFactorConfig(OtpConfig):  # type: ignore[misc]
    """Names the package of second factors in English, as its pages show it."""

    verbose_name = "Second factors"


def discover_pages() -> None:
    """Registers the pages of every app with the console's site; a second call does nothing."""
    # Forms take the names of their fields when their modules are loaded.
    name_columns()
    admin.autodiscover()
    # Django looks for the pages of the app "config" only in the module config.admin.
    autodiscover_modules(
        "audit.admin", "changes.admin", "console.sign_in.admin", "events.admin",
        register_to=admin.site,
    )  # fmt: skip


def _check_pages(**options: Any) -> list[checks.CheckMessage]:
    """Runs Django's checks of the console's pages, which no other check may have loaded yet."""
    discover_pages()
    found: list[checks.CheckMessage] = check_admin_app(**options)
    return found
