from django.apps import AppConfig


class EndUsersConfig(AppConfig):
    name = "endusers"
    verbose_name = "End users"
