-- SPDX-License-Identifier: PostgreSQL
-- The tenants that a bound role may name. A role with EXECUTE on once.any_tenant() is not bound.
CREATE TABLE once.binding (
    role_name text COLLATE "C",
    tenant    text COLLATE "C",
    PRIMARY KEY (role_name, tenant)
);
