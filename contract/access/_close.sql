-- SPDX-License-Identifier: PostgreSQL
-- once._close(made): revokes all privileges on a table, a view or a sequence from everyone but its owner. Call it for each new one:
-- default privileges (ALTER DEFAULT PRIVILEGES) may have granted it to strangers, and to roles of the contract.
CREATE FUNCTION once._close(made regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE format('%I', pg_get_userbyid(a.grantee)) END
          FROM pg_class AS c
         CROSS JOIN LATERAL (SELECT c.relacl AS acl UNION ALL SELECT t.attacl FROM pg_attribute AS t WHERE t.attrelid = c.oid) AS o
         CROSS JOIN LATERAL aclexplode(o.acl) AS a
         WHERE c.oid = made AND a.grantee <> c.relowner
    LOOP
        PERFORM once._execute_ddl(format('REVOKE ALL ON %s FROM %s CASCADE', made, grantee));
    END LOOP;
END $$;
