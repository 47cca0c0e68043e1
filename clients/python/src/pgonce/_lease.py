# SPDX-License-Identifier: PostgreSQL
"""The HTTP door for handlers whose effect is elsewhere: claim, the handler without a connection of pgonce's, then the report. An answer says of the
effect what it says to the gateway."""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

from . import _core, _reasons, errors, http
from ._drivers import Source
from ._gate import Policy, is_refused, outcome_of, public, refusal, replay
from ._io import Steps
from .answer import Outcome


def _enter(held: Any) -> Any:
    return held.__aenter__() if hasattr(held, "__aenter__") else held.__enter__()


def _leave(held: Any, raised: Optional[BaseException]) -> Any:
    leave = held.__aexit__ if hasattr(held, "__aexit__") else held.__exit__
    return leave(None if raised is None else type(raised), raised, None)


def serve(
    claim: Callable[..., Any], source: Source, policy: Policy, intent: _core.Intent, handle: Callable[[Any], Any]
) -> Steps[Tuple[http.Response, bool]]:
    """As serve of _gate.py. claim: the class of the door's claims."""
    options = _core.Options(min(policy.deadline, policy.handler_ms / 1000), policy.wait)
    held = claim(source, intent, options, _core.Terms())
    try:
        yield _enter(held)
    except errors.UsageError:
        raise
    except errors.FinalFailure as final:
        return (refusal(policy, final, intent) if final.answer is None else replay(policy, final.answer)), False
    except errors.OnceError as error:
        return refusal(policy, error, intent), False
    if held.answer is not None:
        return replay(policy, held.answer), False
    try:
        found = yield handle(None)
    except BaseException as raised:
        try:
            yield _leave(held, raised)
        except errors.LeaseLost as lost:
            return policy.logged("not-stored", lost, intent.scope), False
        if isinstance(raised, errors.TimedOut):
            return policy.logged("in-doubt", raised, intent.scope), False
        raise
    try:
        yield from _report(policy, held, found)
    except errors.OnceError as error:
        return refusal(policy, error, intent), False
    return public(found), True


def _report(policy: Policy, held: Any, found: http.Response) -> Steps[None]:
    effect = http.effect_elsewhere_of(found.status, found.headers)
    known = Outcome(status=found.status if 200 <= found.status <= 599 else None)
    if effect == http.NONE:
        yield held.fail(True, known, code=_reasons.AGAIN[0], message=_reasons.AGAIN[1])
    elif effect == http.UNKNOWN or not http.can_be_sent(found.status, found.headers):
        yield held.fail(None, known, code=_reasons.UNCLEAR[0], message=_reasons.UNCLEAR[1])
    else:
        outcome, without = outcome_of(policy, found)
        refused = is_refused(found) and outcome is not without  # once.fail has no result_type: what is too large to keep is remembered as done
        try:
            yield held.fail(False, outcome, code=_reasons.REFUSED[0], message=_reasons.REFUSED[1]) if refused else held.complete(outcome)
        except errors.TooLarge:
            yield held.complete(without)
