from __future__ import annotations

from accounts.imports import import_members
from accounts.management.arguments import OrganizationImport


class Command(OrganizationImport):
    help = "Creates and changes the members of an organization from a file, all or none."
    apply = staticmethod(import_members)
