# SPDX-License-Identifier: PostgreSQL
"""A client's certificate as its tenant: who makes one himself with another's name in it gets nothing of the other."""

import ssl
import subprocess

import pytest

from harness.client import Http1

from .door import BODY, Door, assert_problem, new_key, same_answer

CONFIG = """
    once required;
    once_scope pay;
    ssl_client_certificate @dir@/authority.pem;
    ssl_verify_client optional_no_ca;
    location /mapped { once_tenant $caller; proxy_pass http://app; }
    location /print { once_tenant $ssl_client_fingerprint; proxy_pass http://app; }
"""
VERIFIED = """
    server {
        listen unix:@dir@/@name@ ssl;
        ssl_certificate @dir@/certificate.pem;
        ssl_certificate_key @dir@/key.pem;
        ssl_client_certificate @dir@/authority.pem;
        ssl_verify_client optional;
        location / { once required; once_scope pay; once_tenant $ssl_client_s_dn; proxy_pass http://app; }
    }
"""
LED_ON = "error_page 495 = @led; location @led { once required; once_scope pay; once_tenant $ssl_client_s_dn; proxy_pass http://app; } location /"
HTTP = "map $ssl_client_verify $caller { SUCCESS $ssl_client_s_dn; }" + VERIFIED.replace("@name@", "verified") + VERIFIED.replace("@name@", "led").replace("location /", LED_ON)
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(directory, *words, **options):
    subprocess.run(["openssl", *words], cwd=directory, capture_output=True, check=True, **options)


def make_certificates(directory):
    """authority.pem, and two for the same name: ann.pem is the authority's, stranger.pem anybody's."""
    openssl(directory, "req", "-x509", *KEY, "-subj", "/CN=authority", "-days", "2", "-keyout", "authority.key", "-out", "authority.pem")
    openssl(directory, "req", *KEY, "-subj", "/CN=ann", "-keyout", "ann.key", "-out", "ann.csr")
    openssl(
        directory,
        *("x509", "-req", "-in", "ann.csr", "-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial", "-days", "2", "-out", "ann.pem"),
    )
    openssl(directory, "req", "-x509", *KEY, "-subj", "/CN=ann", "-days", "2", "-keyout", "stranger.key", "-out", "stranger.pem")


@pytest.fixture(scope="module")
def door(database, upstream):
    door = Door(database, upstream, CONFIG, HTTP)
    make_certificates(door.nginx.directory)
    with door:
        yield door


def ask(door, who, key, target, path=None):
    """who: of make_certificates; None: without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if who:
        context.load_cert_chain(door.nginx.directory / f"{who}.pem", door.nginx.directory / f"{who}.key")
    with Http1(path or door.nginx.tls) as connection:
        connection.shared.stream.close()
        connection.socket = context.wrap_socket(connection.socket)
        connection.shared.stream = connection.socket.makefile("rb")
        return connection.send("POST", target, door.headers_of(key), BODY, close=True).receive()


def test_a_stranger_with_anothers_name_in_his_certificate_has_no_tenant(door):
    key = new_key()
    first = ask(door, "ann", key, "/mapped")
    assert first.status == 201 and door.stored(key, tenant="CN=ann").state == "succeeded"
    for who in ("stranger", None):
        assert_problem(ask(door, who, key, "/mapped"), 400, "tenant-missing")
    again = ask(door, "ann", key, "/mapped")
    assert again.replayed and same_answer(first, again) and door.count(key) == 1


def test_where_certificates_are_verified_a_strangers_is_refused_by_nginx(door):
    key, path = new_key(), door.nginx.directory / "verified"
    first = ask(door, "ann", key, "/", path)
    stranger = ask(door, "stranger", key, "/", path)
    assert stranger.status == 400 and not stranger.replayed and first.body not in stranger.body
    assert_problem(ask(door, None, key, "/", path), 400, "tenant-missing")
    assert ask(door, "ann", key, "/", path).replayed and door.count(key) == 1


def test_where_an_error_page_leads_a_refused_certificate_to_a_protected_location_it_is_nobodys(door):
    key, path = new_key(), door.nginx.directory / "led"
    assert ask(door, "ann", key, "/", path).status == 201
    assert_problem(ask(door, "stranger", key, "/", path), 400, "tenant-missing")
    assert_problem(ask(door, "stranger", new_key(), "/", path), 400, "tenant-missing")
    assert door.count(key) == 1


def test_a_fingerprint_is_of_one_certificate_whoever_made_it(door):
    key = new_key()
    first, other = (ask(door, who, key, "/print") for who in ("ann", "stranger"))
    assert (first.status, other.status) == (201, 201)
    assert not other.replayed and first.body != other.body and door.count(key) == 2
    for who, answer in (("ann", first), ("stranger", other)):
        again = ask(door, who, key, "/print")
        assert again.replayed and same_answer(answer, again)
