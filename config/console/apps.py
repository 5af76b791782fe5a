"""Django's admin with the console's site, pages and roles."""

from __future__ import annotations

from typing import Any, Final

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import autodiscover_modules, import_string
from django_otp.plugins.otp_totp.apps import DefaultConfig as OtpConfig

from config.apps import declaring_apps
from config.console.sign_in.roles import RoleKeeper

# Words of the names of columns that are not written in small letters.
_CAPITALS: Final = {
    word.lower(): word for word in ("API", "BYOK", "HTTP", "ID", "IO", "IP", "URL", "USD", "ZDR")
} | {"ids": "IDs"}


def _check_perimeter(**options: Any) -> list[checks.CheckMessage]:
    """Loads the console's perimeter when `check --deploy` asks, and not with every command."""
    name = "config.console.perimeter.check_perimeter"
    return import_string(name)(**options)


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
        checks.register(_check_perimeter, checks.Tags.security, deploy=True)
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
        "audit.admin", "changes.admin", "clocks.admin", "console.sign_in.admin", "events.admin",
        register_to=admin.site,
    )  # fmt: skip


def name_columns() -> None:
    """Names the columns whose models leave that to Django, for the lists and forms of the console.

    Django makes a name of the words of the attribute. Migrations store a name only if the model
    states it, so none follows from this. A second call changes nothing.
    """
    for model in apps.get_models():
        for field in (*model._meta.local_fields, *model._meta.local_many_to_many):
            if field.verbose_name == field.name.replace("_", " "):
                field.verbose_name = name_column(field.name)


def name_column(attribute: str) -> str:
    """Returns the name of a column that an attribute has, without a capital at its beginning."""
    words = attribute.removeprefix("is_").split("_")
    return " ".join(_CAPITALS.get(word, word) for word in words)


def _check_pages(**options: Any) -> list[checks.CheckMessage]:
    """Runs Django's checks of the console's pages, which no other check may have loaded yet."""
    discover_pages()
    return check_admin_app(**options)
