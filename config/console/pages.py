"""What the pages of the operator's admin share; it knows no application.

Two rules of Django's admin do not hold here. A row is written by its model's methods, so that a
refusal is the model's and reaches the page from there; and what changes state is a confirmed POST,
because an action of unfold runs on GET unless it asks through a dialog.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from decimal import Context, Decimal
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

from csp.middleware import CSPMiddleware, PolicyParts
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote, unquote
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import DataError
from django.db.models import Q, QuerySet, TextChoices, URLField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.functional import cached_property
from django.utils.text import slugify
from django.views.decorators.debug import sensitive_post_parameters

from config.api.errors import GatewayError
from config.api.text import CONTROL_CHARACTERS, NOT_STORABLE
from config.credentials import MAX_CREDENTIAL_LENGTH, NotACredential, parse_credential

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    # unfold has no types; its classes are Django's with other templates.
    from django.contrib.admin import ModelAdmin as _ModelAdmin
    from django.contrib.admin import StackedInline as _StackedInline
    from django.contrib.admin import TabularInline as _TabularInline

    ModelAdmin: TypeAlias = _ModelAdmin[Any]
    StackedInline: TypeAlias = _StackedInline[Any, Any]
    TabularInline: TypeAlias = _TabularInline[Any, Any]
    ModelForm: TypeAlias = forms.ModelForm[Any]

    class Dialog(forms.Form):
        request: HttpRequest
        object_id: str

    def display(
        *,
        description: str | None = None,
        ordering: str | None = None,
        label: bool | dict[str, str] | None = None,
    ) -> Callable[[_F], _F]: ...

    def unfold_action(**options: Any) -> Callable[[_F], _F]: ...

    ActionVariant: Any
    PasswordWidget = TextWidget = TextareaWidget = SelectWidget = forms.Widget
else:
    from django.forms import ModelForm
    from unfold.admin import ModelAdmin, StackedInline, TabularInline
    from unfold.decorators import action as unfold_action
    from unfold.decorators import display
    from unfold.enums import ActionVariant
    from unfold.forms import BaseDialogForm as Dialog
    from unfold.widgets import (
        UnfoldAdminPasswordWidget as PasswordWidget,
    )
    from unfold.widgets import (
        UnfoldAdminSelectWidget as SelectWidget,
    )
    from unfold.widgets import (
        UnfoldAdminTextareaWidget as TextareaWidget,
    )
    from unfold.widgets import (
        UnfoldAdminTextInputWidget as TextWidget,
    )

__all__ = [
    "ConsoleAdmin",
    "ConsoleForm",
    "Dialog",
    "ModelAdmin",
    "ReadOnlyAdmin",
    "ReadOnlyInline",
    "SelectWidget",
    "StackedInline",
    "StrictList",
    "TabularInline",
    "display",
]

PREFIX: Final = "/admin/"
SECTIONS: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    (
        "Customers",
        {
            "accounts.organization": "domain",
            "accounts.workspace": "workspaces",
            "accounts.member": "person",
            "accounts.apikey": "key",
            "accounts.byokcredential": "encrypted",
            "accounts.guardrail": "policy",
            "endusers.enduser": "group",
        },
    ),
    (
        "Endpoints",
        {"endpoints.privateendpoint": "dns", "endpoints.validation": "fact_check"},
    ),
    (
        "Catalogue",
        {
            "catalog.provider": "cloud",
            "catalog.languagemodel": "neurology",
            "catalog.modelendpoint": "hub",
            "catalog.priceversion": "sell",
        },
    ),
    ("Traffic", {"inference.generation": "bolt", "inference.feedback": "feedback"}),
    (
        "Money",
        {
            "billing.account": "account_balance",
            "billing.transfer": "receipt_long",
            "billing.grantrequest": "approval_delegation",
            "billing.topup": "add_card",
            "billing.deposit": "savings",
            "billing.chainstate": "link",
        },
    ),
    (
        "Operators",
        {
            "auth.user": "badge",
            "auth.group": "groups",
            "otp_totp.totpdevice": "phonelink_lock",
            "config.auditentry": "history",
        },
    ),
)
_EXACT: Final = Context(prec=80)
# What the kinds of filter of Django append to the name of a column.
_FILTERED: Final = re.compile("(?:__id)?__(?:exact|in|isnull|gte|lt)")
# How many rows an action takes, how many it reads at a time, and of how many it speaks.
_BULK: Final = 10_000
_CHUNK: Final = 500
_SAID: Final = 200
_COUNTED: Final = 2_000


class ConsoleCSPMiddleware(CSPMiddleware):
    """Sends the console's own content security policy with its pages, the strict one elsewhere."""

    def get_policy_parts(
        self, request: HttpRequest, response: HttpResponseBase, report_only: bool = False
    ) -> PolicyParts:
        parts = super().get_policy_parts(request, response, report_only)
        if not report_only and request.path_info.startswith(PREFIX):
            parts.config = settings.CONSOLE_CONTENT_SECURITY_POLICY["DIRECTIVES"]
        return parts


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    """Returns the sidebar: the sections, of which an operator sees what they may see."""
    return [
        {
            "title": title,
            "separator": True,
            "items": [
                {"title": model["name"], "icon": icon, "link": model["admin_url"]}
                for model, icon in entries
            ],
        }
        for title, entries in _sections(request)
    ]


