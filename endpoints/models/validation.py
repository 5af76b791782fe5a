"""Validations: the results of live checks of private endpoints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.conf import settings
from django.db import models
from msgspec.structs import replace

from accounts.models import ByokCredential, CredentialNotFound, Workspace
from catalog.abilities import DECLARABLE, TokenBound
from catalog.dialects.base import Operation
from config.clocks.clock import clock
from config.clocks.writing import write_time
from config.models import BaseModel
from config.partitions.declarations import Partitioning
from config.partitions.spans import QUARTER
from endpoints.models.drafts import UpstreamProvider


def base_url_refused(reason: str) -> dict[str, Any]:
    """Returns the failed check of a host that the credential may not be sent to."""
    return {
        "name": "base_url",
        "passed": False,
        "reason": "invalid_base_url",
        "upstream_message": reason,
    }


class Proof(models.TextChoices):
    """What a trial of a parameter has shown; a parameter without a proof was not tried."""

    PROVEN = "proven", "proven"
    REFUSED = "refused", "refused"
    NO_EFFECT = "no_effect", "no effect"


# A trial that is none of a parameter: whether the deployment sees pictures.
IMAGE_INPUT: Final = "image_input"


def offered_parameters(
    listed: Iterable[str],
    proofs: Mapping[str, str] | None,
    *,
    declared: Iterable[str] = (),
    excluded: Collection[str] = (),
) -> list[str]:
    """Returns the parameters that an endpoint supports.

    These are the listed ones, then those that were proven or declared, without those that were
    disproved or are excluded.
    """
    found = proofs or {}
    proven = (name for name, proof in found.items() if proof == Proof.PROVEN)
    names = dict.fromkeys((*listed, *sorted({*proven, *declared} - {IMAGE_INPUT})))
    return [
        name
        for name in names
        if found.get(name, Proof.PROVEN) == Proof.PROVEN and name not in excluded
    ]


def learn_tested(tested: Collection[str], proofs: Mapping[str, str] | None) -> list[str]:
    """Returns the parameters that validations have proven, after another one."""
    kept = {name for name in tested if name not in (proofs or {})}
    kept.update(name for name, proof in (proofs or {}).items() if proof == Proof.PROVEN)
    return [name for name in DECLARABLE if name in kept]


def proven_names(proofs: Mapping[str, str] | None) -> frozenset[str] | None:
    """Returns the names of what was proven; ``None`` if nothing is known of any trial."""
    if proofs is None:
        return None
    return frozenset(name for name, proof in proofs.items() if proof == Proof.PROVEN)


def lost_operations(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> set[str]:
    """Returns the operations that a validation has proven, and a later one has found refused."""
    found = now or {}
    return {name for name in proven_names(before) or () if found.get(name) == Proof.REFUSED}


class Validation(BaseModel):
    """One live validation: the credential it used, its checks, and its outcome.

    The table has a partition for each quarter.
    """

    # An endpoint shows its validation for as long as it has that configuration.
    partitioning: ClassVar = Partitioning(
        "endpoints_validation",
        "created_at",
        QUARTER,
        keeps="id IN (SELECT validation_id FROM endpoints_privateendpoint)",
    )

    class Outcome(models.TextChoices):
        PASSED = "passed", "passed"
        FAILED = "failed", "failed"
        UNREACHABLE = "unreachable", "unreachable"
        TIMED_OUT = "timed_out", "timed out"
        BROKEN = "broken", "broken"

    class Purpose(models.TextChoices):
        ACTIVATION = "activation", "activation"
        WATCH = "watch", "watch"

    # A change of one of these means that another deployment answered.
    IDENTITY = ("model", "prompt_tokens", "operations")
    COMPARED = (
        "model", "prompt_tokens", "dimensions", "system_fingerprint", "certificate_key", "address",
    )  # fmt: skip
    # The reasons of failed checks that judge an answer.
    ANSWERS = ("invalid_response", "invalid_stream", "missing_usage", "model_mismatch")

    endpoint = models.ForeignKey(
        "endpoints.PrivateEndpoint",
        on_delete=models.CASCADE,
        related_name="validations",
        db_index=False,
    )
    validated_by = models.CharField(
        max_length=255, default="", db_default="", help_text="Who asked for it."
    )
    workspace = models.ForeignKey(Workspace, on_delete=models.SET_NULL, null=True)
    credential = models.ForeignKey(
        ByokCredential, on_delete=models.SET_NULL, null=True, related_name="+"
    )
    credential_version = models.PositiveIntegerField(null=True)
    host = models.CharField(
        max_length=253,
        default="",
        # A process of the release before this column inserts rows during an upgrade.
        db_default="",
        help_text="The host to which the secret was sent; empty if it was not.",
    )
    configuration = models.CharField(max_length=64)
    outcome = models.CharField(max_length=16, choices=Outcome)
    purpose = models.CharField(max_length=16, choices=Purpose, default=Purpose.ACTIVATION)
    checks = models.JSONField()
    evidence = models.JSONField(
        default=dict, help_text="Properties of the deployment that later validations compare."
    )
    parameters = models.JSONField(
        null=True,
        help_text="The proofs of the parameters that were tried, by name; empty if none was.",
    )
    changes = models.JSONField(
        default=list, help_text="Evidence that differs from the activation's."
    )
    cost_nano = models.BigIntegerField(
        default=0, help_text="Cost of the test calls at the endpoint's price, in nano-USD."
    )
    duration_ms = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-created_at",)
        indexes = [
            models.Index(fields=("endpoint", "-created_at"), name="validation_history"),
            models.Index(fields=("created_at", "id"), name="validation_latest"),
        ]

    def __str__(self) -> str:
        return f"{self.outcome} at {write_time(self.created_at)}"

    def differences_from(self, baseline: Validation) -> list[dict[str, Any]]:
        """Returns the evidence that differs from another validation's, as ``{name, was, is}``.

        Of the operations, only a loss is a difference.
        """
        before, now = baseline.evidence, self.evidence
        # A text without the marks of a chat has fewer tokens.
        asked = [Operation.TEXT in (each.get("operations") or ()) for each in (before, now)]
        changes = [
            {"name": name, "was": before[name], "is": now[name]}
            for name in self.COMPARED
            if (name != "prompt_tokens" or asked[0] == asked[1])
            and None not in (before.get(name), now.get(name))
            and before[name] != now[name]
        ]
        had = proven_names(before.get("operations"))
        lost = lost_operations(before.get("operations"), now.get("operations"))
        if had is not None and lost:
            was, present = (", ".join(sorted(names)) for names in (had, had - lost))
            changes.append({"name": "operations", "was": was, "is": present})
        return changes

    @property
    def shows_drift(self) -> bool:
        """Returns whether the deployment is no longer the one that was activated.

        That is an answer that differs. An error status, a time limit and a connection that was cut
        are none: the deployment is unavailable. Neither does a new address, certificate or build
        show drift: the same deployment may change them.
        """
        return self._has_wrong_answer or any(
            change["name"] in self.IDENTITY for change in self.changes
        )

    @property
    def _has_wrong_answer(self) -> bool:
        failed = {check.get("reason") for check in self.checks if not check["passed"]}
        return not failed.isdisjoint(self.ANSWERS) and "broken_off" not in self.evidence

    @property
    def passed(self) -> bool:
        return self.outcome == self.Outcome.PASSED

    @property
    def operations(self) -> Mapping[str, str] | None:
        """Returns the proof of each operation that was tried; ``None`` if none was."""
        return self.evidence.get("operations")

    def complete_bound(self, stated: TokenBound) -> TokenBound:
        """Returns the bounds that an owner states, and those that the answers have shown."""
        shown = {
            name: value
            for name, value in (
                ("prompt", self.evidence.get("added_tokens")),
                ("thoughts_beside", self.evidence.get("thoughts_beside")),
            )
            if value is not None and getattr(stated, name) is None
        }
        return replace(stated, **shown) if shown else stated

    def raise_bounds(self, later: Validation) -> None:
        """Takes over what a later validation has measured of the bounds, where it is more."""
        more = {
            name: value
            for name in ("added_tokens", "thoughts_beside")
            if (value := later.evidence.get(name)) and value > (self.evidence.get(name) or 0)
        }
        if more:
            self.evidence |= more
            self.save_fields("evidence")

    @property
    def parameter_checks(self) -> list[dict[str, Any]] | None:
        """Returns whether each parameter that was tried is supported; ``None`` if none was tried.

        What is no parameter of a request, such as seeing pictures, has no place here.
        """
        if self.parameters is None:
            return None
        return [
            {"parameter": name, "supported": self.parameters[name] == Proof.PROVEN}
            for name in DECLARABLE
            if name in self.parameters
        ]

    def lock_credential(self) -> None:
        """Locks the credential of a passed validation, before the endpoint, as a rotation does."""
        if self.passed and self.credential is not None:
            with suppress(CredentialNotFound):
                self.credential.lock_present()

    def bind_credential(self, provider: UpstreamProvider) -> None:
        """Binds the credential to the host, if this is its first use.

        Fails the validation when another use bound the credential to another domain meanwhile. The
        caller has called :meth:`lock_credential` and not saved the validation.
        """
        if not self.passed or self.credential is None or not self.host:
            return
        with suppress(CredentialNotFound):
            own_hosts = provider.own_hosts(self.host)
            reason = self.credential.record_use(self.host, own_hosts=own_hosts)
            if reason is not None:
                self.outcome = self.Outcome.FAILED
                kept = [check for check in self.checks if check["name"] != "base_url"]
                self.checks = [*kept, base_url_refused(reason)]

    def is_current_for(self, configuration: str, *, is_keyless: bool = False) -> bool:
        """Returns whether this validation permits activating an endpoint with a configuration.

        It does until ``VALIDATION_MAX_AGE`` is over, while the credential is usable and unchanged.
        A keyless provider was called without one.
        """
        return (
            self.configuration == configuration
            and (self._has_same_credential() if not is_keyless else self.credential_version is None)
            and self.created_at > clock.now() - timedelta(seconds=settings.VALIDATION_MAX_AGE)
        )

    def _has_same_credential(self) -> bool:
        credential = self.credential
        return (
            credential is not None
            and credential.deleted_at is None
            and not credential.disabled
            and credential.version == self.credential_version
        )
