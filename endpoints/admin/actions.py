"""The transitions of a private endpoint, one by one on its page and in bulk on the list."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest

from accounts.admin.forms import may_point_secrets
from config.api.errors import Forbidden
from config.audit.context import actor_of
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import Message, bulk_action, report, transition
from config.console.base import ConsoleAdmin
from endpoints.activation import describe_failure, validate_and_replace, validate_only
from endpoints.admin.forms import (
    DisableDialog,
    EditDialog,
    FallbackDialog,
    PoolDialog,
    RemoveDialog,
    ReplaceDialog,
    TimesDialog,
    ValidateDialog,
)
from endpoints.models import PrivateEndpoint
from inference.reports.usage.consequences import foresee_endpoint, foresee_endpoints

Status = PrivateEndpoint.Status
_BY_STATUS: Final[dict[str, set[str]]] = {
    Status.DRAFT: {
        "edit", "edit_price", "limit_time", "limit_fallback", "place_in_pool", "validate",
        "activate", "remove",
    },
    Status.ACTIVE: {
        "replace_deployment", "edit_price", "limit_time", "limit_fallback", "place_in_pool",
        "validate_again", "disable", "remove",
    },
    Status.DISABLED: {
        "edit_price", "limit_time", "limit_fallback", "place_in_pool", "enable", "remove",
    },
}  # fmt: skip
_DELETION: Final = FourEyes((ChangeKind.DELETIONS,), "endpoints.delete_privateendpoint")
_OPERATE: Final = "endpoints.change_privateendpoint"
_EDITED: Final = frozenset(("upstream_model_id", "base_url", "declared_region", "declared_zdr"))


class PrivateEndpointActions(ConsoleAdmin):
    """Calls the model's transitions; the model refuses those not allowed in the status."""

    actions = ("activate_selected", "disable_selected", "enable_selected", "remove_selected")
    actions_detail = (
        "edit", "replace_deployment", "edit_price", "limit_time", "limit_fallback",
        "place_in_pool", "validate", "validate_again", "activate", "disable", "enable", "remove",
        "release",
    )  # fmt: skip

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(_OPERATE)

    def has_reprice_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_operate_permission(request)

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("endpoints.delete_privateendpoint")

    def offers_action(self, request: HttpRequest, obj: PrivateEndpoint, name: str) -> bool:
        if obj.deleted_at is not None:
            return name == "release"
        return name in _BY_STATUS[obj.status]

    @transition(
        description="Edit",
        question="A changed draft must be validated again before it can be activated.",
        submit="Save the draft",
        permission="operate",
        icon="edit",
        form=EditDialog,
    )
    def edit(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.edit(by=actor_of(request), **_read_upstream(request, form))
        return messages.SUCCESS, "The draft is saved."

    @transition(
        description="Replace the deployment",
        question="Sends a plain and a streamed request to the new deployment. If it passes, later "
        "requests go there, and running ones end where they began; else nothing is changed.",
        submit="Validate and replace",
        permission="operate",
        icon="swap_horiz",
        form=ReplaceDialog,
    )
    def replace_deployment(
        self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any
    ) -> Message:
        validate_and_replace(
            endpoint,
            _read_upstream(request, form),
            workspace_id=form.cleaned_data["workspace"].pk,
            by=actor_of(request),
            judge=partial(_judge_again, request),
            may_bind=may_point_secrets(request),
        )
        return messages.SUCCESS, "The endpoint has the new deployment."

    @transition(
        description="Limit time",
        question="The limits apply to later requests. Nothing needs to be validated again.",
        submit="Save the limits",
        permission="operate",
        icon="timer",
        form=TimesDialog,
    )
    def limit_time(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.limit_time(form.limits)
        return messages.SUCCESS, "The limits of time are saved."

    @transition(
        description="Fallback",
        question="Says where later requests for the model may go besides private endpoints.",
        submit="Save the fallback",
        permission="operate",
        icon="alt_route",
        form=FallbackDialog,
    )
    def limit_fallback(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.edit(by=actor_of(request), fallback=form.cleaned_data["fallback"])
        return messages.SUCCESS, "The fallback is saved."

    @transition(
        description="Pool",
        question="Says which of the later requests for the model the endpoint serves.",
        submit="Save the place",
        permission="operate",
        icon="account_tree",
        form=PoolDialog,
    )
    def place_in_pool(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.edit(by=actor_of(request), settings={"routing": form.routing})
        return messages.SUCCESS, "The place in the pool is saved."

    @transition(
        description="Validate",
        question="Sends a plain and a streamed request with the BYOK credential of a workspace.",
        submit="Validate now",
        permission="operate",
        icon="fact_check",
        form=ValidateDialog,
    )
    def validate(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        return _validate(request, endpoint, form, again=False)

    @transition(
        description="Validate again",
        question="Sends a plain and a streamed request with the BYOK credential of a workspace. If "
        "they pass, later watches compare with them, and a drift ends. The endpoint stays active.",
        submit="Validate now",
        permission="operate",
        icon="fact_check",
        form=ValidateDialog,
    )
    def validate_again(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        return _validate(request, endpoint, form, again=True)

    @transition(
        description="Activate",
        question="Requests of the organization are routed to this endpoint from now on.",
        submit="Activate",
        permission="operate",
        icon="play_arrow",
    )
    def activate(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.activate(by=actor_of(request))
        return messages.SUCCESS, "The endpoint is active."

    @transition(
        description="Disable",
        question="No request is routed to this endpoint from now on. Its model stays private: "
        "public endpoints serve only what lists them, or may fall back to any.",
        submit="Disable",
        permission="operate",
        icon="pause",
        form=DisableDialog,
        foresee=foresee_endpoint,
    )
    def disable(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.disable(by=actor_of(request), reason=form.cleaned_data["reason"])
        return messages.SUCCESS, "The endpoint is disabled."

    @transition(
        description="Enable",
        question="Requests of the organization are routed to this endpoint again.",
        submit="Enable",
        permission="operate",
        icon="play_arrow",
    )
    def enable(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.enable(by=actor_of(request))
        return messages.SUCCESS, "The endpoint is active again."

    @transition(
        description="Delete",
        question="The endpoint disappears from every list and no request is routed to it. Its "
        "generations stay. If it was ever active, its model stays private until it is released. "
        "This cannot be undone.",
        submit="Delete the endpoint",
        permission="remove",
        icon="delete",
        danger=True,
        form=RemoveDialog,
        foresee=foresee_endpoint,
        four_eyes=_DELETION,
    )
    def remove(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        endpoint.remove(by=actor_of(request), release=form.cleaned_data["release"])
        return messages.SUCCESS, f"{endpoint} is deleted."

    @transition(
        description="Release",
        question="Requests for the model go to public endpoints again, from the next one on. The "
        "model becomes private again when an endpoint of it is activated.",
        submit="Release the model",
        permission="remove",
        icon="lock_open",
        danger=True,
        four_eyes=_DELETION,
    )
    def release(self, request: HttpRequest, endpoint: PrivateEndpoint, form: Any) -> Message:
        done = f"{endpoint.model} is not private any more."
        return report(endpoint.release(by=actor_of(request)), done, "It was released before.")

    @bulk_action(description="Activate", question="Activate these endpoints?", permission="operate")
    def activate_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.activate(by=actor_of(request))

    @bulk_action(
        description="Disable",
        question="Disable these endpoints? No request is routed to them from now on.",
        permission="operate",
        foresee=foresee_endpoints,
    )
    def disable_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.disable(by=actor_of(request))

    @bulk_action(description="Enable", question="Enable these endpoints?", permission="operate")
    def enable_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.enable(by=actor_of(request))

    @bulk_action(
        description="Delete",
        question="Delete these endpoints? They disappear from every list and no request is "
        "routed to them. This cannot be undone.",
        permission="remove",
        foresee=foresee_endpoints,
        four_eyes=_DELETION,
    )
    def remove_selected(self, request: HttpRequest, endpoint: PrivateEndpoint) -> None:
        endpoint.remove(by=actor_of(request))


def _validate(
    request: HttpRequest, endpoint: PrivateEndpoint, form: Any, *, again: bool
) -> Message:
    result = validate_only(
        endpoint,
        workspace_id=form.cleaned_data["workspace"].pk,
        again=again,
        may_bind=may_point_secrets(request),
    )
    if result.passed:
        return messages.SUCCESS, "The validation passed."
    return messages.WARNING, describe_failure(result)


def _judge_again(request: HttpRequest) -> None:
    """Raises :class:`Forbidden` for an operator who lost the power while a validation ran."""
    user = User.objects.filter(pk=cast(User, request.user).pk, is_active=True).first()
    if user is None or not user.has_perm(_OPERATE):
        raise Forbidden("You may not change endpoints any more. Nothing was changed.")


def _read_upstream(request: HttpRequest, form: Any) -> dict[str, Any]:
    """Returns the upstream and the declarations of a form.

    For who may not point secrets, the form has refused another URL than the one that it showed.
    """
    names = _EDITED if may_point_secrets(request) else _EDITED - {"base_url"}
    return {name: form.cleaned_data[name] for name in names}
