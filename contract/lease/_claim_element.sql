-- SPDX-License-Identifier: PostgreSQL
-- once._claim_element(...): one element of a batch, as once.claim_many returns it: an error of once.claim becomes a verdict here.
CREATE FUNCTION once._claim_element(tenant text, scope text, key text, bucket integer, fingerprint bytea, claimant text,
    lease interval, retention interval, traceparent text, takeover boolean) RETURNS once.claimed LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    code text := once._wrong_element(scope, bucket, fingerprint);
    claimed once.claimed;
BEGIN
    IF code IS NULL THEN
        claimed := once._claim(tenant, scope, key, bucket, fingerprint, claimant, lease, retention, traceparent, takeover);
        IF (claimed.verdict IN ('future', 'missing', 'unknown')) IS NOT TRUE THEN
            RETURN claimed;
        END IF;
        code := CASE claimed.verdict WHEN 'future' THEN 'P4001' WHEN 'missing' THEN 'P4098' ELSE 'P4099' END;
    END IF;
    SELECT 'invalid', e.code, e.message INTO claimed.verdict, claimed.error_code, claimed.error_message
      FROM once.errors() AS e WHERE e.code = code COLLATE "C";
    RETURN claimed;
END $$;
