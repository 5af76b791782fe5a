from __future__ import annotations

from accounts.management.arguments import OrganizationExport
from catalog.aliases import imports


class Command(OrganizationExport):
    help = "Writes the aliases of an organization, or of the operator, as JSON lines."
    kind = imports.KIND
    noun = "Aliases"
    otherwise = "the organization whose aliases are written; the operator's if it is left out"
    export = staticmethod(imports.export)
