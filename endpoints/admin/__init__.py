"""The console's pages for private endpoints, models and providers, and for validations."""

from endpoints.admin.own import OwnModelAdmin, PrivateProviderAdmin
from endpoints.admin.private_endpoints import PrivateEndpointAdmin
from endpoints.admin.validations import ValidationAdmin