def arrange(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Gives the first page the sections of the sidebar in place of the list of applications."""
    return {
        **context,
        "title": "Overview",
        "app_list": [
            {
                "name": title,
                "app_label": slugify(title),
                "app_url": entries[0][0]["admin_url"],
                "models": [model for model, _ in entries],
            }
            for title, entries in _sections(request)
        ],
    }


def _sections(request: HttpRequest) -> list[tuple[str, list[tuple[dict[str, Any], str]]]]:
    left = {
        model["model"]._meta.label_lower: model
        for application in admin.site.get_app_list(request)
        for model in application["models"]
        if model["admin_url"]
    }
    sections = [
        (title, [(left.pop(label), icon) for label, icon in entries.items() if label in left])
        for title, entries in SECTIONS
    ]
    sections.append(("Other", [(model, "database") for model in left.values()]))
    return [(title, entries) for title, entries in sections if entries]


def actor(request: HttpRequest) -> str:
    """How histories name the operator."""
    return f"operator {request.user.get_username()}"


def chips(kinds: dict[str, str]) -> Callable[[str], str]:
    """Renders a read-only field of a page as lists render it, the kind chosen by its text."""

    def render(text: str) -> str:
        if not text:
            return text
        context = {"text": text, "type": kinds.get(str(text))}
        return render_to_string("unfold/helpers/label.html", context)

    return render


def dollars(amount: Decimal) -> str:
    """Returns USD in plain digits, however small: ``$0.000012``, ``-$0.5``."""
    sign = "-" if amount < 0 else ""
    return f"{sign}${plain_digits(abs(amount))}"


def nano_dollars(nano: int) -> str:
    """Returns nano-USD as USD."""
    return dollars(_EXACT.scaleb(Decimal(nano), -9))


def per_million(rate: Decimal | None) -> str | None:
    """Returns a rate per token as USD per million tokens, which is how prices are talked about."""
    return None if rate is None else dollars(_EXACT.scaleb(rate, 6))


def plain_digits(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


class SecretField(forms.CharField):
    """A secret that goes in and is never rendered; empty means that none was given."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault(
            "widget", PasswordWidget(attrs={"autocomplete": "new-password", "spellcheck": "false"})
        )
        super().__init__(max_length=MAX_CREDENTIAL_LENGTH, **kwargs)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return parse_credential(text)
        except NotACredential as exc:
            raise ValidationError(str(exc)) from None


class NoteField(forms.CharField):
    """Why something is done, as one line; a history or the ledger keeps it."""

    def __init__(self, *, max_length: int = 1_000, **kwargs: Any) -> None:
        super().__init__(max_length=max_length, widget=TextareaWidget(attrs={"rows": 2}), **kwargs)

    def clean(self, value: Any) -> str:
        note = " ".join(super().clean(value).split())
        if CONTROL_CHARACTERS.search(note):
            raise ValidationError("Must not contain control characters.")
        return note


class RateField(forms.DecimalField):
    """USD per unit, shown in plain digits."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            min_value=0,
            max_digits=36,
            decimal_places=30,
            widget=TextWidget(attrs={"inputmode": "decimal"}),
            **kwargs,
        )

    def prepare_value(self, value: Any) -> Any:
        return plain_digits(value) if isinstance(value, Decimal) else value


class ConsoleForm(ModelForm):
    """A form that shows the model's refusal where its subject stands.

    ``refusal_fields`` names the field for an ``error_type``; any other refusal heads the form.
    """

    refusal: GatewayError | None = None
    refusal_fields: dict[str, str] = {}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        for name, field in self.fields.items():
            # An empty input means "no list", which is not the same as a list of nothing.
            if isinstance(field, SimpleArrayField) and cleaned.get(name) == []:
                cleaned[name] = None if self._meta.model._meta.get_field(name).null else []
        if self.refusal is not None:
            place = self.refusal_fields.get(self.refusal.error_type)
            self.add_error(place if place in self.fields else None, self.refusal.message)
        return cleaned


class BoundedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts so many rows and no more: the list of a table that grows is narrowed by a search."""

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        if isinstance(rows, QuerySet):
            return rows.order_by()[: _COUNTED + 1].count()
        return len(rows)


