-- SPDX-License-Identifier: PostgreSQL
-- once._report_many(...): reports of many attempts in one statement: the common core of complete_many and fail_many.
-- One UPDATE per element and not one for all: joined to the batch, a plan that was made while a partition was empty
-- searches its index by tenant alone and stays so; a look-up by four constants cannot flip, and costs the same.
CREATE FUNCTION once._report_many(refusal text, scope text[], key text[], fence integer[], next_state once.state[],
    response_status integer[],
    response_body bytea[], response_headers jsonb[], result_type text[], result_id text[], error_code text[],
    error_message text[], tenant text)
RETURNS TABLE (ord integer, verdict text, refused_code text, refused_message text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    n integer;
    verdicts text[] := array_fill(NULL::text, ARRAY[coalesce(cardinality(key), 0)]);
    codes text[] := verdicts;
    bucket integer;
BEGIN
    -- In the order of their keys, so that two batches over the same intents cannot deadlock; of two reports on one
    -- intent the first is stored and the second is judged against it.
    FOR n IN SELECT u.ord FROM unnest(scope, key) WITH ORDINALITY AS u (scope, key, ord)
              ORDER BY u.scope COLLATE "C", u.key COLLATE "C", u.ord LOOP
        bucket := once._bucket(key[n]);
        IF (length(scope[n]) BETWEEN 1 AND 255) IS NOT TRUE THEN
            codes[n] := 'P4000';
        ELSIF (bucket >= 0) IS NOT TRUE THEN
            codes[n] := 'P4001';
        ELSIF octet_length(response_body[n]) > 8192
            AND octet_length(response_body[n]) > (once._policy(scope[n])).response_bytes_max THEN
            codes[n] := 'P4060';
        ELSE
            verdicts[n] := once._report(tenant, scope[n], key[n], bucket, fence[n], next_state[n], response_status[n],
                response_body[n],
                                        response_headers[n], result_type[n], result_id[n], error_code[n],
                                            error_message[n]);
            IF verdicts[n] = 'refused' THEN
                codes[n] := refusal;
            END IF;
        END IF;
    END LOOP;
    FOR n IN 1 .. once._length(key, 0) LOOP
        ord := n;
        verdict := coalesce(verdicts[n], 'invalid');
        refused_code := codes[n];
        refused_message := NULL;
        IF refused_code IS NOT NULL THEN
            SELECT e.message INTO refused_message FROM once.errors() AS e WHERE e.code = refused_code COLLATE "C";
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
