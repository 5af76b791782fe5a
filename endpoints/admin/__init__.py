"""The console's pages for private endpoints and their validations."""

from endpoints.admin.private_endpoints import PrivateEndpointAdmin
from endpoints.admin.validations import ValidationAdmin

__all__ = ["PrivateEndpointAdmin", "ValidationAdmin"]
