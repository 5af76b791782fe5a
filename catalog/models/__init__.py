"""The catalogue: providers, language models, public endpoints and their prices."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any, Self
from urllib.parse import urlsplit

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models import F, Q
from django.db.models.functions import Lower

from accounts.models import ByokCredential, Organization
from catalog.capabilities import Capabilities, NativeFormat, ThinkingControl, read_capabilities

# Django finds the models of the app in this module only.
from catalog.models.aliases import ModelAlias as ModelAlias
from catalog.models.versions import CatalogChange as CatalogChange
from catalog.models.versions import CatalogVersion as CatalogVersion
from catalog.models.versions import CatalogVersionBump, OwnedVersionBump
from catalog.pricing import RATES, Price, dump_rules
from config import secrets
from config.api.errors import Conflict
from config.audit.triggers import Audit
from config.clocks.clock import clock
from config.credentials import NO_SECRET, Secret
from config.egress.addresses import Reach
from config.models import BaseModel, ReachingModel, StampField, StatefulModel, TimeLimitedModel
from config.triggers import AppendOnly

_PRICE: dict[str, Any] = {
    "max_digits": 36,
    "decimal_places": 30,
    "validators": [MinValueValidator(0)],
}


class DialectName(models.TextChoices):
    """The wire format of a provider; ``catalog.dialects`` has a module for each."""

    OPENAI = "openai", "OpenAI"
    ANTHROPIC = "anthropic", "Anthropic Messages"
    GEMINI = "gemini", "Gemini generateContent"
    AZURE = "azure", "Azure OpenAI"
    BEDROCK = "bedrock", "Amazon Bedrock Converse"
    VERTEX = "vertex", "Google Vertex AI"

    @property
    def has_url_in_credential(self) -> bool:
        """Returns whether the URL of a deployment comes from the credential, not ``base_url``."""
        return self in (DialectName.AZURE, DialectName.BEDROCK, DialectName.VERTEX)


def associated_data(provider_id: uuid.UUID) -> str:
    """Returns the text that binds a sealed secret of the operator to its provider."""
    return f"provider|{provider_id}"


def hosts_of(dialect: str, base_url: str | None, named: str = "") -> frozenset[str]:
    """Returns a provider's own hosts: that of ``base_url``, or the one that a secret names.

    ``named`` is the host that the secret names, for dialects whose secrets name one.
    """
    if DialectName(dialect).has_url_in_credential:
        return frozenset((named,)) if named else frozenset()
    try:
        host = urlsplit(base_url or "").hostname
    except ValueError:
        return frozenset()  # the address is refused when it is called
    return frozenset((host,)) if host else frozenset()


class ListedRow(BaseModel):
    """A row of the catalogue whose ``is_listed`` says whether new requests may use it."""

    is_listed: Any

    class Meta:
        abstract = True

    def delist(self) -> bool:
        """LISTED → DELISTED. No new request uses it; returns whether that is new."""
        return self._list(False)

    def relist(self) -> bool:
        """DELISTED → LISTED. New requests may use it again; returns whether that is new."""
        return self._list(True)

    def _list(self, is_listed: bool) -> bool:
        with transaction.atomic():
            locked = type(self)._base_manager.select_for_update(no_key=True)
            self.refresh_from_db(from_queryset=locked)
            if self.is_listed == is_listed:
                return False
            self.is_listed = is_listed
            self.save_fields("is_listed")
        return True


class Provider(ReachingModel, ListedRow):
    """A company or platform that serves models with one dialect."""

    slug = models.CharField(max_length=255, unique=True)
    name = models.CharField(max_length=255)
    dialect = models.CharField(max_length=16, choices=DialectName)
    base_url = models.CharField(
        max_length=2048,
        null=True,
        blank=True,
        help_text="Empty when the URL comes from the credential.",
    )
    trains_on_prompts = models.BooleanField(default=False)
    retains_prompts = models.BooleanField(default=False)
    datacenters = ArrayField(models.CharField(max_length=2), default=list, blank=True)
    headquarters = models.CharField(max_length=2, null=True, blank=True)
    privacy_policy_url = models.URLField(max_length=2048, null=True, blank=True)
    terms_of_service_url = models.URLField(max_length=2048, null=True, blank=True)
    status_page_url = models.URLField(max_length=2048, null=True, blank=True)
    requests_per_minute = models.IntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Of the operator's account at the provider. Empty: no limit is known.",
    )
    tokens_per_minute = models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Prompt and completion tokens. Empty: no limit is known.",
    )
    is_listed = models.BooleanField(
        default=True, help_text="Off: the provider was removed from the catalogue."
    )
    is_keyless = models.BooleanField(
        "takes no key",
        default=False,
        db_default=False,
        help_text="The server answers without a credential, and is sent none of the operator's.",
    )
    sealed_credential = models.BinaryField(null=True, editable=False)
    credential_label = models.CharField(max_length=32, default="", editable=False)

    class Meta:
        ordering = ("slug",)
        constraints = [
            models.CheckConstraint(
                condition=Q(is_keyless=False)
                | Q(
                    sealed_credential=None,
                    dialect__in=[
                        name.value for name in DialectName if not name.has_url_in_credential
                    ],
                ),
                name="provider_keyless_has_no_credential",
            )
        ]
        triggers = [CatalogVersionBump("id"), Audit(masked=("sealed_credential",))]

    def __str__(self) -> str:
        return self.name

    @property
    def has_credential(self) -> bool:
        """Whether the operator can call the provider: with a secret, or because it takes none."""
        return self.is_keyless or self.sealed_credential is not None

    @property
    def reach(self) -> Reach:
        return super().reach._replace(is_proxied=True)

    def own_hosts(self, named: str = "") -> frozenset[str]:
        """Returns the provider's own hosts; see :func:`hosts_of`."""
        return hosts_of(self.dialect, self.base_url, named)

    def explain_stay(
        self, dialect: str, base_url: str | None, *, has_secret: bool = False
    ) -> str | None:
        """Returns why the provider may not move to a base URL: no stored secret goes there.

        An operator who cannot see a secret must not send it to another host. ``has_secret`` is
        true if the operator's own secret is replaced too.
        """
        if hosts_of(dialect, base_url) <= self.own_hosts():
            return None
        if self.sealed_credential is not None and not has_secret:
            return (
                "The host changes, and the stored credential goes to no other host. Enter the "
                "credential again on the provider's page."
            )
        if ByokCredential.objects.filter(provider_slug=self.slug, deleted_at=None).exists():
            return (
                "The host changes, and credentials of organizations at this provider go to no "
                "other host. Add another provider."
            )
        return None

    @property
    def _associated(self) -> str:
        return associated_data(self.pk)

    def set_credential(self, secret: Secret) -> None:
        """Replaces the operator's secret for this provider, and forgets that one was refused.

        A provider that has a secret is keyless no more; ``NO_SECRET`` makes it keyless.
        """
        self.is_keyless = secret == NO_SECRET
        sealed = None if self.is_keyless else secrets.seal(secret, associated=self._associated)
        self.sealed_credential = sealed
        self.credential_label = "" if self.is_keyless else secret.label
        with transaction.atomic():
            self.save_fields("is_keyless", "sealed_credential", "credential_label")
            CredentialRefusal.objects.filter(provider=self).delete()

    def rewrap_credential(self) -> bool:
        """Encrypts the secret with the first credential key; returns whether the row changed."""
        return secrets.rewrap_row(self, "sealed_credential", associated=self._associated)

    def reveal_credential(self) -> Secret:
        """Decrypts the operator's secret; raises :class:`config.secrets.DecryptionFailed`."""
        if self.is_keyless:
            return NO_SECRET
        return secrets.unseal(bytes(self.sealed_credential or b""), associated=self._associated)


