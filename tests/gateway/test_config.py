# SPDX-License-Identifier: PostgreSQL
"""What nginx -t takes and refuses: each directive's values, and each combination that the gateway cannot protect. A refusal
says where, why, and what to write instead."""

import re

import pytest

from harness.nginx import Nginx, Refused
from harness.postgres import ROOT

DATABASE = 'once_database "host=/nowhere dbname=none";'
UPSTREAM = "upstream app { server unix:@dir@/service; }"
DOCS = (ROOT / "docs/reference/directives.md").read_text()
SOURCE = (ROOT / "gateway/ngx_http_once_module.c").read_text()


@pytest.fixture(scope="module")
def nginx():
    never_started = Nginx(shutdown="60s")
    (never_started.directory / "nodes").write_text("host=/nowhere dbname=none\n")
    (never_started.directory / "nodes").chmod(0o644)
    yield never_started
    never_started.destroy()


def check(nginx, location="", http="", server="", database=DATABASE, handler="proxy_pass http://app;", once="once on; once_tenant none;"):
    nginx.write(http=f"{database} {UPSTREAM} {http}", server=f"{server} location /pay {{ {once} {location} {handler} }}")
    return nginx.check()


def refusal(nginx, *args, **options):
    with pytest.raises(Refused) as refused:
        check(nginx, *args, **options)
    return str(refused.value)


# ---- Each directive. In http where it belongs there, else in the location.

HTTP_ONLY = {"once_database", "once_nodes", "once_timeout", "once_prepare", "once_batch_max", "once_batch_bytes", "once_batch_age", "once_replay_memory",
             "once_replay_cache"}
GOOD = {
    "once_database": ["postgresql://app@%2Fnowhere/none", "host=127.0.0.1", "hostaddr=127.0.0.1 host=db.example", "host=@abstract", "dbname=none"],
    "once_nodes": ["@dir@/nodes", "nodes"],
    "once_timeout": ["1s", "500ms", "7d; send_timeout 22d"],
    "once_prepare": ["on", "off"],
    "once_batch_max": ["1", "65536"],
    "once_batch_bytes": ["64k"],
    "once_batch_age": ["0", "2ms", "7d"],
    "once_replay_memory": ["0", "1024m"],
    "once_replay_cache": ["off", "zone=replays:32k", "zone=a:64m"],
    "once": ["off", "on", "required"],
    "once_scope": ["payments", "$server_name", "pay-$arg_kind"],
    "once_tenant": ["none", "$http_x_tenant", "t-$remote_user"],
    "once_key": ["$http_webhook_id", "$arg_key", "fixed", "$http_x-$arg_key", "$http_x.y", "${http_webhook_id}", "${http_x}y"],
    "once_key_syntax": ["lenient", "strict"],
    "once_key_length": ["1", "255"],
    "once_methods": ["POST", "POST PUT PATCH DELETE"],
    "once_lease": ["1s", "10m", "7d"],
    "once_retention": ["0", "30d"],
    "once_wait": ["0", "5s"],
    "once_body_max": ["0", "10m"],
    "once_response_max": ["1", "64m"],
    "once_headers": ["Location", "X-* content-type", "X_Under X.Dot x-9"],
    "once_store": ["2xx", "2xx 3xx 4xx"],
    "once_on_5xx": ["in_doubt", "release", "store"],
    "once_release": ["503", "401 403 429 503", "4xx 502", "none", "300 599"],
    "once_in_doubt": ["hold", "retry"],
    "once_fail": ["closed", "open"],
    "once_fingerprint": ["body", "method host target content_type body $http_x_version"],
    "once_canonical_json": ["on", "off", "on; once_body_max 64m"],
    "once_handoff": ["on", "off"],
    "once_log_keys": ["hash", "clear"],
    "once_problem_base": ["https://docs.example/problems#"],
    "once_status": ["", "json", "metrics"],
}
BAD = {
    "once_database": ['""', '"port"', '"nonsense=1"', "/nowhere/at/all"],
    "once_nodes": ['""', "/nowhere/at/all", "@dir@", "a b"],
    "once_timeout": ["0", "soon", "8d; send_timeout 30d"],
    "once_prepare": ["maybe"],
    "once_batch_max": ["0", "65537", "many"],
    "once_batch_bytes": ["some"],
    "once_batch_age": ["old", "604800001ms"],
    "once_replay_memory": ["little", "1g"],
    "once_replay_cache": ["on", "zone=a", "zone=:1m", "zone=a:", "zone=a:much", "zone=a:16k", "zone=once_status:1m", "1m"],
    "once": ["yes", "on off"],
    "once_scope": ['""', "a b", "$no_such_variable"],
    "once_tenant": ['""', "$no_such_variable"],
    "once_key": ['""', "$no_such_variable"],
    "once_key_syntax": ["loose"],
    "once_key_length": ["0", "256", "x"],
    "once_methods": ["GET", "HEAD", "OPTIONS"],
    "once_lease": ["999ms", "0", "x", "604800001ms"],
    "once_retention": ["never"],
    "once_wait": ["long"],
    "once_body_max": ["x"],
    "once_response_max": ["0", "65m"],
    "once_headers": ["Set-Cookie", "WWW-Authenticate", "Date", "Idempotency-Replayed", "Once-Fence", "X*Y", '""'],
    "once_store": ["6xx", "4xx", "3xx 4xx", "2xx 5xx"],
    "once_on_5xx": ["hold", "in-doubt", "release store"],
    "once_release": ["200", "299", "600", "5xx", "3xx", "2xx", "none 503", "503 none", "all", "5030", '""', "503; once_release 401"],
    "once_in_doubt": ["maybe"],
    "once_fail": ["safe"],
    "once_fingerprint": ["hosts", "$no_such_variable"],
    "once_canonical_json": ["maybe"],
    "once_handoff": ["maybe"],
    "once_log_keys": ["plain"],
    "once_problem_base": ['""', '"a b"', '"a\\"b"'],
    "once_status": ["xml"],
}


