from __future__ import annotations

from accounts import imports
from accounts.management.arguments import OrganizationExport


class Command(OrganizationExport):
    help = "Writes the members of an organization: CSV to a .csv file, else JSON lines."
    kind = imports.MEMBERS
    csv_header = imports.MEMBERS_HEADER
    export = staticmethod(imports.export_members)
