"""Pickers of an organization's keys and members, for forms that store hashes and ids."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import path, reverse
from django.utils.text import capfirst

from accounts.admin.guardrails.pickers import (
    Labels,
    NamesField,
    label_key,
    label_member,
    search_key_hashes,
    search_members,
)
from accounts.models import ApiKey, Member
from config.api.text import parse_uuid
from config.console.base import ConsoleAdmin


class SubjectPickers(ConsoleAdmin):
    """Answers the pickers on the page of a row that an organization owns.

    ``picked`` are the nouns that its form has pickers for: keys, members or both.
    """

    picked: ClassVar[tuple[str, ...]] = ("keys", "members")

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path(
                f"<path:object_id>/choices/{noun}/",
                self.admin_site.admin_view(view),
                name=f"{name}_{noun}",
            )
            for noun, view in (("keys", self.keys_view), ("members", self.members_view))
            if noun in self.picked
        ] + super().get_urls()

    def keys_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        row = self._require_row(request, object_id)
        return search_key_hashes(request, row.organization_id)

    def members_view(self, request: HttpRequest, object_id: str) -> JsonResponse:
        row = self._require_row(request, object_id)
        return search_members(request, row.organization_id)

    def _require_row(self, request: HttpRequest, object_id: str) -> Any:
        if not self.has_change_permission(request):
            raise PermissionDenied
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        return row


def make_keys_field() -> NamesField:
    """Returns a field whose values are the hashes of keys."""
    return NamesField(placeholder="All keys", find_labels=find_key_labels)


def make_members_field() -> NamesField:
    """Returns a field whose values are the ids of members."""
    return NamesField(placeholder="All members", find_labels=find_member_labels)


def point_pickers(form: Any, **nouns: str) -> None:
    """Sets where the pickers of a form search: ``nouns`` maps its fields to ``keys``, ``members``.

    A form for a new row has no pickers. Labels and help texts are those of the model.
    """
    meta = form.instance._meta
    for name, noun in nouns.items():
        field = form.fields.get(name)
        if field is None:
            continue
        if form.instance._state.adding:
            # Nobody knows the organization yet.
            del form.fields[name]
            continue
        column = meta.get_field(name)
        labels = getattr(form.Meta, "labels", None) or {}
        field.label = labels.get(name, capfirst(column.verbose_name))
        field.help_text = column.help_text
        url = reverse(f"admin:{meta.app_label}_{meta.model_name}_{noun}", args=[form.instance.pk])
        find_labels = find_key_labels if noun == "keys" else find_member_labels
        field.widget.point_to(url, find_labels)


def find_key_labels(hashes: list[str]) -> Labels:
    """Returns the names of keys by their hashes."""
    return {key.digest: label_key(key) for key in ApiKey.objects.filter(digest__in=hashes)}


def find_member_labels(texts: list[str]) -> Labels:
    """Returns the names of members by their ids."""
    ids = [each for each in map(parse_uuid, texts) if each is not None]
    return {str(member.pk): label_member(member) for member in Member.objects.filter(pk__in=ids)}