def place(name, value):
    """The arguments of check that put one directive where it belongs."""
    if name == "once_database":
        return {"database": f"once_database {value};" if value[0] == '"' else f'once_database "{value}";'}
    if name == "once_nodes":
        return {"database": f"once_nodes {value};"}
    if name in HTTP_ONLY:
        return {"http": f"{name} {value};"}
    if name == "once_status":
        return {"server": f"location = /status {{ once_status {value}; }}"}
    if name == "once":
        return {"once": f"once {value}; once_tenant none;"}
    if name == "once_tenant":
        return {"once": f"once on; once_tenant {value};"}
    return {"location": f"{name} {value};"}


def cases(table):
    return [pytest.param(name, value, id=f"{name} {value}") for name in table for value in table[name]]


@pytest.mark.parametrize("name, value", cases(GOOD))
def test_a_directive_takes_each_of_its_values(nginx, name, value):
    check(nginx, **place(name, value))


@pytest.mark.parametrize("name, value", cases(BAD))
def test_a_directive_refuses_what_it_cannot_mean_and_says_which_it_is(nginx, name, value):
    """By its name, or, where nginx itself checks the value, by the value and its line."""
    said = refusal(nginx, **place(name, value))
    if value.startswith("$no_such"):
        assert 'unknown "no_such_variable" variable' in said or name in said, said
        return
    line = re.search(r"nginx.conf:(\d+)", said)
    at = nginx.conf.read_text().splitlines()[int(line.group(1)) - 1] if line else ""
    assert name in said or (name in at and re.search(r"invalid value|must be between", said)), said


@pytest.mark.parametrize("name", sorted(set(GOOD) - HTTP_ONLY - {"once_status", "once_scope", "once"}))
def test_a_directive_that_comes_twice_is_refused(nginx, name):
    value = GOOD[name][0]
    if name in ("once_methods", "once_store"):
        pytest.skip("a list: each one adds to it")
    assert "duplicate" in refusal(nginx, location=f"{name} {value}; {name} {value};", once="once on; once_scope x;" + ("" if name == "once_tenant" else "once_tenant none;"))


def test_a_database_and_a_status_page_that_come_twice_are_refused(nginx):
    assert "duplicate" in refusal(nginx, database=DATABASE + DATABASE)
    assert "duplicate" in refusal(nginx, server="location = /status { once_status; once_status json; }")


def test_a_database_that_a_file_names_is_read_from_it(nginx):
    path = nginx.directory / "conninfo"
    path.touch(0o644)
    for end in ("", "\n", "\r\n", " \n"):
        path.write_text("host=/nowhere dbname=none" + end)
        check(nginx, database=f"once_database {path};")
    for content in ("", "\n", "x" * 5000, "host=/nowhere\0dbname=none", "nonsense"):
        path.write_text(content)
        assert "once_database" in refusal(nginx, database=f"once_database {path};")


