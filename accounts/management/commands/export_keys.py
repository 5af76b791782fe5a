from __future__ import annotations

from accounts import imports
from accounts.management.arguments import OrganizationExport


class Command(OrganizationExport):
    help = "Writes the inference keys of an organization: CSV to a .csv file, else JSON lines."
    kind = imports.KEYS
    csv_header = imports.KEYS_HEADER
    export = staticmethod(imports.export_keys)
