"""The page that connects a server, or a provider of the bundle, as the command ``connect`` does."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.admin.uploads import OrganizationField
from accounts.models import Organization
from catalog.connecting.asking import Advice
from catalog.connecting.connect import ConnectWish, StoredConnection
from catalog.models import Provider
from config.api.errors import GatewayError
from config.audit.context import actor_of
from config.bulk.problems import ImportRefused
from config.console.formatting import render_page
from config.console.forms import SecretFormField
from config.console.unfold import CheckboxWidget, TextareaWidget, TextWidget, unfold_action
from config.console.uploads import BulkFile
from endpoints import connecting
from endpoints.validation import Asker

_ADVICE: Final = Advice(
    allow="tick Allow its address",
    key="enter it under Key",
    authorities="paste its certificate, or that of its authority, under CA certificates",
    models="name its models under Models",
    narrow="Leave it out",
    catalogue="leave Organization empty",
)
ON_PROVIDER: Final = Advice(
    allow="list its address on the page of the provider, under Allowed networks",
    key="enter it on its page",
    authorities="paste its certificate, or that of its authority, on the page of the provider",
)
# What a connection of an organization writes, beside rows of the catalogue.
_OF_ORGANIZATION: Final = (
    "accounts.change_organization",
    *(
        f"{app}.{verb}_{model}"
        for app, model in (
            ("accounts", "byokcredential"),
            ("endpoints", "privateprovider"),
            ("endpoints", "privateendpoint"),
        )
        for verb in ("add", "change")
    ),
)


class ConnectForm(forms.Form):
    """Asks for a server, and how it is reached; without a key, a stored one is used, or none."""

    target = forms.CharField(
        label="URL or provider",
        max_length=2_000,
        widget=TextWidget(attrs={"spellcheck": "false", "autocapitalize": "none"}),
        help_text="The base URL of an OpenAI-compatible server, such as http://10.0.0.5:8000/v1, "
        "or a provider by its name, such as openai.",
    )
    key = SecretFormField(
        required=False, label="Key", help_text="Leave it empty if the server takes none."
    )
    allows = forms.BooleanField(
        required=False,
        label="Allow its address",
        widget=CheckboxWidget(),
        help_text="For a server in a network of your own. Its address is allowed to it alone.",
    )
    organization = OrganizationField(
        required=False,
        help_text="The slug or the ID of an organization that alone gets the models, as private "
        "endpoints. Empty for every organization.",
    )
    authorities = forms.CharField(
        required=False,
        label="CA certificates",
        widget=TextareaWidget(attrs={"rows": 2, "spellcheck": "false"}),
        help_text="In PEM, for an authority of your own.",
    )
    names = forms.CharField(
        required=False,
        label="Models",
        widget=TextWidget(attrs={"spellcheck": "false", "autocapitalize": "none"}),
        help_text="Names, separated by commas, for a server that lists none, or not to this key. "
        "Empty for all.",
    )

    def __init__(self, user: AbstractUser, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not user.has_perms(_OF_ORGANIZATION):
            del self.fields["organization"]

    def make_wish(self, models: list[str], *, by: str) -> ConnectWish:
        """Returns what the form asks for; ``models`` are those that were picked."""
        given = self.cleaned_data
        named = [each.strip() for each in given["names"].split(",") if each.strip()]
        return ConnectWish(
            given["target"],
            secret=given["key"],
            authorities=given["authorities"],
            allows=given["allows"],
            models=models or named,
            advice=_ADVICE,
            by=by,
        )


@unfold_action(
    description="Connect a server", permissions=["import"], url_path="connect", icon="power"
)
def connect(page: Any, request: HttpRequest) -> HttpResponse:
    """Asks for a server. *Test* asks it and stores nothing, *Connect* asks again and stores.

    The browser alone keeps a key between the two, in the field in which it was entered.
    """
    user: Any = request.user
    if request.method != "POST":
        return _show_connection(page, request, ConnectForm(user, initial=request.GET.dict()))
    form = ConnectForm(user, request.POST)
    if not form.is_valid():
        problems = [
            f"{form.fields[name].label}: {text}"
            for name, texts in form.errors.items()
            for text in texts
        ]
        return _show_connection(page, request, form, problems=problems)
    is_test, demand = "connect" not in request.POST, _refuse_by_rule(page.bulk_file)
    # One field with a line for each, or without scripts a field for each.
    lines = "" if is_test else "\n".join(request.POST.getlist("models"))
    picked = [name for name in lines.split("\n") if name]
    if not is_test and (demand or not picked):
        problem = demand or "Models: Pick one at least."
        return _show_connection(page, request, form, problems=[problem])
    wish = form.make_wish(picked, by=actor_of(request))
    owner: Organization | None = form.cleaned_data.get("organization")
    owner_id = None if owner is None else owner.pk
    needed = () if owner is None else _OF_ORGANIZATION
    asker = Asker(partial(page.judge_again, request, "import", *needed))
    try:
        found, made = connecting.connect(wish, owner_id, dry_run=is_test, asker=asker)
    except (ImportRefused, GatewayError) as exc:
        return _show_connection(page, request, form, problems=[str(exc)])
    if is_test:
        return _show_connection(page, request, form, found=found, demand=demand)
    count = f"{len(made.models)} model{'' if len(made.models) == 1 else 's'}"
    text = " ".join((f"{made.provider} is connected with {count}.", *found.notes))
    page.message_user(request, text, messages.SUCCESS)
    return page.redirect(request, _find_page(made, owner))


def _refuse_by_rule(file: BulkFile) -> str:
    """Returns why a rule forbids that one person connects anything; empty if none does."""
    kind = file.find_demand()
    if kind is None:
        return ""
    return (
        f"{kind.label} need a second person, and a connection cannot wait for one. Add the "
        "provider by its form and its models by a file: both are proposed."
    )


def _show_connection(
    page: Any, request: HttpRequest, form: ConnectForm, **context: Any
) -> HttpResponse:
    template, title = "admin/catalog/connect.html", "Connect a server"
    return render_page(page, request, template, title, form=form, **context)


def _find_page(made: StoredConnection, organization: Organization | None) -> str:
    """Returns the address of what was connected."""
    if organization is None:
        provider = Provider.objects.get(slug=made.provider)
        return reverse("admin:catalog_provider_change", args=[provider.pk])
    if len(made.endpoints) == 1:
        return reverse("admin:endpoints_privateendpoint_change", args=[made.endpoints[0]])
    url = reverse("admin:endpoints_privateendpoint_changelist")
    return f"{url}?organization__id__exact={organization.pk}"
