-- SPDX-License-Identifier: PostgreSQL
-- once._reason(reason): raises 22023 where an operator's decision comes without a reason.
CREATE FUNCTION once._reason(reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF (reason ~ '[^[:space:]]') IS NOT TRUE THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'pgonce: the reason is missing',
            HINT = 'It is kept with who and when in once.parked_decision, for those who ask later.';
    END IF;
END $$;
