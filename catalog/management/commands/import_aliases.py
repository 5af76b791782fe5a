from __future__ import annotations

from accounts.management.arguments import OrganizationImport
from catalog.aliases import imports


class Command(OrganizationImport):
    help = "Imports aliases of models, all or none: JSON lines with name and targets."
    file_help = "JSON lines; - for standard input"
    takes_csv = False
    otherwise = "the organization that gets the aliases; the operator if it is left out"
    apply = staticmethod(imports.apply)