class StatusFilter(admin.SimpleListFilter):
    """The statuses of a table that grows; few rows of it are pending, and they are looked up."""

    title = "status"
    parameter_name = "status__exact"
    statuses: ClassVar[type[TextChoices]]

    def pending(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Narrows to rows among which are all that are pending."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(status), str(status.label)) for status in self.statuses]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        status = self.value()
        if status is None:
            return queryset
        return (self.pending(queryset) if status == "pending" else queryset).filter(status=status)


class StrictList(ModelAdmin):
    """A list that takes the lookups which its filters and the links of other pages make.

    Django takes any lookup of any column, such as a regular expression over a table that grows, and
    fails at values that PostgreSQL does not take.
    """

    linked_lookups: tuple[str, ...] = ("organization__id__exact", "created_at__gte")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        if NOT_STORABLE.search(value):
            return False
        return lookup in self.linked_lookups or any(
            lookup.startswith(part) and _FILTERED.fullmatch(lookup, len(part)) is not None
            if isinstance(part, str)
            else lookup == part.parameter_name  # type: ignore[union-attr]
            for part in self.list_filter
        )

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        try:
            return super().get_changelist_instance(request)
        except (DataError, OverflowError, DisallowedModelAdminLookup) as exc:
            raise IncorrectLookupParameters from exc

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        if NOT_STORABLE.search(object_id):
            return None
        return super().get_object(request, object_id, from_field)


@method_decorator(sensitive_post_parameters(), name="changeform_view")
class ConsoleAdmin(StrictList):
    """A page of the console over one model: nothing is deleted here, secrets only go in.

    A subclass creates rows in :meth:`create`; changes write the changed columns and no others.
    """

    form = ConsoleForm
    formfield_overrides = {
        ArrayField: {"widget": TextareaWidget(attrs={"rows": 2})},
        URLField: {"assume_scheme": "https"},
    }
    show_full_result_count = False
    list_per_page = 50
    uuid_search_fields: tuple[str, ...] = ("id",)

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Any:
        """Stores what a valid form asks for and returns the stored row; may raise GatewayError."""
        obj.save(force_insert=True)
        return obj

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        try:
            return super().changeform_view(request, object_id, form_url, extra_context)
        except GatewayError as exc:
            # The attempt was rolled back whole; the form comes again, with the reason on it.
            request.refusal = exc  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, extra_context)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        form.refusal = getattr(request, "refusal", None)
        return form

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            # Django keeps hold of the form's instance: it becomes the row that was stored.
            obj.__dict__.update(self.create(request, obj, form).__dict__)
            return
        stored = {field.name for field in self.opts.concrete_fields}
        names = [name for name in form.changed_data if name in stored]
        if names:
            obj.save_fields(*names)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        try:
            wanted = uuid.UUID(search_term.strip())
        except ValueError:
            return super().get_search_results(request, queryset, search_term)
        fields = [(name, wanted) for name in self.uuid_search_fields]
        return queryset.filter(Q(*fields, _connector=Q.OR)), False

    def leave(self, request: HttpRequest, url: str) -> Any:
        """Sends the browser on; a dialog's answer must say so in a header of htmx."""
        if "HX-Request" in request.headers:
            return HttpResponse(headers={"HX-Redirect": url})
        return HttpResponseRedirect(url)

    def page_of(self, request: HttpRequest, obj: Any) -> str:
        """Returns the page of an object, or the list when it has none any more."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}"
        if self.get_object(request, str(obj.pk)) is None:
            return reverse(f"{name}_changelist")
        return reverse(f"{name}_change", args=[quote(str(obj.pk))])


class ReadOnlyAdmin(ConsoleAdmin):
    """A page over rows that nobody writes by hand."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyInline:
    """Mixed into an inline: its rows are shown, five at a time, and not touched."""

    extra: int = 0
    max_num: int | None = 0
    per_page = 5
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


