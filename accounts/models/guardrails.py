"""Guardrails: limits for keys, for members and for whole workspaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from typing import Any, Final, NamedTuple

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q

from accounts.models.edits import refusal, set_fields
from accounts.models.keys import ApiKey
from accounts.models.limits import OrganizationLimit, patterns_of, require_pattern_room
from accounts.models.members import Member
from accounts.models.organizations import Organization
from accounts.models.terms import LimitReset, Region
from accounts.models.versions import RoutingVersionBump
from accounts.models.workspaces import Workspace, default_guardrail_id, require_workspace
from accounts.policy import Fallback, Family, Policy
from config.api.errors import InvalidRequest, NotFound
from config.audit.triggers import Audit
from config.models import BaseModel, OwnedQuerySet

LIMITS: Final = (
    "allowed_models", "ignored_models", "allowed_providers", "ignored_providers",
    "allowed_data_regions", "enforce_zdr", "enforce_zdr_anthropic", "enforce_zdr_google",
    "enforce_zdr_openai", "enforce_zdr_xai", "enforce_zdr_other", "allow_safety_retention_google",
    "allow_safety_retention_other", "enable_free_model_publication", "enable_free_model_training",
    "enable_paid_model_training", "require_private", "content_filters", "content_filter_builtins",
    "limit_nano", "reset_interval", "include_byok_in_budgets",
)  # fmt: skip
"""The fields of a guardrail that limit requests."""


class GuardrailNotFound(NotFound):
    message = "The guardrail does not exist."


class GuardrailQuerySet(OwnedQuerySet["Guardrail"]):
    """The rows of organizations."""


class GuardrailManager(models.Manager.from_queryset(GuardrailQuerySet)):  # type: ignore[misc]
    def create_guardrail(self, *, workspace: Workspace, name: str, **fields: Any) -> Guardrail:
        """Creates a guardrail in a workspace; it applies to nothing until it is assigned.

        Raises :class:`InvalidRequest` for a budget without an interval or an interval without a
        budget, :class:`WorkspaceNotFound` when the workspace was deleted meanwhile, and
        :class:`OrganizationLimitReached`.
        """
        with transaction.atomic():
            present = self.for_organization(workspace.organization_id)
            organization = Organization.objects.lock_with_room(
                workspace.organization_id, OrganizationLimit.GUARDRAILS, present
            )
            require_workspace(workspace.pk)
            guardrail = Guardrail(
                organization_id=workspace.organization_id,
                workspace=workspace,
                name=name,
                **_expand_zdr(fields),
            )
            guardrail.require_whole_budget()
            patterns = patterns_of(guardrail.content_filters)
            require_pattern_room(organization, patterns, replaced=guardrail.pk)
            guardrail.save(force_insert=True)
        return guardrail

    def edit_workspace_default(self, workspace: Workspace, **changes: Any) -> Guardrail:
        """Edits the guardrail of a whole workspace; the first edit creates it."""
        with transaction.atomic():
            Organization.objects.lock(workspace.organization_id)
            guardrail: Guardrail | None = self.filter(pk=workspace.default_guardrail_id).first()
            if guardrail is None:
                fields = {"name": "Workspace default", **changes}
                return self.create_guardrail(
                    workspace=workspace, id=workspace.default_guardrail_id, **fields
                )
            guardrail.edit(**changes)
        return guardrail


class Guardrail(BaseModel):
    """A set of limits for the keys and members that it is assigned to.

    A workspace's default guardrail (:attr:`Workspace.default_guardrail_id`) needs no assignment: it
    applies to the whole workspace. A flag of ``None`` leaves the decision to the organization; a
    guardrail can tighten the organization's rules, never relax them. The budget applies to each
    assigned key and to each assigned member separately.
    """

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="guardrails", editable=False
    )
    workspace = models.ForeignKey(
        Workspace, on_delete=models.CASCADE, related_name="guardrails", null=True, blank=True
    )
    name = models.CharField(max_length=255)
    description = models.TextField(null=True, blank=True)
    allowed_models = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    ignored_models = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_providers = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    ignored_providers = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    allowed_data_regions = ArrayField(
        models.CharField(max_length=16, choices=Region), null=True, blank=True
    )
    enforce_zdr = models.BooleanField(null=True, blank=True)
    enforce_zdr_anthropic = models.BooleanField(null=True, blank=True)
    enforce_zdr_google = models.BooleanField(null=True, blank=True)
    enforce_zdr_openai = models.BooleanField(null=True, blank=True)
    enforce_zdr_xai = models.BooleanField(null=True, blank=True)
    enforce_zdr_other = models.BooleanField(null=True, blank=True)
    allow_safety_retention_google = models.BooleanField(null=True, blank=True)
    allow_safety_retention_other = models.BooleanField(null=True, blank=True)
    enable_free_model_publication = models.BooleanField(null=True, blank=True)
    enable_free_model_training = models.BooleanField(null=True, blank=True)
    enable_paid_model_training = models.BooleanField(null=True, blank=True)
    require_private = models.BooleanField(
        null=True,
        blank=True,
        help_text="Requests for a model with a private endpoint never go to public ones.",
    )
    content_filters = models.JSONField(null=True, blank=True)
    content_filter_builtins = models.JSONField(null=True, blank=True)
    limit_nano = models.BigIntegerField(null=True, blank=True, help_text="In nano-USD.")
    reset_interval = models.CharField(max_length=16, choices=LimitReset, null=True, blank=True)
    include_byok_in_budgets = models.BooleanField(default=False)

    objects = GuardrailManager()

    class Meta:
        ordering = ("organization", "created_at", "id")
        constraints = [
            models.CheckConstraint(
                condition=Q(limit_nano=None) | Q(limit_nano__gte=0),
                name="guardrail_limit_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(limit_nano=None, reset_interval=None)
                | Q(limit_nano__isnull=False, reset_interval__isnull=False),
                name="guardrail_budget_whole",
            ),
        ]
        triggers = [RoutingVersionBump(), Audit()]

    def __str__(self) -> str:
        return self.name

    @property
    def policy(self) -> Policy:
        """Returns the limits on models, providers and regions as one policy.

        Nobody states what a provider looks through or publishes: one that keeps nothing does not.
        """
        allowed = {Family.GOOGLE: self.allow_safety_retention_google}
        others = self.allow_safety_retention_other
        return Policy.of(
            only=self.allowed_providers,
            ignore=self.ignored_providers,
            models=self.allowed_models,
            ignored_models=self.ignored_models,
            zdr=[family for family in Family if getattr(self, f"enforce_zdr_{family}")],
            no_retention=[each for each in Family if allowed.get(each, others) is False],
            no_free_retention=self.enable_free_model_publication is False,
            no_training=self.enable_paid_model_training is False,
            no_free_training=self.enable_free_model_training is False,
            ingress_regions=self.allowed_data_regions,
            fallback=Fallback.NONE if self.require_private else None,
        )

    def require_whole_budget(self) -> None:
        """Raises :class:`InvalidRequest` unless both limit and interval are set, or neither."""
        if (self.limit_nano is None) != (self.reset_interval is None):
            missing, given = "reset_interval", "limit_usd"
            if self.limit_nano is None:
                missing, given = given, missing
            raise refusal(missing, f"Must go together with {given}.")

    def propose(self, **changes: Any) -> Guardrail:
        """Returns the guardrail as :meth:`edit` would leave it, not stored."""
        proposal = copy(self)
        set_fields(proposal, _expand_zdr(changes))
        return proposal

    def edit(self, **changes: Any) -> bool:
        """PRESENT → PRESENT. Writes the fields that differ and returns whether any did.

        ``enforce_zdr`` sets the flag of every model family that ``changes`` does not name. Raises
        :class:`GuardrailNotFound` when the guardrail was deleted meanwhile,
        :class:`InvalidRequest` when only one of limit and interval would remain, and
        :class:`OrganizationLimitReached` for patterns that are too large together.
        """
        with transaction.atomic():
            organization = self._lock_present()
            changed = set_fields(self, _expand_zdr(changes))
            self.require_whole_budget()
            if "content_filters" in changed:
                patterns = patterns_of(self.content_filters)
                require_pattern_room(organization, patterns, replaced=self.pk)
            if changed:
                self.save_fields(*changed)
        return bool(changed)

    def remove(self) -> None:
        """PRESENT → DELETED. Deletes the row and its assignments.

        Raises :class:`GuardrailNotFound` when the guardrail was deleted before.
        """
        with transaction.atomic():
            self._lock_present()
            self.delete()

    def assign_keys(self, keys: Collection[ApiKey], *, by: str) -> int:
        """Assigns this guardrail to keys, replacing others; returns how many keys changed."""
        return self._assign(KeyAssignment, "api_key", keys, by)

    def unassign_keys(self, keys: Collection[ApiKey]) -> int:
        """Removes this guardrail from keys; returns how many keys changed."""
        return self._unassign(KeyAssignment, "api_key", keys)

    def assign_members(self, members: Collection[Member], *, by: str) -> int:
        """Assigns this guardrail to members, replacing others; returns how many members changed.

        Raises :class:`MemberNotFound` when one was deleted meanwhile.
        """
        return self._assign(MemberAssignment, "member", members, by)

    def unassign_members(self, members: Collection[Member]) -> int:
        """Removes this guardrail from members; returns how many members changed."""
        return self._unassign(MemberAssignment, "member", members)

    def _assign(
        self,
        kind: type[KeyAssignment] | type[MemberAssignment],
        name: str,
        subjects: Iterable[ApiKey] | Iterable[Member],
        by: str,
    ) -> int:
        with transaction.atomic():
            self._lock_present()
            manager: Any = kind._default_manager
            changed = {subject.pk: subject for subject in subjects}
            if kind is MemberAssignment:
                Member.objects.require_present(*changed)
            present = manager.filter(guardrail=self, **{f"{name}__in": changed})
            for pk in present.values_list(f"{name}_id", flat=True):
                del changed[pk]
            manager.filter(**{f"{name}__in": changed}).delete()
            manager.bulk_create(
                kind(guardrail=self, assigned_by=by, **{name: subject})
                for subject in changed.values()
            )
        return len(changed)

    def _unassign(
        self,
        kind: type[KeyAssignment] | type[MemberAssignment],
        name: str,
        subjects: Iterable[ApiKey] | Iterable[Member],
    ) -> int:
        with transaction.atomic():
            self._lock_present()
            manager: Any = kind._default_manager
            deleted: int = manager.filter(
                guardrail=self, **{f"{name}__in": [subject.pk for subject in subjects]}
            ).delete()[0]
        return deleted

    def _lock_present(self) -> Organization:
        """Locks the row and its organization, which is returned."""
        organization = Organization.objects.lock(self.organization_id)
        self.lock_row(GuardrailNotFound, no_key=True)
        return organization


def _expand_zdr(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with ``enforce_zdr`` copied into each family's flag that is missing.

    Only the families' flags decide; ``enforce_zdr`` itself is stored for display.
    """
    if "enforce_zdr" not in fields:
        return fields
    return {**{f"enforce_zdr_{family}": fields["enforce_zdr"] for family in Family}, **fields}


