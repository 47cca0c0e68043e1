# SPDX-License-Identifier: PostgreSQL
"""Each guarantee taken out, by a setting that gives it up or a contract that breaks it, and the tests that notice: a test that passes
without its guarantee proves nothing."""

import pytest

from harness.disk import SlowDisk
from harness.mutation import mutate
from harness.postgres import Postgres
from harness.upstream import Upstream

from . import test_faults as faults
from . import test_handoff as handoff
from . import test_one_execution as one_execution
from . import test_protocol as protocol
from . import test_security as security
from . import test_server_errors as server_errors
from . import test_slow_disk as slow_disk
from . import test_stored as stored
from . import test_waiting as waiting
from .door import HTTP, Door

H1 = "HTTP/1.1"


def setting(old, new):
    """In the file's own configuration."""

    def apply(config, http, database):
        assert old in config + http, old
        return config.replace(old, new), http.replace(old, new)

    return apply


def contract(function, old, new):
    def apply(config, http, database):
        mutate(database, function, old, new)
        return config, http

    return apply


UNPROTECTED = setting("once required;", "once off;")
RETRIES = setting("once_scope pay;", "once_scope pay; once_in_doubt retry;")
DOUBT_RETRIES = setting("once_scope doubt;", "once_scope doubt; once_in_doubt retry;")
ONE_TENANT = setting("once_tenant $http_x_tenant;", "once_tenant none;")
NO_BODY = setting("once_scope pay;", "once_scope pay; once_fingerprint method;")
RELEASES_5XX = setting("once_scope pay;", "once_scope pay; once_on_5xx release;")
STORES_5XX = setting("once_scope pay;", "once_scope pay; once_on_5xx store;")
RELEASES_REFUSALS = setting("once_scope pay;", "once_scope pay; once_release 401 403 407 408 409 423 429 503;")
STORES_LITTLE = setting("location /unbuffered { once_scope pay;", "location /unbuffered { once_scope pay; once_response_max 100;")
OWN_KEYS = setting("once_scope pay;", "once_scope pay; once_key $request_id;")
NO_WAIT = setting("once_wait 20s;", "once_wait 0;")
NO_HAND_OFF = setting("once_handoff on;", "once_handoff off;")
CLEAR_LOGS = setting("once_scope pay;", "once_scope pay; once_log_keys clear;")

