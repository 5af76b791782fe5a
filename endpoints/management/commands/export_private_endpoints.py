from __future__ import annotations

from accounts.management.arguments import OrganizationExport
from endpoints import imports


class Command(OrganizationExport):
    help = "Writes the private endpoints of an organization as JSON lines of the create request."
    kind = imports.KIND
    noun = "Private endpoints"
    export = staticmethod(imports.export)