class KeyAssignment(BaseModel):
    """The guardrail of a key; a key has at most one."""

    guardrail = models.ForeignKey(
        Guardrail, on_delete=models.CASCADE, related_name="key_assignments"
    )
    api_key = models.OneToOneField(
        ApiKey, on_delete=models.CASCADE, related_name="guardrail_assignment"
    )
    assigned_by = models.CharField(max_length=255, null=True, editable=False)

    class Meta:
        ordering = ("created_at", "id")
        triggers = [
            # The organization is found through the guardrail, because the deletion of a member or a
            # key deletes its assignment too.
            RoutingVersionBump(through="guardrail"),
            Audit(organization="guardrail__organization"),
        ]

    def __str__(self) -> str:
        return f"{self.guardrail} for {self.api_key}"


class MemberAssignment(BaseModel):
    """The guardrail of a member; it applies to every key that the member created."""

    guardrail = models.ForeignKey(
        Guardrail, on_delete=models.CASCADE, related_name="member_assignments"
    )
    member = models.OneToOneField(
        Member, on_delete=models.CASCADE, related_name="guardrail_assignment"
    )
    assigned_by = models.CharField(max_length=255, null=True, editable=False)

    class Meta:
        ordering = ("created_at", "id")
        triggers = [
            # The organization is found through the guardrail, because the deletion of a member or a
            # key deletes its assignment too.
            RoutingVersionBump(through="guardrail"),
            Audit(organization="guardrail__organization"),
        ]

    def __str__(self) -> str:
        return f"{self.guardrail} for {self.member}"