CASES = [
    # (what is taken out, the file, the test, its arguments)
    (UNPROTECTED, one_execution, "test_200_identical_requests_at_once_are_one_execution_and_one_answer", {}),
    (UNPROTECTED, one_execution, "test_50_keys_with_20_duplicates_each_are_50_executions", {}),
    (UNPROTECTED, one_execution, "test_clients_that_leave_right_after_sending_are_stored_and_their_retries_replay", {}),
    (UNPROTECTED, protocol, "test_post_and_patch_are_protected", {"protocol": H1, "method": "POST"}),
    (UNPROTECTED, protocol, "test_a_missing_key_is_refused_where_one_is_required", {"protocol": H1}),
    (UNPROTECTED, protocol, "test_a_malformed_key_is_refused_and_never_ignored", {"protocol": H1, "syntax": "pay", "value": '"'}),
    (UNPROTECTED, security, "test_a_client_cannot_speak_for_the_gateway_to_the_service", {"protocol": H1, "name": "Once-Key", "value": "x"}),
    (UNPROTECTED, waiting, "test_duplicates_wait_for_their_original_and_replay_it", {}),
    (NO_WAIT, waiting, "test_duplicates_wait_for_their_original_and_replay_it", {}),
    (ONE_TENANT, protocol, "test_a_key_means_one_intent_for_each_tenant", {"protocol": H1}),
    (ONE_TENANT, security, "test_a_tenant_never_sees_the_answer_of_another_with_the_same_key_and_body", {"protocol": H1}),
    (ONE_TENANT, security, "test_a_tenant_cannot_learn_whether_another_has_used_a_key", {"protocol": H1}),
    (
        NO_BODY,
        protocol,
        "test_the_same_key_with_another_request_is_a_mismatch_and_the_original_still_replays",
        {"protocol": H1, "other": {"body": b"x"}},
    ),
    (NO_BODY, one_execution, "test_a_request_body_of_5_mb_is_compared_whole_from_its_temporary_file", {"chunked": False}),
    (
        DOUBT_RETRIES,
        stored,
        "test_a_request_that_left_and_brought_no_whole_answer_is_in_doubt_and_not_run_again",
        {"protocol": H1, "ending": stored.ENDS_IN_DOUBT["no answer"]},
    ),
    (RETRIES, one_execution, "test_a_timeout_leaves_doubt_and_a_late_answer_changes_nothing", {}),
    (RETRIES, faults, "test_the_key_of_a_killed_worker_is_running_until_its_lease_ends_and_then_in_doubt", {}),
    (RETRIES, faults, "test_a_service_that_fails_at_random_under_load_runs_no_intent_twice", {}),
    (
        RELEASES_5XX,
        server_errors,
        "test_a_service_that_commits_and_then_says_500_has_each_effect_as_often_as_was_chosen",
        {"case": server_errors.HAMMERED["by default"]},
    ),
    *(
        (RELEASES_REFUSALS, server_errors, "test_a_service_that_commits_and_then_says_500_has_each_effect_as_often_as_was_chosen", {"case": server_errors.HAMMERED[said]})
        for said in ("a 503 that asks for nothing", "a 408", "a 401", "a 409", "a 429")
    ),
    (RELEASES_5XX, server_errors, "test_who_retries_is_told_what_the_service_answered_and_what_to_do", {}),
    (STORES_5XX, server_errors, "test_each_5xx_is_what_the_location_says", {"status": 500, "target": "/pay", "scope": "pay"}),
    (
        contract("_report", "next_state = 'in_doubt' AND outcome.response_status IS NULL", "false"),
        server_errors,
        "test_while_the_service_may_still_be_at_work_its_verify_function_is_not_asked",
        {},
    ),
    (
        contract("_take_over", "IF stored.state = 'in_doubt' THEN verified", "IF false THEN verified"),
        server_errors,
        "test_a_verify_function_that_raises_leaves_the_doubt_and_harms_no_other_request",
        {},
    ),
    (STORES_LITTLE, one_execution, "test_an_answer_that_comes_piece_by_piece_is_stored_whole", {"target": "/unbuffered"}),
    (NO_HAND_OFF, handoff, "test_the_answer_that_the_gateway_gives_is_the_one_that_the_service_stored", {}),
    (CLEAR_LOGS, security, "test_a_key_or_a_body_is_in_no_log_unless_asked_for", {}),
    # What the contract decides, the gateway must not paper over.
    (
        contract("_report", "AND i.fence = fence", "AND true"),
        handoff,
        "test_a_completion_under_an_old_fence_is_refused_and_its_effect_rolled_back",
        {},
    ),
]


def named(case):
    kind = next((name for name, value in globals().items() if value is case[0]), "the contract")
    return f"{kind}: {case[2][5:]}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_without_its_guarantee_the_test_fails(fresh, case):
    broken, module, name, arguments = case
    with Upstream() as service, Upstream() as other:
        config, http = module.CONFIG, getattr(module, "HTTP", "").replace("@other@", str(other.path))
        config, http = broken(config, http, fresh)
        if module is handoff:
            fresh.execute("CREATE TABLE payment (key text, amount integer)")
        if module is server_errors:
            server_errors.prepare(fresh)
        door = Door(fresh, service, config, http, base=HTTP.replace("20s", "2s"))
        door.patience_s = 1  # for what will not come
        if module is security:
            (door.nginx.directory / "users").write_text("")
        with door:
            # The door itself works, so that the test fails for what is missing.
            assert door.attempt("plain", value='"plain"').status == 201
            with pytest.raises((AssertionError, TimeoutError, KeyError)):
                getattr(module, name)(door=door, **arguments)


def test_where_it_fails_open_the_test_of_what_passes_without_the_database_fails():
    config, http = setting("once_scope pay;", "once_scope pay; once_fail open;")(faults.CONFIG, faults.HTTP, None)
    with Postgres() as mortal, Upstream() as service, Door(mortal.new_database(), service, config, http) as door:
        with pytest.raises(AssertionError):
            faults.test_while_postgresql_is_down_nothing_runs_and_every_request_is_answered_soon(mortal, door)
        assert mortal.process is None  # it failed for what passed, not before
        assert len(service.requests) > 1


def test_where_each_attempt_has_a_key_of_its_own_the_test_of_connections_that_come_and_go_fails():
    config, http = OWN_KEYS(slow_disk.CONFIG, "", None)
    with SlowDisk() as disk, Postgres(environment=disk.environment, settings={"fsync": "on"}) as slow, Upstream() as service:
        with Door(slow.new_database(), service, config, http, workers=1) as door:
            assert door.attempt("plain").status == 201
            with pytest.raises(AssertionError, match="== {}"):
                slow_disk.come_and_go(door, disk, 1)