class CredentialRefusal(models.Model):
    """The mark of a provider that refuses the operator's credential, until it accepts one again.

    Workers write it beside the requests. It is no column of the provider, because each change of a
    provider is a new version of the catalogue.
    """

    provider = models.OneToOneField(
        Provider, on_delete=models.CASCADE, primary_key=True, related_name="refusal"
    )
    reason = models.TextField(help_text="The provider's code and message, without secrets.")
    since = models.DateTimeField()
    seen_at = models.DateTimeField(help_text="When the provider refused it last.")

    def __str__(self) -> str:
        return f"{self.provider}: {self.reason}"


class LanguageModelQuerySet(models.QuerySet["LanguageModel"]):
    def listed(self) -> Self:
        return self.filter(is_listed=True)


class LanguageModelManager(models.Manager.from_queryset(LanguageModelQuerySet)):  # type: ignore[misc]
    """Reads the models of the catalogue; those of organizations must be asked for."""

    def get_queryset(self) -> Any:
        return super().get_queryset().filter(organization=None)

    def of_everybody(self) -> Any:
        """Returns all models, with those of all organizations: for operators alone."""
        return super().get_queryset()

    def owned_by(self, organization_id: uuid.UUID) -> Any:
        """Returns an organization's own models that are not deleted."""
        return super().get_queryset().filter(organization_id=organization_id, is_listed=True)

    def visible_to(self, organization_id: uuid.UUID | None) -> Any:
        """Returns the models of the catalogue, and then those that the organization owns.

        An own model may have the name of one that came to the catalogue later. It is the one that
        its organization means, so a mapping from names keeps the last.
        """
        if organization_id is None:
            return self.get_queryset()
        own = Q(organization_id=organization_id, is_listed=True)
        rows = super().get_queryset().filter(Q(organization=None) | own)
        return rows.order_by(F("organization").asc(nulls_first=True), "slug")


