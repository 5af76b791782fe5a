"""The classes of unfold that the console builds on, with types.

unfold has no types. Its classes are Django's with other templates, so that type checkers see
Django's.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from django import forms
from django.http import HttpRequest

from config.clocks.writing import write_time

_F = TypeVar("_F", bound=Callable[..., Any])

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.contrib.admin import ModelAdmin as _ModelAdmin
    from django.contrib.admin import StackedInline as _StackedInline
    from django.contrib.admin import TabularInline as _TabularInline
    from django.contrib.admin.checks import ModelAdminChecks
    from django.contrib.admin.filters import RelatedFieldListFilter as PickerFilter
    from django.contrib.admin.forms import AdminAuthenticationForm as AuthenticationForm
    from django.contrib.admin.forms import AdminPasswordChangeForm as OwnPasswordForm
    from django.contrib.admin.views.main import ChangeList

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

    PageChecks: TypeAlias = ModelAdminChecks
    CheckboxWidget = PasswordWidget = TextWidget = TextareaWidget = SelectWidget = forms.Widget
    CheckboxesWidget = forms.CheckboxSelectMultiple
    PickerWidget = forms.SelectMultiple
    RadioWidget = forms.RadioSelect
else:
    from django.apps import apps
    from django.core import checks
    from django.forms import ModelForm
    from unfold.admin import ModelAdmin, StackedInline, TabularInline
    from unfold.checks import UnfoldModelAdminChecks
    from unfold.contrib.filters.admin import AutocompleteSelectFilter as PickerFilter
    from unfold.decorators import action as unfold_action
    from unfold.decorators import display as _display
    from unfold.forms import AdminOwnPasswordChangeForm as OwnPasswordForm
    from unfold.forms import AuthenticationForm
    from unfold.forms import BaseDialogForm as Dialog
    from unfold.sites import UnfoldAdminSite as AdminSite
    from unfold.views import ChangeList
    from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget as CheckboxesWidget
    from unfold.widgets import UnfoldAdminMultipleAutocompleteWidget as PickerWidget
    from unfold.widgets import UnfoldAdminPasswordWidget as PasswordWidget
    from unfold.widgets import UnfoldAdminRadioSelectWidget as RadioWidget
    from unfold.widgets import UnfoldAdminSelectWidget as SelectWidget
    from unfold.widgets import UnfoldAdminTextareaWidget as TextareaWidget
    from unfold.widgets import UnfoldAdminTextInputWidget as TextWidget
    from unfold.widgets import UnfoldBooleanWidget as CheckboxWidget

    class PageChecks(UnfoldModelAdminChecks):
        """Checks a page by the permissions that models declare: there may be no database yet."""

        def _check_unfold_action_permission_methods(self, obj: Any) -> list[checks.Error]:
            metas = [model._meta for model in apps.get_models()]
            declared = {
                *(
                    f"{meta.app_label}.{verb}_{meta.model_name}"
                    for meta in metas
                    for verb in meta.default_permissions
                ),
                *(f"{meta.app_label}.{name}" for meta in metas for name, _ in meta.permissions),
            }
            actions = [
                *(action.method for action in obj._get_base_actions_list()),
                *(action.method for action in obj._get_base_actions_detail()),
                *(method for method, *_ in obj._get_base_actions()),
            ]
            return [
                checks.Error(
                    f"The action {action.__name__} of {type(obj).__name__} has the permission "
                    f"{name}, which does not exist.",
                    obj=type(obj),
                    id="admin.E129",
                )
                for action in actions
                for name in getattr(action, "allowed_permissions", ())
                if name not in declared and not hasattr(obj, f"has_{name}_permission")
            ]

        def _check_actions(self, obj: Any) -> list[checks.Error]:
            # Django knows no names with a dot.
            return [error for error in super()._check_actions(obj) if error.id != "admin.E129"]

    def display(**options: Any) -> Callable[[_F], _F]:
        """Describes a computed field; unfold computes one five times to show it on a page.

        The page of an object would show a time as Python writes it.
        """

        def decorate(method: _F) -> _F:
            def write(self: Any, obj: Any) -> Any:
                value = method(self, obj)
                return write_time(value) if isinstance(value, datetime) else value

            @wraps(method)
            def compute(self: Any, obj: Any) -> Any:
                computed = getattr(obj, "computed_fields", None)
                if computed is None:
                    return write(self, obj)
                if method not in computed:
                    computed[method] = write(self, obj)
                return computed[method]

            return _display(**options)(compute)

        return decorate


def column(description: str, read: Callable[[Any], Any], **options: Any) -> Any:
    """Makes a computed field of a page from a function of its row; see :func:`display`."""

    def show(page: Any, row: Any) -> Any:
        return read(row)

    return display(description=description, **options)(show)
