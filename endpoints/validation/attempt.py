"""Finds the deployment that a validation calls, its dialect, and the credential to send there."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from django.conf import settings
from msgspec.structs import replace

from accounts.models import ByokCredential, Workspace
from catalog import dialects
from catalog.abilities import read_settings
from catalog.capabilities import NativeFormat
from catalog.dialects.base import Call, Dialect, NativeBody, Operation
from catalog.dialects.shared.credentials import InvalidCredential
from catalog.models import LanguageModel
from catalog.operations import OPERATIONS, probed_operations, served_operations
from config import egress
from config.api.errors import Forbidden
from config.credentials import NO_SECRET, Secret
from config.secrets import DecryptionFailed
from endpoints.metrics import ValidationRefusal, count_refusal
from endpoints.models import (
    InvalidBaseURL,
    PrivateEndpoint,
    Validation,
    refusal_of_operation,
    require_base_url,
)
from endpoints.validation.checks import CheckFailed, Outcome, Reason, Result

logger = logging.getLogger(__name__)

_NO_TEXT: Final = "completions.chat is false, and the provider's format has no text completions."


class HostIsNew(Forbidden):
    """The operator may send a tenant's secret, or call an endpoint, only at a URL in use.

    An active endpoint has the same base URL and sends the same secret there, if any: tenants of one
    host may differ by port or path. What receives the prompts of a tenant is guarded as what
    receives a secret.
    """


class HostNeedsTwo(HostIsNew):
    """An operator alone calls a host that nobody has named, and credentials need two people."""

    error_type = "second_person_needed"


class HostScope(Enum):
    """The places to which the caller of a validation may send secrets and prompts."""

    # All that the credential permits.
    PERMITTED = "permitted"
    # And that the provider, the owner of the credential or an earlier use names.
    NAMED = "named"
    # And whose base URL an active endpoint uses in the same way.
    IN_USE = "in use"


Calls = Sequence[tuple[Call, Dialect]]


class Attempt(NamedTuple):
    """The calls of a validation with their dialects, and the host to which they send the secret.

    There is a call for each operation that the deployment may serve.
    """

    calls: Calls
    host: str


def find_attempt(
    endpoint: PrivateEndpoint,
    workspace_id: uuid.UUID,
    trial: tuple[ByokCredential, Secret] | None,
    scope: HostScope,
    validation: Validation,
    result: Result,
) -> Attempt:
    """Returns the calls to make; raises :class:`CheckFailed` before anything is resolved."""
    provider = endpoint.upstream_provider
    workspace = (
        Workspace.objects.for_organization(endpoint.organization_id).filter(pk=workspace_id).first()
    )
    if workspace is None:
        raise CheckFailed("workspace", Reason.WORKSPACE_NOT_FOUND)
    validation.workspace = workspace
    result.add_pass("workspace")
    if not endpoint.model.is_listed:
        raise CheckFailed("model", Reason.MODEL_NOT_FOUND)
    if not provider.is_listed:
        raise CheckFailed("provider", Reason.PROVIDER_NOT_FOUND)
    credential, secret = _find_credential(endpoint, workspace, trial, validation)
    result.add_pass("byok_key")
    name, capabilities = provider.dialect, endpoint.model.capabilities
    dialect = dialects.get(name, capabilities)
    base_url = endpoint.upstream_url
    try:
        require_base_url(base_url, provider)
        if base_url is not None:
            policy = settings.EGRESS_POLICY.extend(endpoint.organization.reach)
            base_url = egress.parse_base_url(base_url, policy=policy).text
        if dialect is None:
            problem = dialects.describe_missing_extra(provider.dialect)
            if problem is None:
                raise CheckFailed("base_url", Reason.INVALID_BASE_URL)
            raise CheckFailed("base_url", Reason.INVALID_BASE_URL, upstream_message=problem)
        host = dialect.host(base_url, secret)
    except (InvalidBaseURL, InvalidCredential, egress.InvalidURL):
        raise CheckFailed("base_url", Reason.INVALID_BASE_URL) from None
    if credential is not None or base_url is not None:
        _require_host(host, endpoint, credential, scope)
    operations = _find_operations(endpoint, dialect)
    call = Call(
        operation=operations[0],
        base_url=base_url,
        model=endpoint.upstream_model_id,
        secret=secret,
        fields={},
        is_byok=True,
        capabilities=capabilities,
    )
    calls = [_address(replace(call, operation=each), dialect, name) for each in operations]
    return Attempt(calls, host)


def _find_operations(endpoint: PrivateEndpoint, dialect: Dialect) -> Sequence[Operation]:
    """Returns the operations to ask for; raises :class:`CheckFailed` if there is none."""
    outputs = endpoint.model.output_modalities
    served = served_operations(outputs, dialect)
    if read_settings(endpoint.settings).completions.chat is False:
        served -= {Operation.CHAT}
    operations = probed_operations(served)
    if not operations:
        refusal = refusal_of_operation(endpoint.model, endpoint.upstream_provider) or _NO_TEXT
        raise CheckFailed("model", Reason.MODEL_NOT_FOUND, upstream_message=str(refusal))
    # Of a model whose outputs are unknown, nobody expects more than the first operation.
    return operations if outputs else operations[:1]


def _address(call: Call, dialect: Dialect, name: str) -> tuple[Call, Dialect]:
    """Returns a call in the format in which the deployment serves its operation."""
    is_written = OPERATIONS[call.operation].is_written
    if is_written and dialects.lacks_chat(name, call.capabilities):
        native = dialects.get_native(name, call.capabilities)
        assert native is not None, "a model without chat has Responses"
        return replace(call, native=NativeBody(NativeFormat.RESPONSES, {})), native
    return call, dialect


def _require_host(
    host: str, endpoint: PrivateEndpoint, credential: ByokCredential | None, scope: HostScope
) -> None:
    """Raises unless the secret, or calls without one, may go to the host; counts each refusal."""
    own_hosts = endpoint.upstream_provider.own_hosts(host)
    limits = None if credential is None else credential.host_limits(own_hosts)
    reason = None if limits is None else limits.refusal(host)
    if credential is not None and reason is not None:
        count_refusal(ValidationRefusal.HOST)
        logger.warning(
            "secret not sent: credential %s of organization %s is not for %s",
            credential.pk,
            credential.organization_id,
            host,
        )
        raise CheckFailed("base_url", Reason.INVALID_BASE_URL, upstream_message=reason)
    if scope is HostScope.PERMITTED or _is_in_use(host, endpoint, credential, scope):
        return
    if scope is HostScope.NAMED:
        # Two people name the address of a private provider too, where this scope is in force.
        inherits = endpoint.private_provider is not None and endpoint.base_url is None
        if inherits or host in own_hosts:
            return
        if limits is not None and limits.has_named(host):
            return
    count_refusal(ValidationRefusal.NEW_HOST)
    raise _refuse_new(host, endpoint, credential, scope)


def _refuse_new(
    host: str, endpoint: PrivateEndpoint, credential: ByokCredential | None, scope: HostScope
) -> HostIsNew:
    if scope is HostScope.NAMED:
        place = "the base URL of the provider"
        if credential is not None:
            place += f", or in the allowed hosts of {credential}"
        return HostNeedsTwo(
            f"Provider credentials: two people must name {host} before a validation calls it. Name "
            f"it in {place}; or let a key of the organization's own validate the endpoint. "
            "Nothing was sent."
        )
    what = "calls" if credential is None else f"sends the secret of {credential} to"
    return HostIsNew(
        f"No active endpoint {what} {endpoint.upstream_url or host}. The organization itself, or "
        "an operator who may change its credentials, must validate and activate one first. Nothing "
        "was sent."
    )


def _is_in_use(
    host: str, endpoint: PrivateEndpoint, credential: ByokCredential | None, scope: HostScope
) -> bool:
    """Returns whether an active endpoint was validated there with the credential, if any."""
    active = PrivateEndpoint.objects.for_organization(endpoint.organization_id).routable()
    active = active.filter(validation__host=host).select_related("private_provider")
    if credential is not None:
        active = active.filter(validation__credential=credential)
    if scope is HostScope.NAMED:
        # Operators of that scope name hosts, and not URLs.
        return active.exists()
    return any(each.upstream_url == endpoint.upstream_url for each in active)


def _may_call(credential: ByokCredential, model: LanguageModel) -> bool:
    """Returns whether requests for the model use the credential, as in routing."""
    allowed = credential.allowed_models
    return allowed is None or not {model.slug, model.canonical_slug}.isdisjoint(allowed)


def _find_credential(
    endpoint: PrivateEndpoint,
    workspace: Workspace,
    trial: tuple[ByokCredential, Secret] | None,
    validation: Validation,
) -> tuple[ByokCredential | None, Secret]:
    """Returns the credential to use and its secret; records the credential in the validation.

    A keyless provider is called without one.

    It is the first that may call the endpoint's model and go to its host, as in routing. If none
    may go there, it is the first for the model, so that the check of the host names it.
    """
    provider = endpoint.upstream_provider
    if provider.is_keyless:
        return None, NO_SECRET
    usable = list(ByokCredential.objects.usable_in(workspace, provider.slug))
    credentials: list[ByokCredential] = [
        each
        for each in usable
        if (_may_call(each, endpoint.model) if trial is None else each.pk == trial[0].pk)
    ]
    if not credentials:
        hint = f"The workspace has no credential for {provider.slug}. Store one with POST /byok."
        if usable and trial is None:
            hint = (
                f"No credential of the workspace for {provider.slug} may call "
                f"{endpoint.model.slug}: its allowed_models name others. Add it with PATCH "
                "/byok/{id}."
            )
        raise CheckFailed("byok_key", Reason.NO_BYOK_KEY, upstream_message=hint)
    credential = credentials[0]
    if endpoint.upstream_url is not None:
        host, own_hosts = endpoint.host, provider.own_hosts()
        permitted = (each for each in credentials if each.host_limits(own_hosts).permits(host))
        credential = next(permitted, credential)
    validation.credential = credential
    validation.credential_version = credential.version
    try:
        return credential, credential.reveal() if trial is None else trial[1]
    except DecryptionFailed:
        raise CheckFailed(
            "byok_key", Reason.KEY_DECRYPTION_FAILED, outcome=Outcome.BROKEN
        ) from None