class LanguageModel(ListedRow):
    """A language model of the catalogue, or one of an organization's own; without its providers.

    ``slug`` is the public name in requests; ``canonical_slug`` never changes once published. Those
    of an own model are equal. ``base_model`` is the model that it was made from. A deleted own
    model is not listed; its row stays, because the rows of its deleted endpoints do.
    """

    slug = models.CharField(max_length=255)
    canonical_slug = models.CharField(max_length=255)
    organization = models.ForeignKey(
        Organization,
        on_delete=models.CASCADE,
        related_name="own_models",
        null=True,
        blank=True,
        editable=False,
        db_index=False,
    )
    base_model = models.CharField(max_length=255, default="", db_default="", editable=False)
    name = models.CharField(max_length=255)
    created = models.BigIntegerField(help_text="Publication time, in Unix seconds.")
    description = models.TextField(blank=True)
    context_length = models.PositiveBigIntegerField(null=True, blank=True)
    input_modalities = ArrayField(models.CharField(max_length=32))
    output_modalities = ArrayField(models.CharField(max_length=32))
    modality = models.CharField(max_length=255, null=True, blank=True)
    tokenizer = models.CharField(max_length=64, null=True, blank=True)
    instruct_type = models.CharField(max_length=64, null=True, blank=True)
    supported_parameters = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    default_parameters = models.JSONField(null=True, blank=True)
    per_request_limits = models.JSONField(null=True, blank=True)
    supported_voices = ArrayField(models.CharField(max_length=255), null=True, blank=True)
    expiration_date = models.DateField(null=True, blank=True)
    knowledge_cutoff = models.DateField(null=True, blank=True)
    native_format = models.CharField(
        max_length=16,
        choices=[
            (NativeFormat.OPENAI.value, "OpenAI"),
            (NativeFormat.ANTHROPIC.value, "Anthropic Messages"),
            (NativeFormat.RESPONSES.value, "OpenAI Responses alone"),
            (NativeFormat.BOTH.value, "OpenAI and OpenAI Responses"),
        ],
        default=NativeFormat.OPENAI.value,
        db_default=NativeFormat.OPENAI.value,
        help_text=(
            "The format in which Azure, Bedrock and Vertex serve the model. Responses: all its "
            "providers of the dialects OpenAI and Azure serve /responses."
        ),
    )
    thinking = models.CharField(
        "thinking is limited by",
        max_length=16,
        choices=[
            (ThinkingControl.EFFORT.value, "an effort"),
            (ThinkingControl.BUDGET.value, "a budget of tokens"),
        ],
        default=ThinkingControl.EFFORT.value,
        db_default=ThinkingControl.EFFORT.value,
        help_text="Matters to the formats of Anthropic and Gemini.",
    )
    thinks_between_tools = models.BooleanField(
        "always thinks between tools",
        default=False,
        db_default=False,
        help_text="Such a model cannot be forced to call a tool. Matters to Anthropic's format.",
    )
    combines_sampling = models.BooleanField(
        "accepts temperature with top_p",
        default=False,
        db_default=False,
        help_text="Otherwise it gets the temperature alone. Matters to Anthropic's format.",
    )
    is_listed = models.BooleanField(
        default=True, help_text="Off: the model was removed from the catalogue."
    )

    objects = LanguageModelManager()

    class Meta:
        verbose_name = "model"
        ordering = ("slug",)
        constraints = [
            models.UniqueConstraint(
                fields=("slug",), condition=Q(organization=None), name="model_slug_unique"
            ),
            models.UniqueConstraint(
                fields=("canonical_slug",),
                condition=Q(organization=None),
                name="model_canonical_slug_unique",
            ),
            models.UniqueConstraint(
                "organization",
                Lower("slug"),
                condition=Q(organization__isnull=False, is_listed=True),
                name="own_model_slug_unique",
            ),
            models.CheckConstraint(
                condition=Q(
                    native_format__in=[name.value for name in NativeFormat],
                    thinking__in=[name.value for name in ThinkingControl],
                ),
                name="model_capabilities_known",
            ),
        ]
        triggers = [OwnedVersionBump(), Audit()]

    def __str__(self) -> str:
        return self.name

    @property
    def lineage(self) -> str:
        """The slug whose author and family tell how the model is spoken to."""
        return self.base_model or self.slug

    @property
    def capabilities(self) -> Capabilities:
        return read_capabilities(
            self.native_format,
            self.thinking,
            self.thinks_between_tools,
            self.combines_sampling,
            self.lineage.partition("/")[0],
        )


