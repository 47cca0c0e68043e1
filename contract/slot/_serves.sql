-- SPDX-License-Identifier: PostgreSQL
-- once._serves(tenant): whether this node serves the tenant. Every call that may write asks it. As installed, it is always true;
-- once.divide replaces it by a function that looks at the tenant's slot (once._guard).
--
-- Why it is written so: it is inlined, so an undivided installation pays nothing, and PostgreSQL makes a plan that contains it anew when
-- it is replaced (see once._today). VOLATILE, because its replacement is.
CREATE FUNCTION once._serves(tenant text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
