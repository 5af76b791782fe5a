from django.apps import AppConfig
from django.contrib.admin.apps import AdminConfig


class FloorConfig(AppConfig):
    """Makes the project package's commands, templates and few tables known to Django."""

    name = "config"
    verbose_name = "Causeway"


class ConsoleConfig(AdminConfig):
    """Django's admin with a site of our own."""

    default_site = "config.console.site.ConsoleSite"
