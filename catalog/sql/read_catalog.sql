-- Reads the whole catalogue for routing, in one snapshot.
--
-- Returns: one row: the version, and the providers, the models, the listed endpoints of listed
--          models and the operator's aliases, each kind as a JSON array of arrays, empty without
--          any. These have the columns that `read_providers.sql`, `read_models.sql`,
--          `read_endpoints.sql` and `read_aliases.sql` return; a credential is in hexadecimal.
-- Locks: none.
WITH providers AS (
    SELECT
        jsonb_agg(
            jsonb_build_array(
                p.id, p.slug, p.name, p.dialect, p.base_url, p.trains_on_prompts, p.is_listed,
                encode(p.sealed_credential, 'hex'), p.is_keyless, p.allowed_networks,
                p.ca_certificates, p.requests_per_minute, p.tokens_per_minute
            )
        ) AS found
    FROM catalog_provider AS p
),

models AS (
    SELECT
        jsonb_agg(
            jsonb_build_array(
                m.id, m.slug, m.canonical_slug, m.context_length, m.input_modalities,
                m.output_modalities, m.supported_parameters, m.is_listed, m.native_format,
                m.thinking, m.thinks_between_tools, m.combines_sampling, m.created,
                m.tokenizer
            )
            ORDER BY m.id
        ) AS found
    FROM catalog_languagemodel AS m
    WHERE m.organization_id IS NULL
),

endpoints AS (
    SELECT
        jsonb_agg(
            jsonb_build_array(
                e.id, e.model_id, e.provider_id, e.upstream_model_id, e.region, e.zdr,
                e.quantization, e.context_length, e.max_completion_tokens, e.supported_parameters,
                e.abilities, e.connect_timeout, e.headers_timeout, e.first_event_timeout,
                e.idle_timeout, e.total_timeout, e.price_id, p.prompt, p.completion, p.image,
                p.request, p.cache_read, p.cache_write, p.image_output, p.discount, p.lines
            )
            ORDER BY e.model_id, e.id
        ) AS found
    FROM catalog_modelendpoint AS e
    INNER JOIN catalog_languagemodel AS m ON e.model_id = m.id
    INNER JOIN catalog_priceversion AS p ON e.price_id = p.id
    WHERE e.is_listed AND m.is_listed
),

aliases AS (
    SELECT jsonb_agg(jsonb_build_array(a.id, a.name, a.targets)) AS found
    FROM catalog_modelalias AS a
    WHERE a.organization_id IS NULL
)

SELECT
    coalesce((SELECT v.version FROM catalog_catalogversion AS v), 0) AS version,
    coalesce(providers.found, '[]') AS providers,
    coalesce(models.found, '[]') AS models,
    coalesce(endpoints.found, '[]') AS endpoints,
    coalesce(aliases.found, '[]') AS aliases
FROM providers, models, endpoints, aliases