class PriceVersion(models.Model):
    """A price of an endpoint; append-only, because generations point at the price they paid.

    The columns are exact decimals in USD per token, per image of the prompt, and per request.
    ``lines`` are the rules of every other rate, and of rates under conditions; see
    :mod:`catalog.pricing`. ``subject_id`` is the id of a public or private endpoint; a foreign key
    could not refer to both.
    """

    id = models.BigAutoField(primary_key=True)
    subject_id = models.UUIDField(db_index=True, editable=False)
    prompt = models.DecimalField(**_PRICE)
    completion = models.DecimalField(**_PRICE)
    image = models.DecimalField(**_PRICE, default=0)
    request = models.DecimalField(**_PRICE, default=0)
    cache_read = models.DecimalField(
        **_PRICE,
        null=True,
        blank=True,
        help_text="Empty: cached tokens cost as much as prompt tokens.",
    )
    cache_write = models.DecimalField(**_PRICE, null=True, blank=True)
    image_output = models.DecimalField(
        **_PRICE,
        null=True,
        blank=True,
        help_text="Empty: image tokens cost as much as completion tokens.",
    )
    discount = models.DecimalField(
        max_digits=11,
        decimal_places=10,
        default=0,
        db_default=0,
        help_text="The share that is taken off every rate.",
    )
    lines = models.JSONField(default=list, db_default=[], blank=True)
    created_at = StampField(auto_now_add=True, editable=False)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(
                condition=Q(prompt__gte=0, completion__gte=0, image__gte=0, request__gte=0)
                & (Q(cache_read=None) | Q(cache_read__gte=0))
                & (Q(cache_write=None) | Q(cache_write__gte=0))
                & (Q(image_output=None) | Q(image_output__gte=0)),
                name="price_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(discount__gte=0, discount__lte=1), name="price_discount_is_a_share"
            ),
        ]
        triggers = [AppendOnly(), Audit()]

    def __str__(self) -> str:
        return f"#{self.pk}: {self.price.text('prompt')} / {self.price.text('completion')}"

    @classmethod
    def of(cls, *, subject_id: uuid.UUID, price: Price) -> Self:
        """Returns an unsaved price version for an endpoint."""
        rates: dict[str, Any] = {name: getattr(price, name) for name in (*RATES, "discount")}
        return cls(subject_id=subject_id, lines=dump_rules(price.rules), **rates)

    @property
    def price(self) -> Price:
        return Price.of_row(*(getattr(self, name) for name in (*RATES, "discount", "lines")))


