from django.apps import AppConfig


class FloorConfig(AppConfig):
    """Makes the project package's commands and templates known to Django; it has no models."""

    name = "config"
    verbose_name = "Causeway"
