from __future__ import annotations

from accounts.management.arguments import OrganizationExport
from endusers import imports


class Command(OrganizationExport):
    help = "Writes the end users of an organization: CSV to a .csv file, else JSON lines."
    kind = imports.KIND
    csv_header = imports.CSV_HEADER
    export = staticmethod(imports.export)
