-- Reads the listed endpoints of models, each with its price.
--
-- Parameters: $1 uuid[], the models.
-- Returns: one row for each endpoint; the columns are the parameters of `make_route`.
-- Locks: none.
SELECT
    e.id, e.model_id, e.provider_id, e.upstream_model_id, e.region, e.zdr, e.quantization,
    e.context_length, e.max_completion_tokens, e.supported_parameters, e.abilities,
    e.connect_timeout, e.headers_timeout, e.first_event_timeout, e.idle_timeout, e.total_timeout,
    e.price_id, p.prompt, p.completion, p.image, p.request, p.cache_read, p.cache_write,
    p.image_output, p.discount, p.lines
FROM catalog_modelendpoint AS e
INNER JOIN catalog_priceversion AS p ON e.price_id = p.id
WHERE e.model_id = any($1) AND e.is_listed
ORDER BY e.model_id, e.id
