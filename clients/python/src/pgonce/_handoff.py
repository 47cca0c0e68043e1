# SPDX-License-Identifier: PostgreSQL
"""A request that a gateway in front has claimed, for the same intent (docs/reference/gateway.md): its claim is finished here, in the transaction of the effect. It
begins no intent, and the contract checks its fence when the outcome is stored."""

from __future__ import annotations

import logging
from typing import Any, Optional, Tuple

from . import _core, _reasons, _sql
from ._io import Steps
from .answer import Answer, Outcome

_log = logging.getLogger("pgonce")

REPORT_S = 5.0  # as the gateway's once_timeout


class HandedAttempt(_core.Attempt):
    """COMMIT only where this call has stored the outcome. Else another run under the same fence has had its effect, even where its answer is the same."""

    # An error where the transaction is another one by now.
    before = ((_sql.RELEASE_SAVEPOINT, ()),)

    def open(self, trusted: bool = True) -> Steps[Optional[Answer]]:
        yield from self.connect()
        yield self.connection.begin([(_sql.SAVEPOINT, ())], 0)
        self._lend(self.intent)
        return None

    def _finish(self, outcome: Outcome, state: str) -> Tuple[str, Any]:
        intent = self.intent
        text, json_text, body, headers = outcome.bodies()
        known = [outcome.status, text, json_text, body, headers]
        if state == "succeeded" or outcome.result_type is not None:  # too large to keep: fail has no place to say it
            return _sql.COMPLETE_ONCE, [intent.scope, intent.key, intent.fence, *known, *outcome.result(), intent.tenant]
        said = [False, outcome.error_code, outcome.error_message]
        return _sql.FAIL_ONCE, [intent.scope, intent.key, intent.fence, *said, *known, intent.tenant]

    def report(self) -> Steps[bool]:
        """Of an exception, whose answer is somebody else's, and of a COMMIT whose answer is lost: nothing was done, unless the transaction was parted from its
        effect. It waits for a COMMIT that is under way, and one that comes later finds its fence taken. False: not reported; the outcome is stored, or unknown."""
        code, message = _reasons.ENDED if self.parted else _reasons.COMMIT_LOST if self.committing else _reasons.NOT_DONE
        why = Outcome(error_code=code, error_message=message)
        try:
            return (yield from _core.fail(self.source, self.intent, self.intent.fence or 0, None if self.parted else True, why, REPORT_S))
        except Exception as unsaid:  # the gateway gives what is stored, or says that it is in doubt
            _log.debug("the gateway's claim is left to it: scope=%s error=%s", self.intent.scope, type(unsaid).__name__)
            return False
