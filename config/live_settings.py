"""Django's settings, for code that every request runs."""

from __future__ import annotations

from typing import Any, Final, cast

from django.conf import LazySettings
from django.conf import settings as django_settings


class _LiveSettings:
    """Has the attributes of Django's object, but finds what was read before without Python code.

    Django's object runs a function for each access, and a request reads seventeen settings.
    """

    def __init__(self) -> None:
        # One dictionary for both: what Django forgets when a setting changes is forgotten here too.
        self.__dict__ = vars(django_settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(django_settings, name)


settings: Final = cast(LazySettings, _LiveSettings())