def test_a_refused_connection_string_is_not_repeated_since_it_may_hold_a_password(nginx):
    assert "hush" not in refusal(nginx, database='once_database "host=/nowhere secret=hush";')


def test_a_host_name_that_would_have_to_be_looked_up_is_warned_of(nginx):
    assert "[warn]" in check(nginx, database='once_database "host=db.example dbname=none";')
    assert "[warn]" in check(nginx, database="once_database \"host=db.example hostaddr=''\";")
    for harmless in ("host=/run/postgresql", "host=''", "host=@abstract", "host=10.0.0.1", "host=::1", "host=db.example hostaddr=10.0.0.1"):
        assert "[warn]" not in check(nginx, database=f'once_database "{harmless}";')


# ---- What is inherited.


def test_a_location_inherits_what_the_server_says(nginx):
    check(nginx, once="", server="once required; once_tenant $http_x_tenant; once_lease 5s;")
    assert "once_lease" in refusal(nginx, once="", server="once required; once_tenant none; once_lease 10ms;")


def test_a_location_that_serves_files_below_a_protected_server_needs_no_tenant(nginx):
    check(nginx, server="once on; location /files { root @dir@; }")


def test_a_location_may_stand_apart_from_its_server(nginx):
    check(nginx, once="once off;", server="once on;")


# ---- Combinations that are refused. (what the location says, a word of the reason, a word of the remedy)

