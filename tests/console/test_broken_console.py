# SPDX-License-Identifier: PostgreSQL
"""Each guarantee of the console's process taken out of a source file, and the test that notices: a test that passes without its guarantee proves
nothing. The file is compiled as the build does it, and linked in front of the build's library."""
import inspect
import json
import pathlib
import shlex
import subprocess

import pytest

from harness.mutation import replaced
from harness.postgres import ROOT

from . import running
from . import test_console as tests

BUILD = pathlib.Path(running.PROGRAM).parents[1]
HOST, QUERY = "evil.example", {"query": "take=0", "named": "'take'"}
CASES = [
    # (file, what is taken out, what stands there instead, the test, its arguments)
    ("exchange.c", "!knows_host(exchange)", "false && !knows_host(exchange)", "test_a_host_that_is_not_the_consoles_is_refused", {"host": HOST}),
    ("guard.c", "|| is_listed(guard->public_hosts, name)", "", "test_its_own_address_and_localhost_and_public_hosts_are_its_hosts", {}),
    ("exchange.c", "guard_is_token(world->guard, exchange->cookie, exchange->person, token) &&", "", "test_a_token_that_is_not_of_this_cookie_decides_nothing", {}),
    ("guard.c", '"%s %s", cookie, person', '"%.0s %s", cookie, person', "test_a_token_that_is_not_of_this_cookie_decides_nothing", {}),
    ("guard.c", '"%s %s", cookie, person', '"%s %.0s", cookie, person', "test_the_person_that_a_trusted_proxy_names_is_recorded_with_the_decision", {}),
    ("exchange.c", "guard_is_own_origin(header", "true || guard_is_own_origin(header", "test_a_form_from_another_origin_decides_nothing",
     {"headers": {"Origin": "http://evil.example"}}),
    ("guard.c", 'strcmp(site, "same-origin") == 0', "true", "test_a_form_from_another_origin_decides_nothing", {"headers": {"Sec_Fetch_Site": "cross-site"}}),
    ("guard.c", 'strcmp(origin, "null") == 0 ||', "", "test_a_browsers_own_form_decides", {"headers": {"Sec_Fetch_Site": "same-origin", "Origin": "null"}}),
    ("exchange.c", "if (!world->call->allow_decisions)", "if (false)", "test_without_allow_decisions_nothing_is_decided", {}),
    ("exchange.c", "guard_trusts(world->guard, peer->client_addr) &&", "", "test_a_person_that_somebody_else_names_is_none", {}),
    ("exchange.c", 'world->call->user_header != NULL && exchange->person[0] == \'\\0\'', "false", "test_a_person_that_somebody_else_names_is_none", {}),
    ("exchange.c", 'memory_format("%s (by %s, console)", reason, exchange->person)', "memory_copy(reason)",
     "test_the_person_that_a_trusted_proxy_names_is_recorded_with_the_decision", {}),
    ("pool.c", "mode != POOL_TRY &&", "", "test_a_preview_is_rolled_back_whatever_its_statement_has_done", {}),
    ("pool.c", '"BEGIN READ ONLY"', '"BEGIN"', "test_pages_change_nothing", {}),
    ("exchange.c", "is_refused ? MHD_HTTP_CONFLICT", "is_refused ? MHD_HTTP_OK", "test_the_second_of_two_who_decide_sees_the_first_decision", {}),
    ("exchange.c", 'json_is_string(json_object_get(sum, "next"))', "false", "test_dead_messages_are_counted_first_and_then_retried_in_parts_until_all_are", {}),
    ("page.c", "number >= least && number <= most", "least <= most", "test_a_wrong_parameter_is_a_400_that_names_it", QUERY),
    ("page.c", "parameter->kind != FIELD_MANY && form_count(form, name) > 1", "false", "test_a_wrong_parameter_is_a_400_that_names_it",
     {"query": "q=a&q=b", "named": "'q'"}),
    ("exchange.c", "exchange->is_too_large = exchange->body.failed;", "", "test_a_body_without_a_length_ends_at_the_limit", {}),
    ("guard.c", "bool admits = guard->left >= 1;", "bool admits = true;", "test_more_requests_than_its_limit_get_a_429", {}),
    ("pool.c", "mode == POOL_READ && connect_member", "false && connect_member", "test_a_lost_connection_is_made_again_within_the_request", {}),
    ("exchange.c", 'made->page == NULL ? "-" : made->page->path', "made->path", "test_the_log_has_a_line_for_each_request_and_nothing_of_its_parameters", {}),
    ("pool.c", "pthread_cond_broadcast(&pool->freed);", "pthread_cond_signal(&pool->freed);", "test_requests_do_not_pile_up_behind_a_server_that_does_not_answer", {}),
    ("pool.c", "runtime_now_ms() + AWAY_MS", "0", "test_requests_do_not_pile_up_behind_a_server_that_does_not_answer", {}),
    ("exchange.c", "FORMS_MAX = 8", "FORMS_MAX = 80", "test_few_forms_are_in_memory_at_once", {}),
    ("samples.c", "problem == NULL ? POINTS_MAX : 0", "POINTS_MAX", "test_with_prometheus_the_charts_have_its_last_six_hours", {}),
    ("answer.c", "frame-ancestors 'none';", "", "test_every_answer_has_the_headers_that_keep_a_browser_safe", {}),
]


def commands():
    """How the build makes the program: [words]."""
    done = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", "cli/pgonce"], capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in done.stdout.splitlines() if line.strip() and "&&" not in line]


def broken(directory, file, old, new):
    """The program with the mutation."""
    source = directory / file
    source.write_text(replaced((ROOT / "console" / file).read_text(), old, new, file))
    compiling = next(words for words in commands() if words[-1].endswith(f"/console/{file}"))
    linking = next(words for words in commands() if "-o" in words and words[words.index("-o") + 1] == "cli/pgonce")
    compiling = compiling[: compiling.index("-MD")] + ["-Wno-error", "-Wno-unused", "-o", str(directory / "mutant.o"), "-c", str(source)]
    at = linking.index("-o")
    linking = linking[:at] + ["-o", str(directory / "pgonce"), str(directory / "mutant.o")] + linking[at + 2:]
    for words in (compiling, linking):
        done = subprocess.run(words, cwd=BUILD, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
    return str(directory / "pgonce")


@pytest.mark.plain("a mutant is linked as the plain build is")
@pytest.mark.parametrize("file, old, new, name, arguments", CASES, ids=[f"{case[3][5:45]}-{number}" for number, case in enumerate(CASES)])
def test_a_guarantee_taken_out_is_noticed(db, tmp_path, monkeypatch, file, old, new, name, arguments):
    monkeypatch.setattr(running, "PROGRAM", broken(tmp_path, file, old, new))
    check = getattr(tests, name)
    tests.make_shop(db)
    wanted = inspect.signature(check).parameters
    given = {"shop": db, "tmp_path": tmp_path}
    with running.Console(tmp_path, db.dsn("boss" if "deciding" in wanted else "postgres"), *(["--allow-decisions"] if "deciding" in wanted else [])) as console:
        assert console.ask("/find?q=order-17").status == 200, "it does its plain work"
        given |= {"console": console, "deciding": console}
        # A document without what it should have is a failure as an assertion is.
        with pytest.raises((AssertionError, KeyError, TypeError, json.JSONDecodeError, TimeoutError)):
            check(**{each: value for each, value in given.items() if each in wanted}, **arguments)
