"""The shapes of guardrails and their assignments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

import phonenumbers
from django.db.models import Q
from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import Guardrail, KeyAssignment, LimitReset, MemberAssignment, Region
from accounts.patterns import MAX_FILTERS, MAX_LABEL, MAX_PATTERN, InvalidPattern, compile_budgets
from accounts.policy import author_pattern
from catalog.models import LanguageModel, Provider
from config.api.fields import (
    ChoiceField,
    DollarsField,
    FlagField,
    StrictSerializer,
    StringField,
    UUIDField,
)
from config.api.openapi import envelope, list_envelope
from endpoints.models import PrivateProvider

BUILTIN_LABELS: Final = {
    "email": "[EMAIL]",
    "phone": "[PHONE]",
    "ssn": "[SSN]",
    "credit-card": "[CREDIT_CARD]",
    "ip-address": "[IP_ADDRESS]",
    "secrets": "[SECRET]",
    "regex-prompt-injection": "[PROMPT_INJECTION]",
}
_UNRECOGNISABLE: Final = ("person-name", "address")
_PHONE: Final = "phone"
# The plans of all regions are compiled into one pattern.
_MAX_REGIONS: Final = 20
_MAX_LIST: Final = 1000
_MAX_DESCRIPTION: Final = 4096
_MODELS: Final = "Public or canonical slugs, or `author/*` for all models of an author."
_ACTIONS: Final = ("redact", "block", "flag")

Known: TypeAlias = Callable[[list[str], UUID | None], list[str] | None]
"""Returns names as they are stored; refuses those that an organization does not know."""


def _texts(**kwargs: Any) -> serializers.ListField:
    return serializers.ListField(
        child=StringField(min_length=1), max_length=_MAX_LIST, required=False, **kwargs
    )


class _FilterInput(StrictSerializer):
    action = ChoiceField(choices=_ACTIONS)
    block_unreadable = FlagField(
        required=False,
        help_text="Only with the action `block`: also blocks media, signatures and encrypted "
        "content, which no filter can read.",
    )

    def validate(self, entry: dict[str, Any]) -> dict[str, Any]:
        if entry.get("block_unreadable") and entry["action"] != "block":
            raise ValidationError({"block_unreadable": "Requires the action block."})
        return entry


@extend_schema_serializer(component_name="ContentFilterEntryInput")
class _ContentFilterInput(_FilterInput):
    pattern = StringField(min_length=1, max_length=MAX_PATTERN, help_text="In the syntax of RE2.")
    label = StringField(  # type: ignore[assignment]
        required=False, allow_null=True, min_length=1, max_length=MAX_LABEL
    )


@extend_schema_serializer(component_name="ContentFilterBuiltinEntryInput")
class _BuiltinInput(_FilterInput):
    slug = ChoiceField(choices=(*BUILTIN_LABELS, *_UNRECOGNISABLE))
    label = StringField(required=False, help_text="Ignored: the system sets it.")  # type: ignore[assignment]
    scan_scope = ChoiceField(
        choices=("user_only", "all_messages"),
        required=False,
        help_text="Only for `regex-prompt-injection`; ignored for other slugs.",
    )

    regions = serializers.ListField(
        child=StringField(),
        min_length=1,
        max_length=_MAX_REGIONS,
        required=False,
        help_text="Extension, only for `phone`: the ISO 3166 codes of the regions whose national "
        'numbers it finds; `["US"]` if absent.',
    )

    def validate_slug(self, slug: str) -> str:
        if slug in _UNRECOGNISABLE:
            raise ValidationError(f"No pattern recognises {slug}; it is not offered here.")
        return slug

    def validate_regions(self, regions: list[str]) -> list[str]:
        for region in regions:
            if region not in phonenumbers.SUPPORTED_REGIONS:
                raise ValidationError(f"{region} is not a region with telephone numbers.")
        return list(dict.fromkeys(regions))

    def validate(self, entry: dict[str, Any]) -> dict[str, Any]:
        if "regions" in entry and entry["slug"] != _PHONE:
            raise ValidationError({"regions": "Requires the slug phone."})
        return super().validate(entry)


class _GuardrailFields(StrictSerializer):
    """The fields that both creation and update accept."""

    description = StringField(
        max_length=_MAX_DESCRIPTION, required=False, allow_null=True, allow_blank=True
    )
    allowed_models = _texts(allow_null=True, help_text=_MODELS)
    ignored_models = _texts(allow_null=True, help_text=_MODELS)
    allowed_providers = _texts(allow_null=True)
    ignored_providers = _texts(allow_null=True)
    allowed_data_regions = serializers.ListField(
        child=ChoiceField(choices=Region.choices),
        max_length=_MAX_LIST,
        required=False,
        allow_null=True,
        allow_empty=False,
        help_text="Requests must arrive through the hosts of these regions; null for any host.",
    )
    enforce_zdr = FlagField(
        required=False,
        allow_null=True,
        help_text="Deprecated: copied into every `enforce_zdr_*` field that is not sent.",
    )
    enforce_zdr_anthropic = FlagField(required=False, allow_null=True)
    enforce_zdr_google = FlagField(required=False, allow_null=True)
    enforce_zdr_openai = FlagField(required=False, allow_null=True)
    enforce_zdr_xai = FlagField(required=False, allow_null=True)
    enforce_zdr_other = FlagField(required=False, allow_null=True)
    allow_safety_retention_google = FlagField(required=False, allow_null=True)
    allow_safety_retention_other = FlagField(required=False, allow_null=True)
    enable_free_model_publication = FlagField(required=False, allow_null=True)
    enable_free_model_training = FlagField(required=False, allow_null=True)
    enable_paid_model_training = FlagField(required=False, allow_null=True)
    require_private = FlagField(
        required=False,
        allow_null=True,
        help_text="Extension: requests for a model for which the organization has, or had, a "
        "private endpoint never go to public ones.",
    )
    content_filters = serializers.ListField(
        child=_ContentFilterInput(), max_length=MAX_FILTERS, required=False, allow_null=True
    )
    content_filter_builtins = serializers.ListField(
        child=_BuiltinInput(), max_length=_MAX_LIST, required=False, allow_null=True
    )
    limit_usd = DollarsField(
        source="limit_nano",
        required=False,
        allow_null=True,
        help_text="The spending limit of each key or member; requires `reset_interval`.",
    )
    reset_interval = ChoiceField(choices=LimitReset.choices, required=False, allow_null=True)
    include_byok_in_budgets = FlagField(required=False)

    def validate_allowed_models(self, names: list[str] | None) -> list[str] | None:
        return self._check_new("allowed_models", names, canonical_models)

    def validate_ignored_models(self, names: list[str] | None) -> list[str] | None:
        return self._check_new("ignored_models", names, canonical_models)

    def validate_allowed_providers(self, names: list[str] | None) -> list[str] | None:
        return self._check_new("allowed_providers", names, known_providers)

    def validate_ignored_providers(self, names: list[str] | None) -> list[str] | None:
        return self._check_new("ignored_providers", names, known_providers)

    def _check_new(self, field: str, names: list[str] | None, known: Known) -> list[str] | None:
        if names is None:
            return None
        stored = self.stored_entries(field)
        return keep_stored(names, stored, known, self.context["organization_id"])

    def validate_allowed_data_regions(self, regions: list[str] | None) -> list[str] | None:
        return None if regions is None else list(dict.fromkeys(regions))

    def validate_content_filters(self, entries: list[Any] | None) -> list[dict[str, Any]] | None:
        if entries is None:
            return None
        try:
            compile_budgets.compile(
                self.context.get("organization_id"), [entry["pattern"] for entry in entries]
            )
        except InvalidPattern as exc:
            why, index = exc.args
            raise ValidationError({index: {"pattern": [why]}}) from None
        return [
            {
                "action": entry["action"],
                "pattern": entry["pattern"],
                "label": entry.get("label"),
                **_unreadable(entry),
            }
            for entry in entries
        ]

    def validate_content_filter_builtins(
        self, entries: list[Any] | None
    ) -> list[dict[str, Any]] | None:
        if entries is None:
            return None
        slugs = [entry["slug"] for entry in entries]
        if len(set(slugs)) != len(slugs):
            raise ValidationError("Must name each builtin once.")
        return [
            {
                "slug": entry["slug"],
                "action": entry["action"],
                "label": BUILTIN_LABELS[entry["slug"]],
                **(
                    {"scan_scope": entry.get("scan_scope", "all_messages")}
                    if entry["slug"] == "regex-prompt-injection"
                    else {}
                ),
                **({"regions": entry["regions"]} if "regions" in entry else {}),
                **_unreadable(entry),
            }
            for entry in entries
        ]


def _unreadable(entry: dict[str, Any]) -> dict[str, bool]:
    """Returns the member ``block_unreadable`` of a stored filter, which only a true one has."""
    return {"block_unreadable": True} if entry.get("block_unreadable") else {}


def keep_stored(
    names: Iterable[str], stored: Iterable[str], known: Known, organization_id: UUID | None
) -> list[str]:
    """Returns the entries in their order: stored ones as they are, new ones as ``known`` does.

    Only new ones are refused: what is stored may have left the catalogue since.
    """
    given, old = list(names), frozenset(stored)
    new = list(dict.fromkeys(name for name in given if name not in old))
    spelled = dict(zip(new, known(new, organization_id) or (), strict=True))
    return list(dict.fromkeys(spelled.get(name, name) for name in given))


def canonical_models(names: Iterable[str] | None, organization_id: UUID | None) -> list[str] | None:
    """Returns the canonical slugs of models in their order; refuses an unknown name.

    ``author/*``, which names all models of an author, stays as it is. The organization's own models
    are known too.
    """
    if names is None:
        return None
    wanted = list(names)
    models = LanguageModel.objects.visible_to(organization_id)
    rows = models.filter(Q(slug__in=wanted) | Q(canonical_slug__in=wanted))
    found = _find_authors([name for name in wanted if name.endswith("/*")], models)
    for slug, canonical in rows.values_list("slug", "canonical_slug"):
        found |= {slug: canonical, canonical: canonical}
    _refuse_unknown("model", wanted, found)
    return [found[name] for name in wanted]


def _find_authors(patterns: Sequence[str], models: Any) -> dict[str, str]:
    """Returns those patterns whose author has a model, by themselves."""
    if not patterns:
        return {}
    of_authors = Q(*(("slug__startswith", name[:-1]) for name in patterns), _connector=Q.OR)
    slugs = models.filter(of_authors).values_list("slug", flat=True)
    found = {author_pattern(slug) for slug in slugs}
    return {name: name for name in patterns if name in found}


def known_providers(names: Iterable[str] | None, organization_id: UUID | None) -> list[str] | None:
    """Returns the slugs of providers without duplicates; refuses an unknown slug.

    The organization's private providers are known too.
    """
    if names is None:
        return None
    wanted = list(dict.fromkeys(names))
    found = set(Provider.objects.filter(slug__in=wanted).values_list("slug", flat=True))
    if organization_id is not None:
        own = PrivateProvider.objects.for_organization(organization_id).filter(slug__in=wanted)
        found.update(own.values_list("slug", flat=True))
    _refuse_unknown("provider", wanted, found)
    return wanted


def _refuse_unknown(what: str, wanted: list[str], found: Iterable[str]) -> None:
    known = set(found)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ValidationError(f"{unknown[0]} is not a {what} of the catalogue.")


@extend_schema_serializer(component_name="CreateGuardrailRequest")
class CreateGuardrailSerializer(_GuardrailFields):
    name = StringField(min_length=1)
    workspace_id = UUIDField(
        required=False,
        help_text="The workspace whose list shows it; the default workspace if absent.",
    )


@extend_schema_serializer(component_name="UpdateGuardrailRequest")
class UpdateGuardrailSerializer(_GuardrailFields):
    """An absent field stays unchanged; `null` clears a field, and a list replaces the old list."""

    name = StringField(required=False, min_length=1)


@extend_schema_serializer(component_name="ContentFilterEntry")
class _ContentFilterSerializer(serializers.Serializer[Any]):
    action = serializers.CharField()
    pattern = serializers.CharField()
    label = serializers.CharField(allow_null=True)  # type: ignore[assignment]
    block_unreadable = serializers.BooleanField(required=False)


@extend_schema_serializer(component_name="ContentFilterBuiltinEntry")
class _BuiltinSerializer(serializers.Serializer[Any]):
    action = serializers.CharField()
    slug = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    scan_scope = serializers.CharField(required=False)
    regions = serializers.ListField(child=serializers.CharField(), required=False)
    block_unreadable = serializers.BooleanField(required=False)


@extend_schema_serializer(component_name="Guardrail")
class GuardrailSerializer(serializers.ModelSerializer[Guardrail]):
    workspace_id = serializers.UUIDField(allow_null=True)
    allowed_data_regions = serializers.ListField(child=serializers.CharField(), allow_null=True)
    content_filters = _ContentFilterSerializer(many=True, allow_null=True)
    content_filter_builtins = _BuiltinSerializer(many=True, allow_null=True)
    limit_usd = DollarsField(source="limit_nano", allow_null=True)
    reset_interval = serializers.ChoiceField(choices=LimitReset.choices, allow_null=True)

    class Meta:
        model = Guardrail
        fields = (
            "id", "workspace_id", "name", "description", "allowed_models", "ignored_models",
            "allowed_providers", "ignored_providers", "allowed_data_regions", "enforce_zdr",
            "enforce_zdr_anthropic", "enforce_zdr_google", "enforce_zdr_openai", "enforce_zdr_xai",
            "enforce_zdr_other", "allow_safety_retention_google", "allow_safety_retention_other",
            "enable_free_model_publication", "enable_free_model_training",
            "enable_paid_model_training", "require_private", "content_filters",
            "content_filter_builtins", "limit_usd", "reset_interval", "include_byok_in_budgets",
            "created_at", "updated_at",
        )  # fmt: skip
        read_only_fields = fields


GuardrailResponseSerializer = envelope("GuardrailResponse", data=GuardrailSerializer())


GuardrailListSerializer = list_envelope("ListGuardrailsResponse", GuardrailSerializer)


@extend_schema_serializer(component_name="GuardrailKeysRequest")
class KeyHashesSerializer(StrictSerializer):
    key_hashes = serializers.ListField(child=StringField(min_length=1), max_length=_MAX_LIST)


@extend_schema_serializer(component_name="GuardrailMembersRequest")
class MemberIdsSerializer(StrictSerializer):
    member_user_ids = serializers.ListField(child=StringField(min_length=1), max_length=_MAX_LIST)


AssignedSerializer = envelope(
    "BulkAssignResponse",
    assigned_count=serializers.IntegerField(
        help_text="Number of those that had another guardrail or none."
    ),
)


UnassignedSerializer = envelope("BulkUnassignResponse", unassigned_count=serializers.IntegerField())


@extend_schema_serializer(component_name="KeyAssignment")
class KeyAssignmentSerializer(serializers.ModelSerializer[KeyAssignment]):
    guardrail_id = serializers.UUIDField()
    key_hash = serializers.CharField(source="api_key.digest")
    key_name = serializers.CharField(source="api_key.name")
    key_label = serializers.CharField(source="api_key.label")

    class Meta:
        model = KeyAssignment
        fields = (
            "id", "guardrail_id", "key_hash", "key_name", "key_label", "assigned_by", "created_at",
        )  # fmt: skip
        read_only_fields = fields


KeyAssignmentListSerializer = list_envelope("ListKeyAssignmentsResponse", KeyAssignmentSerializer)


@extend_schema_serializer(component_name="MemberAssignment")
class MemberAssignmentSerializer(serializers.ModelSerializer[MemberAssignment]):
    guardrail_id = serializers.UUIDField()
    organization_id = serializers.UUIDField(source="member.organization_id")
    user_id = serializers.UUIDField(source="member_id")

    class Meta:
        model = MemberAssignment
        fields = (
            "id", "guardrail_id", "organization_id", "user_id", "assigned_by", "created_at",
        )  # fmt: skip
        read_only_fields = fields


MemberAssignmentListSerializer = list_envelope(
    "ListMemberAssignmentsResponse", MemberAssignmentSerializer
)
