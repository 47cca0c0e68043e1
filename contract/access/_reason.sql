-- SPDX-License-Identifier: PostgreSQL
-- once._reason(reason): raises 22023 if an operator's decision comes without a reason.
CREATE FUNCTION once._reason(reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (reason ~ '[^[:space:]]') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the reason is missing',
            HINT = 'It is kept in once.parked_decision, with the operator and the time.';
    END IF;
END $$;
