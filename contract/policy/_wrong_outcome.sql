-- SPDX-License-Identifier: PostgreSQL
-- once._wrong_outcome(status, headers): what is wrong with an outcome, in words; NULL if nothing is. A status is an HTTP status or a
-- command's exit status; headers are an object. Inlined, so it must not be more than STABLE, as format is.
CREATE FUNCTION once._wrong_outcome(status integer, headers jsonb) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN status NOT BETWEEN 0 AND 999 THEN format('%s is not the status of an answer', status)
        WHEN jsonb_typeof(headers) <> 'object' THEN format('the headers of an answer must be an object, not of type %s',
            jsonb_typeof(headers))
    END
$$;
