-- SPDX-License-Identifier: PostgreSQL
-- store_batch(refusal, rest): stores a batch of reports, of which some may be stored already, and returns the verdict of each; rest: the
-- other parts of an outcome. A single report goes straight to once._report_many, which costs less.
IF size > 1 THEN
    IF (cardinality(stored) = size) IS NOT TRUE THEN
        stored := once._store_many(stored, tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                                   {rest});
    END IF;
    IF cardinality(stored) = size THEN
        verdict := 'stored';
        FOR n IN 1 .. size LOOP
            ord := n;
            RETURN NEXT;
        END LOOP;
        RETURN;
    END IF;
END IF;
RETURN QUERY SELECT r.ord, r.verdict, r.refused_code, r.refused_message
  FROM once._report_many('{refusal}', stored, tenant, scope, key, fence, next_state, response_status, response_body, response_headers,
                         {rest}) AS r;
