from __future__ import annotations

from accounts.management.arguments import OrganizationImport
from endpoints import imports


class Command(OrganizationImport):
    help = "Creates and updates the private endpoints of a file as drafts, all or none."
    file_help = "JSON lines of the create request, without activate; - for standard input"
    takes_csv = False
    apply = staticmethod(imports.apply)
