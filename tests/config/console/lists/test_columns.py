"""The names of columns in lists, filters and forms."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from accounts.models import Workspace
from config.console.apps import name_column
from tests.support.console import listing, page
from tests.support.factories import Tenant


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        ("id", "ID"), ("is_default", "default"), ("is_byok", "BYOK"), ("base_url", "base URL"),
        ("created_at", "created at"), ("issued_by", "issued by"), ("identity", "identity"),
        ("allowed_user_ids", "allowed user IDs"),
    ],
)  # fmt: skip
def test_an_attribute_has_a_name_for_people(attribute: str, name: str) -> None:
    assert name_column(attribute) == name


def test_heads_filters_and_fields_have_one_name(operator: Client, tenant: Tenant) -> None:
    text = operator.get(listing(Workspace)).content.decode()
    assert re.search(r"<th[^>]*column-is_default.*?>\s*Default\s*<", text, re.DOTALL)
    assert re.search(r"By default\s*<", text)
    shown = operator.get(page(tenant.workspace)).content.decode()
    assert re.search(r">\s*ID\s*<", shown)
