-- SPDX-License-Identifier: PostgreSQL
-- once._trace(traceparent): a traceparent in the form of W3C Trace Context (version 00): 00-<32 hex>-<16 hex>-<2 hex>, in lower case,
-- neither id all zero; NULL for anything else: a tracer's mistake must never become the application's. Inlined; written like
-- once._bucket, for the same reason.
CREATE FUNCTION once._trace(traceparent text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN traceparent COLLATE "C" LIKE '00-________________________________-________________-__'
             AND traceparent COLLATE "C" NOT LIKE '%-%-%-%-%'
             AND traceparent COLLATE "C" !~ '[^0-9a-f-]'
             AND traceparent COLLATE "C" NOT LIKE '00-00000000000000000000000000000000-%'
             AND traceparent COLLATE "C" NOT LIKE '%-0000000000000000-__'
        THEN traceparent
    END
$$;