REFUSED = {
    "no tenant": ({"once": "once on;"}, "whose keys", "once_tenant none"),
    "no tenant, inherited": ({"once": "", "server": "once required;"}, "whose keys", "once_tenant"),
    "no database": ({"database": ""}, "once_database", "add it to http"),
    "gRPC": ({"handler": "grpc_pass grpc://app;"}, "trailers", "grpc_pass"),
    "memcached": ({"handler": "set $memcached_key x; memcached_pass app;"}, "only reads", "memcached_pass"),
    "intercepted errors": ({"location": "proxy_intercept_errors on;"}, "by another one", "turn it off"),
    "intercepted errors, FastCGI": ({"location": "fastcgi_intercept_errors on;", "handler": "fastcgi_pass app;"}, "by another one", "turn it off"),
    "intercepted errors, uwsgi": ({"location": "uwsgi_intercept_errors on;", "handler": "uwsgi_pass app;"}, "by another one", "turn it off"),
    "intercepted errors, a variable's target": (
        {"location": "proxy_intercept_errors on;", "handler": "proxy_pass http://$host;"},
        "by another one",
        "turn it off",
    ),
    "the next upstream for what may have run": (
        {"location": "proxy_next_upstream error non_idempotent;"},
        "may have run",
        "once_in_doubt retry",
    ),
    "the same from http": ({"http": "proxy_next_upstream error non_idempotent;"}, "may have run", "remove it"),
    "a fallback that runs it again": (
        {"location": "error_page 502 504 @other;", "server": "location @other { proxy_pass http://app; }"},
        "again there",
        "by its URI",
    ),
    "a cache": (
        {"http": "proxy_cache_path @dir@/cache keys_zone=c:1m;", "location": "proxy_cache c; proxy_cache_methods POST;"},
        "answer of another",
        "proxy_cache_methods",
    ),
    "slices": ({"location": "slice 1m;"}, "many requests", "slice 0"),
    "slices, inherited": ({"server": "slice 1m;"}, "many requests", "slice 0"),
    "a request more after each answer": ({"location": "post_action /again;"}, "again after each answer", "mirror"),
    "a request more, inherited": ({"http": "post_action /again;"}, "again after each answer", "remove it"),
    "no headers for the upstream": ({"location": "proxy_pass_request_headers off;"}, "drops", "once_handoff off"),
    "a certificate that anybody can make": (
        {"once": "once on; once_tenant $ssl_client_s_dn;", "server": "ssl_verify_client optional_no_ca;"},
        "$ssl_client_s_dn",
        "ssl_verify_client on or optional",
    ),
    "a certificate that another server let in": (
        {"once": "once on; once_tenant t-${ssl_client_serial}-x;"},
        "anyone can make",
        "map $ssl_client_verify $caller { SUCCESS $ssl_client_serial; }",
    ),
    "a certificate's issuer in the scope, with no tenant": (
        {"once": "once on; once_tenant none; once_scope $Ssl_client_i_dn;", "server": "ssl_verify_client optional_no_ca;"},
        "anyone can make",
        "$ssl_client_fingerprint",
    ),
    "a certificate that auth_request looks at, and an address that needs neither": (
        {
            "once": "once on; once_tenant $ssl_client_s_dn;",
            "server": "ssl_verify_client optional_no_ca;",
            "location": "satisfy any; allow 127.0.0.1; deny all; auth_request /auth;",
        },
        "anyone can make",
        "$ssl_client_fingerprint",
    ),
    "a user whom an address lets in": (
        {"once": "once on; once_tenant $remote_user;", "location": "satisfy any; allow 127.0.0.1; deny all; auth_basic x; auth_basic_user_file users;"},
        "any name",
        "satisfy all",
    ),
    "a client that is cut off before the database is": ({"location": "send_timeout 10s;"}, "once_timeout", "more than three times"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_dangerous_combination_is_refused_with_its_reason_and_its_remedy(nginx, name):
    options, reason, remedy = REFUSED[name]
    said = refusal(nginx, **options)
    assert reason in said and remedy in said, said
    assert name == "no database" or 'location "/pay"' in said, said


# What may stand in a block of a location, which has settings of its own.
IN_BLOCKS = [
    ("if ($arg_x)", "error_page 500 @other;"),
    ("if ($arg_x)", "grpc_pass grpc://app;"),
    ("if ($arg_x)", "memcached_pass app;"),
]


@pytest.mark.parametrize("block, inside", IN_BLOCKS)
def test_what_is_refused_in_a_location_is_refused_in_its_blocks(nginx, block, inside):
    options = {"location": f"set $memcached_key x; {block} {{ {inside} }}", "server": "location @other { proxy_pass http://app; }"}
    assert 'once in location "/pay"' in refusal(nginx, **options)
    check(nginx, **options, once="", database="")


def test_a_block_in_which_nothing_runs_needs_no_tenant(nginx):
    check(nginx, server="once on; location /files { root @dir@; if ($arg_x) { set $y 1; } limit_except GET { deny all; } }")
    assert "whose keys" in refusal(nginx, server="once on; location /files { root @dir@; if ($arg_x) { proxy_pass http://app; } }")


HARMLESS = {
    "a page for errors": {"location": "error_page 502 504 /sorry.html;"},
    "a fallback before the request is protected": {"location": "error_page 401 @login;", "server": "location @login { return 302 /login; }"},
    "the next upstream for an idempotent one": {"location": "proxy_next_upstream error non_idempotent; once_in_doubt retry;"},
    "the next upstream as nginx has it": {"location": "proxy_next_upstream error timeout http_503;"},
    "PUT": {"location": "once_methods PUT DELETE;"},
    "a cache of what is not protected": {"http": "proxy_cache_path @dir@/cache keys_zone=c:1m;", "location": "proxy_cache c;"},
    "unbuffered both ways": {"location": "proxy_request_buffering off; proxy_buffering off;"},
    "a short patience with clients and a shorter one with the database": {"location": "send_timeout 4s;", "http": "once_timeout 1s;"},
    "a mirror": {"location": "mirror /mirror;", "server": "location = /mirror { internal; proxy_pass http://app; }"},
    "FastCGI": {"handler": "fastcgi_pass app;"},
    "uwsgi": {"handler": "uwsgi_pass app;"},
    "SCGI": {"handler": "scgi_pass app;"},
    "a variable's target": {"handler": "proxy_pass http://$host;"},
    "an if": {"location": "if ($arg_x) { set $y 1; }"},
    "a limit of methods": {"location": "limit_except GET POST { deny all; }"},
    "no headers for an upstream that is not told": {"location": "proxy_pass_request_headers off; once_handoff off;"},
}


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_can_be_protected_is_not_refused(nginx, name):
    check(nginx, **HARMLESS[name])


def test_workers_that_end_before_their_requests_are_warned_of(nginx):
    nginx.shutdown = "9s"
    try:
        said = check(nginx, location="proxy_read_timeout 10s;")
        assert "worker_shutdown_timeout (9000 ms) is shorter than proxy_read_timeout (10000 ms)" in said and '"/pay"' in said
        assert "fastcgi_read_timeout" in check(nginx, handler="fastcgi_pass app;")
        assert "[warn]" not in check(nginx, location="proxy_read_timeout 9s;")
        nginx.shutdown = "0"
        assert "[warn]" not in check(nginx)
    finally:
        nginx.shutdown = "60s"


VERIFIED = "ssl_client_certificate @dir@/certificate.pem;"
PROOFS = {
    "$ssl_client_s_dn": {"server": f"ssl_verify_client on; {VERIFIED}"},
    "x-$ssl_client_serial": {"server": f"ssl_verify_client optional; {VERIFIED}"},
    "$ssl_client_fingerprint": {"server": "ssl_verify_client optional_no_ca;"},
    "$ssl_client_i_dn": {"server": "ssl_verify_client optional_no_ca; location = /auth { return 204; }", "location": "auth_request /auth;"},
    "$caller": {"server": "ssl_verify_client optional_no_ca;", "http": "map $ssl_client_verify $caller { SUCCESS $ssl_client_s_dn; }"},
    "$remote_user": {"location": "auth_basic $host; auth_basic_user_file users;"},
    "${remote_user}": {"location": "auth_request /auth;", "server": "location = /auth { return 204; }"},
    "$remote_user_x": {"http": "map $uri $remote_user_x { default x; }"},
    "$http_x_tenant": {"location": "satisfy any; allow 127.0.0.1; deny all;"},
}


@pytest.mark.parametrize("tenant", PROOFS)
def test_a_tenant_that_is_proved_is_taken_without_a_word(nginx, tenant):
    assert "[warn]" not in check(nginx, once=f"once on; once_tenant {tenant};", **PROOFS[tenant])


def test_a_user_whose_password_nothing_checks_is_warned_of(nginx):
    for unchecked in ("", "auth_basic off;", "limit_except GET { auth_basic off; }"):
        assert "any name that a client writes" in check(nginx, location=unchecked, once="once on; once_tenant t-$remote_user;")


def test_a_user_is_looked_for_where_the_protected_methods_go(nginx):
    checked = "limit_except GET { auth_basic x; auth_basic_user_file users; }"
    assert "[warn]" not in check(nginx, location=checked, once="once on; once_tenant $remote_user;")


def test_the_same_settings_pass_where_nothing_is_protected(nginx):
    for name in REFUSED:
        options = {**REFUSED[name][0], "once": "", "database": ""}
        options["server"] = options.get("server", "").replace("once required;", "")
        check(nginx, **options)


def test_a_module_that_is_loaded_and_not_used_changes_nothing(nginx):
    check(nginx, once="", database="")


# ---- The reference.


def documented():
    return re.findall(r"^\| \[(once\w*)\]\(#[\w-]+\) \|", DOCS, re.M)


def declared():
    return re.findall(r'^\s+(?:MAIN_DIRECTIVE\(|DIRECTIVE\(|\{ngx_string\()"(once\w*)"', SOURCE, re.M)


def test_each_directive_is_documented_and_tested_and_there_are_no_others():
    assert set(documented()) == set(declared()) == set(GOOD) == set(BAD)
    assert len(documented()) == len(set(documented()))


def test_each_directive_has_a_section():
    sections = " ".join(re.findall(r"^### (.*)$", DOCS, re.M)).replace(",", "").split()
    assert sorted(sections) == sorted(declared())


def test_the_context_that_is_documented_is_the_one_that_nginx_has(nginx):
    for name in documented():
        context = re.search(rf"^\| \[{name}\]\(.*\| (http|http, server, location|location) \|$", DOCS, re.M)
        assert context, name
        if name == "once_database":
            continue
        inner = f"{name} {GOOD[name][0]};"
        in_server = {"once": "once off;", "server": inner}
        if context.group(1).startswith("http, "):
            check(nginx, **in_server)
        else:
            assert "is not allowed here" in refusal(nginx, **in_server)


def test_each_variable_is_documented():
    source = (ROOT / "gateway/ngx_http_once_variables.c").read_text()
    assert set(re.findall(r'ngx_string\("(once_\w+)"\)', source)) == set(re.findall(r"^\| `\$(once_\w+)` \|", DOCS, re.M))
