"""The console's pages for the catalogue: providers, models, aliases, endpoints, prices."""

from catalog.admin.language_models import LanguageModelAdmin
from catalog.admin.model_aliases import ModelAliasAdmin
from catalog.admin.model_endpoints import ModelEndpointAdmin
from catalog.admin.price_versions import PriceVersionAdmin
from catalog.admin.proposals import CatalogProposalAdmin
from catalog.admin.providers import ProviderAdmin