Said: TypeAlias = tuple[int, str]
"""The level of a message, as Django numbers it, and its text."""


def transition(
    *,
    description: str,
    question: str,
    submit: str,
    permission: str,
    icon: str,
    danger: bool = False,
    form: type[Any] | None = None,
) -> Callable[[Callable[[Any, HttpRequest, Any, Any], Said]], Any]:
    """Makes a method an action of the detail page: asked in a dialog, done by POST, and logged.

    The method gets the request, the object and the dialog's form; a GatewayError of the model is
    shown as the refusal that it is.
    """

    def decorate(method: Callable[[Any, HttpRequest, Any, Any], Said]) -> Any:
        @unfold_action(
            description=description,
            permissions=[permission],
            icon=icon,
            url_path=method.__name__.replace("_", "-"),
            variant=ActionVariant.DANGER if danger else ActionVariant.DEFAULT,
            dialog={
                "title": description,
                "description": question,
                "form_class": form,
                "form_submit_text": submit,
            },
        )
        @wraps(method)
        def run(self: Any, request: HttpRequest, form: Any, object_id: str) -> Any:
            obj = self.get_object(request, unquote(object_id))
            if obj is None:
                gone = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
                return self.leave(request, gone.url)
            try:
                level, text = method(self, request, obj, form)
            except GatewayError as exc:
                level, text = messages.ERROR, exc.message
            else:
                self.log_change(request, obj, text)
            self.message_user(request, text, level)
            return self.leave(request, self.page_of(request, obj))

        return run

    return decorate


def bulk(
    *, description: str, question: str, permission: str
) -> Callable[[Callable[[Any, HttpRequest, Any], None]], Any]:
    """Makes a method an action over selected rows: confirmed on a page, then reported row by row.

    Each row is a transaction of its own, in the method; what one row refuses stops no other. Of all
    rows of a list, the page carries the list's own address instead of their keys, and a digest of
    these: nothing is done when the list has other rows by the time it is confirmed.
    """

    def decorate(method: Callable[[Any, HttpRequest, Any], None]) -> Any:
        @admin.action(description=description, permissions=[permission])
        @wraps(method)
        def run(
            self: Any, request: HttpRequest, queryset: QuerySet[Any]
        ) -> TemplateResponse | None:
            keys = list(queryset.values_list("pk", flat=True)[: _BULK + 1])
            count = len(keys)
            if count > _BULK:
                text = f"More than {_BULK:,} rows are too many. Narrow the list; nothing was done."
                self.message_user(request, text, messages.ERROR)
                return None
            across = request.POST.get("select_across") == "1"
            listed = _digest(keys)
            if request.POST.get("confirmed") != "yes":
                rows = list(queryset[:_SAID] if across else queryset)
                context = {
                    **self.admin_site.each_context(request),
                    "title": description,
                    "question": question,
                    "rows": rows,
                    "hidden": count - len(rows),
                    "across": across,
                    "listed": listed,
                    "action": method.__name__,
                    "checkbox_name": ACTION_CHECKBOX_NAME,
                    "opts": self.opts,
                    "media": self.media,
                }
                request.current_app = self.admin_site.name
                return TemplateResponse(request, "admin/confirm_action.html", context)
            if across and request.POST.get("listed") != listed:
                text = "The list has changed; look again. Nothing was done."
                self.message_user(request, text, messages.ERROR)
                return None
            done = 0
            for place, row in enumerate(_rows(queryset, keys)):
                try:
                    method(self, request, row)
                except GatewayError as exc:
                    said = messages.ERROR, f"{row}: {exc.message}"
                else:
                    done += 1
                    self.log_change(request, row, f"{description}.")
                    said = messages.SUCCESS, f"{row}: done."
                if place < _SAID:
                    self.message_user(request, said[1], said[0])
            if count > _SAID:
                text = f"Of {count:,} rows, {done:,} are done and {count - done:,} refused."
                self.message_user(request, text)
            return None

        return run

    return decorate


def _digest(keys: Iterable[Any]) -> str:
    """Identifies a set of rows, in whatever order a list has them."""
    return hashlib.sha256("\n".join(sorted(map(str, keys))).encode()).hexdigest()


def _rows(queryset: QuerySet[Any], keys: list[Any]) -> Iterator[Any]:
    """Yields the rows of these keys, in their order; one that has left the list is passed over."""
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        found = queryset.in_bulk(chunk)
        yield from (found[key] for key in chunk if key in found)