class ShadowNotFound(NotFound):
    message = "The guardrail has no shadow. It was enforced or withdrawn before."


class GuardrailShadowManager(models.Manager["GuardrailShadow"]):
    def start(self, guardrail: Guardrail, *, by: str, **limits: Any) -> GuardrailShadow:
        """NONE → SHADOW. Starts to judge requests by the guardrail with these limits changed.

        It replaces an earlier shadow, and its counts begin with nothing. Raises
        :class:`InvalidRequest` for half a budget, :class:`GuardrailNotFound`, and
        :class:`OrganizationLimitReached` for patterns that are too large together.
        """
        with transaction.atomic():
            organization = guardrail._lock_present()
            proposal = guardrail.propose(**limits)
            proposal.require_whole_budget()
            if all(getattr(proposal, name) == getattr(guardrail, name) for name in LIMITS):
                raise InvalidRequest(
                    "The shadow has the limits of the guardrail. Change a limit first."
                )
            self.filter(guardrail=guardrail).delete()
            shadow = self.model(
                guardrail=guardrail,
                limits={name: getattr(proposal, name) for name in LIMITS},
                started_by=by,
            )
            patterns = patterns_of(proposal.content_filters)
            require_pattern_room(organization, patterns, replaced=shadow.pk)
            shadow.save(force_insert=True)
            return shadow