class PriceMoved(Conflict):
    """A price was changed by somebody else since the caller has seen it."""

    error_type = "price_moved"
    message = (
        "The price has changed since this page was opened. Nothing was saved. Open the page again."
    )


def require_basis(present: int, basis: int | None) -> None:
    """Raises :class:`PriceMoved` unless a price version is the one that a caller has seen."""
    if basis is not None and basis != present:
        raise PriceMoved


class ModelEndpointQuerySet(models.QuerySet["ModelEndpoint"]):
    def routable(self) -> Self:
        """Returns the listed endpoints whose model and provider are listed too."""
        return self.filter(is_listed=True, model__is_listed=True, provider__is_listed=True)


class ModelEndpoint(TimeLimitedModel, ListedRow):
    """A public endpoint: a model at a provider, with a list price."""

    model = models.ForeignKey(
        LanguageModel, on_delete=models.PROTECT, related_name="endpoints", db_index=False
    )
    provider = models.ForeignKey(Provider, on_delete=models.PROTECT, related_name="endpoints")
    upstream_model_id = models.CharField(max_length=255)
    region = models.CharField(max_length=16, default="global")
    price = models.ForeignKey(PriceVersion, on_delete=models.PROTECT, related_name="+")
    context_length = models.PositiveBigIntegerField(null=True, blank=True)
    max_completion_tokens = models.PositiveBigIntegerField(null=True, blank=True)
    quantization = models.CharField(max_length=16, null=True, blank=True)
    is_moderated = models.BooleanField(default=False)
    zdr = models.BooleanField("zero data retention", default=False)
    supported_parameters = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    abilities = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="What else the endpoint is able to do, as in the catalogue file.",
    )
    source = models.CharField(
        max_length=255,
        default="",
        db_default="",
        editable=False,
        help_text="The price list that the price comes from. Empty: an operator set it.",
    )
    as_of = models.DateField(null=True, editable=False, help_text="The day of the price list.")
    is_listed = models.BooleanField(
        default=True, help_text="Off: the endpoint was removed from the catalogue."
    )

    objects = ModelEndpointQuerySet.as_manager()

    class Meta:
        ordering = ("model", "provider")
        constraints = [
            models.UniqueConstraint(
                fields=("model", "provider", "upstream_model_id", "region"),
                name="model_endpoint_unique",
            ),
            TimeLimitedModel.constrain_times("model_endpoint_times"),
        ]
        triggers = [CatalogVersionBump("model_id"), Audit()]

    def __str__(self) -> str:
        return f"{self.model} at {self.provider}"

    @cached_property
    def listed_parameters(self) -> list[str]:
        """Returns the endpoint's own parameters, or those of the model if it lists none."""
        return self.supported_parameters or self.model.supported_parameters

    def reprice(self, price: Price, *, basis: int | None = None) -> bool:
        """ANY → same. Sets the price of later requests; returns whether it is another one.

        No list has set such a price: a sync asks before it replaces it. ``basis`` is the price
        version that the caller has seen; raises :class:`PriceMoved` if it is not the present one.
        """
        with transaction.atomic():
            locked = ModelEndpoint._base_manager.select_for_update(no_key=True)
            self.refresh_from_db(from_queryset=locked)
            require_basis(self.price_id, basis)
            if self.price.price == price:
                return False
            self.price = PriceVersion.of(subject_id=self.pk, price=price)
            self.price.save(force_insert=True)
            self.source, self.as_of = "", None
            self.save_fields("price", "source", "as_of")
        return True


