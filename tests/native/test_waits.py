# SPDX-License-Identifier: PostgreSQL
"""With pgonce_native in a session, what has nothing to do with intents waits for nobody's lock on them; it would wait where SQL does not."""

import pytest

from contract.calls import PRINT, Once
from harness.native import install_native, library

pytestmark = pytest.mark.skipif(not library().exists(), reason="pgonce_native is not built: the server's headers are missing")
CALLS = ("SELECT 2", "SELECT count(*) FROM pg_class", "SELECT once.emit('t', '{}')", "SELECT count(*) FROM once.counts()")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_nothing_else_waits_for_a_lock_on_the_intents(db, call, first):
    """first: the session has called no function before; else what the library knew of the contract has changed since."""
    install_native(db)
    session, holder = db.connect(lock_timeout="200ms", **{"once.strict": "off"}), db.connect(autocommit=False)
    if not first:
        Once(session).start(key="k", fingerprint=PRINT)
    holder.cursor().execute("CREATE TABLE once.intent_d1 PARTITION OF once.intent FOR VALUES FROM (1) TO (2)")
    holder.commit()
    holder.cursor().execute("LOCK TABLE once.intent IN ACCESS EXCLUSIVE MODE")
    session.cursor().execute(call)
