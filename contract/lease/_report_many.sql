-- SPDX-License-Identifier: PostgreSQL
-- once._report_many(refusal, stored, ...): the reports of a complete_many or fail_many batch that once._store_many left over: each
-- separately, to find out why it was not stored, in the order that once._store_many describes. Returns all elements. For a batch of one
-- element this alone is cheaper, too.
CREATE FUNCTION once._report_many(refusal text, stored integer[], tenant text, scope text[], key text[], fence integer[],
    next_state once.state[], response_status integer[], response_body bytea[], response_headers jsonb[], result_type text[],
    result_id text[], error_code text[], error_message text[], redirect bytea[])
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    size integer := once._length(key, 0);
    n integer;
    bucket integer;
    told record;
    verdicts text[] := array_fill(NULL::text, ARRAY[size]);
    codes text[] := verdicts;
    messages text[] := verdicts;
BEGIN
    IF size = 1 THEN
        RETURN QUERY SELECT 1, r.*
          FROM once._report_element(refusal, tenant, scope[1], key[1], once._bucket(key[1]), fence[1], next_state[1],
                                    ROW(response_status[1], response_body[1], response_headers[1], result_type[1], result_id[1],
                                        left(error_code[1], 255), left(error_message[1], 4096)), redirect[1]) AS r;
        RETURN;
    END IF;
    FOR n, bucket IN SELECT u.ord, u.bucket
                       FROM (SELECT r.*, once._bucket(r.key) AS bucket
                               FROM unnest(scope, key) WITH ORDINALITY AS r (scope, key, ord)
                              WHERE (r.ord = ANY (stored)) IS NOT TRUE OFFSET 0) AS u
                      ORDER BY u.bucket > 0, u.bucket DESC, u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        told := once._report_element(refusal, tenant, scope[n], key[n], bucket, fence[n], next_state[n],
                                     ROW(response_status[n], response_body[n], response_headers[n], result_type[n], result_id[n],
                                         left(error_code[n], 255), left(error_message[n], 4096)), redirect[n]);
        verdicts[n] := told.verdict;
        codes[n] := told.refused_code;
        messages[n] := told.refused_message;
    END LOOP;
    RETURN QUERY SELECT u.ord::integer, coalesce(u.verdict, 'stored'), u.code, u.message
                   FROM unnest(verdicts, codes, messages) WITH ORDINALITY AS u (verdict, code, message, ord) ORDER BY u.ord;
END $$;