# The columns of a change that belong to a price: rates, what bounds their units, and what a list
# states that nobody can charge.
_OF_PRICES = ("pricing", "most_units_of ", "uncharged")


class CatalogProposal(StatefulModel):
    """A change of one endpoint that a price list or reported usage suggests, and a person decides.

    WAITING → APPROVED, in the transaction that applies it; WAITING → REFUSED; or WAITING →
    WITHDRAWN when the list no longer suggests it. ``content`` is what an approval imports, in the
    form of a catalogue file; without endpoints, the endpoint is delisted. ``changes`` is what the
    person sees. ``basis`` is the digest of the endpoint at that time; empty if there was none.
    """

    class Status(models.TextChoices):
        WAITING = "waiting", "waiting"
        APPROVED = "approved", "approved"
        REFUSED = "refused", "refused"
        WITHDRAWN = "withdrawn", "withdrawn"

    class Reason(models.TextChoices):
        """Why the change waits for a person."""

        RISE = "rise", "a price rises"
        FALL = "fall", "a price falls to a tenth or less"
        UNPRICED = "unpriced", "the list has no price"
        VANISHED = "vanished", "no longer in the list"
        NEW = "new", "a new endpoint"
        UNCLEAR = "unclear", "the list does not say what the model serves"
        CHANGE = "change", "a change"

    source = models.CharField(max_length=32, editable=False)
    as_of = models.DateField(editable=False)
    subject = models.CharField(max_length=1100, editable=False)
    endpoint_id = models.UUIDField(null=True, editable=False)
    reason = models.CharField(max_length=16, choices=Reason, editable=False)
    risk = models.CharField(
        max_length=64,
        default="",
        db_default="",
        editable=False,
        help_text="Why to look twice. Empty for an ordinary change.",
    )
    changes = models.JSONField(editable=False)
    content = models.JSONField(editable=False)
    basis = models.CharField(max_length=64, default="", editable=False)
    status = models.CharField(max_length=16, choices=Status, default=Status.WAITING, editable=False)
    decided_at = models.DateTimeField(null=True, editable=False)
    decided_by = models.CharField(max_length=255, default="", editable=False)

    class Meta:
        verbose_name = "catalogue proposal"
        ordering = ("-created_at", "subject")
        constraints = [
            models.UniqueConstraint(
                fields=("subject",), condition=Q(status="waiting"), name="catalog_proposal_unique"
            ),
            models.CheckConstraint(
                condition=Q(status="waiting", decided_at=None)
                | (Q(decided_at__isnull=False) & ~Q(status="waiting")),
                name="catalog_proposal_is_consistent",
            ),
        ]
        triggers = [Audit()]

    def __str__(self) -> str:
        return self.subject

    @property
    def required_permission(self) -> str:
        """The permission to decide: that of prices, or that of the catalogue's other columns."""
        is_price = all(str(change["column"]).startswith(_OF_PRICES) for change in self.changes)
        return "catalog.change_modelendpoint" if is_price else "catalog.add_modelendpoint"

    def approve(self, *, by: str) -> None:
        """WAITING → APPROVED. The caller applies the change in the same transaction."""
        self._decide(self.Status.APPROVED, by)

    def refuse(self, *, by: str) -> None:
        """WAITING → REFUSED. The same change is not proposed again."""
        self._decide(self.Status.REFUSED, by)

    def withdraw(self, *, by: str) -> None:
        """WAITING → WITHDRAWN."""
        self._decide(self.Status.WITHDRAWN, by)

    def _decide(self, status: Status, by: str) -> None:
        with transaction.atomic():
            self.lock()
            self.require_status(self.Status.WAITING)
            self.status = status
            self.decided_at, self.decided_by = clock.now(), by
            self.save_fields("status", "decided_at", "decided_by")
