-- Reads models of the catalogue for routing: those named, and those that have an endpoint of a
-- named provider.
--
-- Parameters: $1 uuid[], ids of models and providers.
-- Returns: one row for each model found; the columns are those of `CatalogModel`, whose last one
--          own models alone have.
-- Locks: none.
SELECT
    m.id, m.slug, m.canonical_slug, m.context_length, m.input_modalities, m.output_modalities,
    m.supported_parameters, m.is_listed, m.native_format, m.thinking, m.thinks_between_tools,
    m.combines_sampling, m.created, m.tokenizer
FROM catalog_languagemodel AS m
WHERE
    m.id = any(
        array(
            SELECT unnest($1::uuid[])
            UNION
            SELECT e.model_id FROM catalog_modelendpoint AS e WHERE e.provider_id = any($1::uuid[])
        )
    )
    AND m.organization_id IS NULL
ORDER BY m.id
