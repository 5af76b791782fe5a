"""Authentication by API keys in Django REST Framework: callers, permissions and their scheme."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast
from uuid import UUID

from django.db import DatabaseError, connection, transaction
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission

from accounts.bearers import key_digests, require_usable
from accounts.models import ApiKey, KeyDigest
from config.api.errors import Forbidden, Unauthenticated
from config.changes.kinds import ChangeKind, FourEyes
from config.secrets import KeyDigests
from config.server.bodies import mark_recognized

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: a usable key, its organization and its workspace."""

    key_id: UUID
    key_digest: str
    key_label: str
    organization_id: UUID
    workspace_id: UUID
    is_management: bool

    is_authenticated: ClassVar[bool] = True

    @property
    def actor(self) -> str:
        """Returns the name of the caller in histories and in the audit log."""
        return f"key {self.key_label}"


def usable_key(digests: KeyDigests) -> ApiKey:
    """Loads the usable key that has one of these digests; raises :class:`Unauthenticated`.

    A key that only an older pepper finds gets a digest by the first one. A former secret is
    returned as its key, with the hash, the label and the end of the secret.
    """
    rows = KeyDigest.objects.select_related("api_key__organization").filter(digest__in=[*digests])
    found = {row.digest: row for row in rows}
    row = next((found[digest] for digest in digests if digest in found), None)
    if row is None:
        raise Unauthenticated("The API key is not valid.")
    key: ApiKey = row.api_key
    require_usable(disabled=key.disabled, expires_at=key.expires_at)
    if row.digest != digests[0] or row.pepper is None:
        _renew_digest(key, digests)
    if key.successor_id is None:
        return key
    # Former secrets are rare. To join their keys would take two fifths of each request's reading.
    present: ApiKey = ApiKey.objects.select_related("organization").get(pk=key.successor_id)
    present.digest, present.label, present.expires_at = key.digest, key.label, key.expires_at
    return present


def _renew_digest(key: ApiKey, digests: KeyDigests) -> None:
    """Stores the first digest of a key; leaves that to a later request if it would have to wait."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '100ms'")
            # A rotation may just have moved the digests of this secret to another row.
            rows = ApiKey.objects.select_for_update(no_key=True)
            if rows.filter(pk=key.pk, digest=key.digest).first() is not None:
                KeyDigest.objects.store(key.pk, {digests[0]: digests.pepper_ids[0]})
    except DatabaseError:
        logger.warning("the digest of key %s is not renewed yet", key.label)


def caller_of(request: Request) -> Caller:
    """Returns the caller of a request that passed a key permission."""
    return cast(Caller, request.user)


def caller_or_none(request: Request) -> Caller | None:
    """Returns the caller of a request, or ``None`` for a request without a key."""
    return cast("Caller | None", request.user)


class KeyAuthentication(BaseAuthentication):
    """Authenticates requests of Django REST Framework by an API key.

    A request without one has no caller; only :class:`Anyone` permits it. An invalid key is
    refused on every route.
    """

    def authenticate(self, request: Request) -> tuple[Caller, ApiKey] | None:
        authorization = request.META.get("HTTP_AUTHORIZATION")
        api_key = request.META.get("HTTP_X_API_KEY")
        if authorization is None and not api_key:
            return None
        key = usable_key(key_digests(authorization, api_key))
        mark_recognized(getattr(request, "scope", {}))
        caller = Caller(
            key_id=key.pk,
            key_digest=key.digest,
            key_label=key.label,
            organization_id=key.organization_id,
            workspace_id=key.workspace_id,
            is_management=key.is_management,
        )
        return caller, key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def judge_again(request: Request) -> None:
    """Raises :class:`Unauthenticated` if the key of a request that has waited is usable no more."""
    KeyAuthentication().authenticate(request)


class DenyAll(BasePermission):
    """The default permission: refuses every request of a view that declares no key type."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return False


class AnotherOperatorNeeded(Forbidden):
    """A key that an operator issued makes a change that needs a second person."""

    error_type = "second_person_needed"

    def __init__(self, kind: ChangeKind) -> None:
        super().__init__(
            f"{kind.label}: another operator must approve such changes, and an operator issued "
            "this key. Make the change in the console, or with a key of the organization's own. "
            "Nothing was changed."
        )


def needs_second_person(request: Request, *kinds: ChangeKind) -> ChangeKind | None:
    """Returns the kind for which a rule demands two people, if the key is one operator's."""
    key = cast(ApiKey, request.auth)
    return FourEyes(kinds).find_demand(None) if key.issued_by_operator else None


def require_one_person(request: Request, *kinds: ChangeKind) -> None:
    """Raises :class:`AnotherOperatorNeeded` if a rule demands two people, and the key is one's."""
    if (kind := needs_second_person(request, *kinds)) is not None:
        raise AnotherOperatorNeeded(kind)


class ManagementKey(BasePermission):
    """Permits management keys; an inference key gets 403.

    ``four_eyes`` of a view names the kinds of changes that an action makes.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        caller = caller_or_none(request)
        if caller is not None and not caller.is_management:
            raise Forbidden("This operation needs a management key.")
        action = getattr(view, "action", None)
        if caller is not None and (kinds := getattr(view, "four_eyes", {}).get(action)):
            require_one_person(request, *kinds)
        return caller is not None


class AnyKey(BasePermission):
    """Permits keys of both types."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return caller_or_none(request) is not None


class Anyone(BasePermission):
    """Permits requests with a usable key and requests without a key."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return True


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Documents the bearer key in the OpenAPI schema."""

    target_class = "accounts.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[str]]]:
        required: dict[str, list[str]] = {"apiKey": []}
        return [required, {}] if Anyone in auto_schema.view.permission_classes else [required]