class GuardrailShadow(BaseModel):
    """A version of a guardrail that counts what it would refuse, and refuses nothing.

    It applies to the same keys and members. ``limits`` are all fields of :data:`LIMITS`, with which
    :meth:`enforce` replaces those of the guardrail.
    """

    guardrail = models.OneToOneField(Guardrail, on_delete=models.CASCADE, related_name="shadow")
    limits = models.JSONField()
    started_by = models.CharField(max_length=255, editable=False)

    objects = GuardrailShadowManager()

    class Meta:
        ordering = ("created_at", "id")
        triggers = [
            RoutingVersionBump(through="guardrail"),
            Audit(organization="guardrail__organization"),
        ]

    def __str__(self) -> str:
        return f"shadow of {self.guardrail}"

    @property
    def proposal(self) -> Guardrail:
        """The guardrail as it would be enforced, not stored."""
        return self.guardrail.propose(**self.limits)

    def enforce(self) -> None:
        """SHADOW → ENFORCED. Gives its limits to the guardrail, and ends.

        Raises :class:`ShadowNotFound` when the shadow ended before.
        """
        with transaction.atomic():
            self._lock_present()
            self.guardrail.edit(**self.limits)
            self.delete()

    def withdraw(self) -> None:
        """SHADOW → NONE. Ends; the guardrail stays as it is. Raises :class:`ShadowNotFound`."""
        with transaction.atomic():
            self._lock_present()
            self.delete()

    def _lock_present(self) -> None:
        self.guardrail._lock_present()
        self.lock_row(ShadowNotFound)


class KeyGuardrails(NamedTuple):
    """The guardrails that apply to a key: its workspace's, its creator's and its own."""

    workspace: Guardrail | None
    member: Guardrail | None
    key: Guardrail | None


def guardrails_of(key: ApiKey) -> KeyGuardrails:
    """Returns the guardrails that apply to a key, with one query."""
    default_id = default_guardrail_id(key.workspace_id)
    of_creator = MemberAssignment.objects.filter(guardrail=OuterRef("pk"), member=key.creator_id)
    of_key = KeyAssignment.objects.filter(guardrail=OuterRef("pk"), api_key=key)
    rows = list(
        Guardrail.objects.for_organization(key.organization_id)
        .annotate(is_of_creator=Exists(of_creator), is_of_key=Exists(of_key))
        .filter(Q(pk=default_id) | Q(is_of_creator=True) | Q(is_of_key=True))
    )
    return KeyGuardrails(
        next((row for row in rows if row.pk == default_id), None),
        next((row for row in rows if row.is_of_creator), None),
        next((row for row in rows if row.is_of_key), None),
    )


def policy_of(key: ApiKey) -> Policy:
    """Returns the policy of a key: its organization's and those of its guardrails together."""
    policy = key.organization.policy
    for guardrail in guardrails_of(key):
        if guardrail is not None:
            policy &= guardrail.policy
    return policy
