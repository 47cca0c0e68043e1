# SPDX-License-Identifier: PostgreSQL
"""What the chart renders, run: the containers' commands as processes, with the files, the rights and the signals that a kubelet gives them (chart.py), and a private
PostgreSQL. There is no cluster here: scheduling, networks and policies are not tried."""

import http.server
import os
import signal
import threading

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, Postgres, wait_until

from .chart import Container, ask, packed, render

pytestmark = pytest.mark.whole
pytest.importorskip("yaml")

KEY = {"Idempotency-Key": "one", "Content-Type": "text/plain"}


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("chart"))


@pytest.fixture
def postgres():
    """One that a test may stop, and that the users of pods can reach."""
    with Postgres() as running:
        running.directory.chmod(0o711)
        yield running


def service_file(database, user="postgres"):
    words = dict(word.split("=", 1) for word in database.dsn(user).split())
    return "[pgonce]\n" + "".join(f"{name}={value}\n" for name, value in words.items())


def secrets(database, **more):
    return {"shop-database": {"pg_service.conf": service_file(database)}, **more}


def pods(manifests, end):
    for name, _, _, spec in manifests.pods():
        if name.endswith(end):
            return spec
    raise AssertionError(f"no pod of {end}")


def container(chart, values, end, name, given, **options):
    manifests = render(chart, {"database": {"existingSecret": "shop-database"}, **values}, **options)
    return Container(pods(manifests, end), name, manifests, given)


def run(chart, values, end, name, given):
    with container(chart, values, end, name, given) as it:
        return it.run()


class Service:
    """What the gateway stands in front of. A request waits for `hold`, if that is set."""

    def __init__(self):
        self.count, self.hold, self.arrived = 0, None, threading.Event()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.count += 1
                service.arrived.set()
                if service.hold is not None:
                    service.hold.wait(PATIENCE_S)
                self.send_response(201)
                body = f"{service.count}".encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET = answer

            def log_message(self, *_):
                pass

        self.port = free_port()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.hold is not None:
            self.hold.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def service():
    with Service() as running:
        yield running


def gateway(service, **more):
    return {"gateway": {"mode": "deployment", "upstream": f"http://127.0.0.1:{service.port}", "tenant": "none", "scope": "orders", "drainSeconds": 1, **more}}


JOBS = {
    # It notices with its next round.
    "keep": ({"keep": {"interval": "1s"}}, "-keep", "keep", 30),
    "relay": ({"relays": {"orders": {"options": {"sink": "stdout", "route": "order.* -> {topic}"}}}}, "-relay-orders", "relay", 45),
    # Without a broker: it waits for one.
    "consume": ({"consumers": {"stock": {"options": {"source": "nats", "url": "nats://127.0.0.1:1", "stream": "ORDERS", "handler": "shop.take"}}}}, "-consume-stock", "consume", 60),
    "console": ({"console": {"enabled": True}}, "-console", "console", 30),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_lives_without_its_database_is_ready_with_it_and_ends_in_time(chart, postgres, job):
    """Apicurio/apicurio-registry-operator#215: liveness must not ask for the database."""
    values, end, name, grace = JOBS[job]
    database = postgres.new_database()
    database.execute("CREATE SCHEMA shop; CREATE FUNCTION shop.take(once.message) RETURNS void LANGUAGE sql AS ''")
    with container(chart, values, end, name, secrets(database)) as it:
        it.start()
        for probe in ("startup", "liveness", "readiness"):
            it.await_probe(probe, 200)
        if "metrics" in it.ports:
            status, _, body = ask(it.ports["metrics"], "/metrics")
            assert status == 200 and b"pgonce_" in body
        database.close()
        postgres.stop("immediate")
        it.await_probe("readiness", 503)
        assert it.probe("liveness") == it.probe("startup") == 200
        postgres.start()
        it.await_probe("readiness", 200)
        assert it.stop() < grace == it.spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("job", JOBS)
def test_a_job_that_starts_without_its_database_waits_for_it(chart, postgres, job):
    values, end, name, _ = JOBS[job]
    database = postgres.new_database()
    database.close()
    postgres.stop("immediate")
    with container(chart, values, end, name, secrets(database)) as it:
        it.start()
        it.await_probe("startup", 200)
        it.await_probe("readiness", 503)
        it.stop()


def test_the_gateway_runs_each_key_once_and_answers_probes_as_stated(chart, postgres, service):
    database = postgres.new_database()
    with container(chart, gateway(service), "-gateway", "gateway", secrets(database)) as it:
        it.start()
        for probe in ("startup", "liveness", "readiness"):
            it.await_probe(probe, 200)
        first = ask(it.ports["http"], "/orders", "POST", KEY, b"a")
        again = ask(it.ports["http"], "/orders", "POST", KEY, b"a")
        assert first[0] == again[0] == 201 and first[2] == again[2] == b"1" and again[1]["Idempotency-Replayed"] == "true" and service.count == 1
        assert ask(it.ports["http"], "/orders", "POST", {}, b"a")[0] == 400, "required"
        assert database.value("SELECT count(*) FROM once.intent WHERE scope = 'orders'") == 1
        for path in ("/metrics", "/once/metrics"):
            assert b"pgonce_decisions_total" in ask(it.ports["metrics"], path)[2]
        # The service gets these paths, not the gateway's own numbers.
        assert ask(it.ports["http"], "/metrics")[2] == b"2"
        database.close()
        postgres.stop("immediate")
        it.await_probe("readiness", 503)
        assert it.probe("liveness") == 200
        assert ask(it.ports["http"], "/orders", "POST", {**KEY, "Idempotency-Key": "two"}, b"a")[0] == 503 and service.count == 2
        assert ask(it.ports["http"], "/")[0] == 201, "a GET needs no database"
        postgres.start()
        it.await_probe("readiness", 200)
        assert it.stop() < it.spec["terminationGracePeriodSeconds"]


def test_a_gateway_may_stay_ready_while_its_database_is_away(chart, postgres, service):
    database = postgres.new_database()
    database.close()
    postgres.stop("immediate")
    with container(chart, gateway(service, readyWithoutDatabase=True), "-gateway", "gateway", secrets(database)) as it:
        it.start()
        it.await_probe("readiness", 200)
        assert ask(it.ports["http"], "/")[0] == 201 and ask(it.ports["http"], "/orders", "POST", KEY, b"a")[0] == 503
        it.stop()


def in_background(work):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()))
    thread.start()
    return thread, answers


def test_an_ending_gateway_takes_requests_for_a_while_and_finishes_them(chart, postgres, service):
    """kubernetes/website#1414, nginx/docker-nginx#377: nginx takes SIGTERM for at once, and `nginx -s quit` in preStop does not wait."""
    service.hold = threading.Event()
    with container(chart, gateway(service, drainSeconds=3), "-gateway", "gateway", secrets(postgres.new_database())) as it:
        it.start()
        it.await_probe("readiness", 200)
        slow, answers = in_background(lambda: ask(it.ports["http"], "/orders", "POST", KEY, b"a"))
        assert service.arrived.wait(PATIENCE_S)
        stopping, took = in_background(it.stop)
        assert ask(it.ports["metrics"], "/once/live")[0] == 200, "a Service may still send requests"
        wait_until(lambda: ask(it.ports["metrics"], "/once/live")[0] == 0, "the end of new requests")
        slow.join(2)  # in which a wrong signal would have broken it off
        assert slow.is_alive() and it.process.poll() is None and not answers
        service.hold.set()
        slow.join(PATIENCE_S)
        stopping.join(PATIENCE_S)
        assert answers[0][0] == 201 and 3 <= took[0] < it.spec["terminationGracePeriodSeconds"]


def test_with_another_stop_signal_an_ending_gateway_would_break_requests_off(chart, postgres, service):
    """So the test before sees what it says."""
    service.hold = threading.Event()
    with container(chart, gateway(service), "-gateway", "gateway", secrets(postgres.new_database())) as it:
        it.start()
        it.await_probe("readiness", 200)
        slow, answers = in_background(lambda: ask(it.ports["http"], "/orders", "POST", KEY, b"a"))
        assert service.arrived.wait(PATIENCE_S)
        it.process.send_signal(signal.SIGTERM)
        it.process.wait(PATIENCE_S)
        slow.join(PATIENCE_S)
        assert answers[0][0] == 0


@pytest.mark.parametrize("more", [
    {"tenant": "http_x_tenant", "required": False, "on5xx": "release", "wait": "10s", "replayCache": "off", "accessLog": False},
    {"upstream": "https://127.0.0.1"},
    {"httpSnippet": "limit_req_zone $http_x_tenant zone=tenants:1m rate=9r/s;", "serverSnippet": "keepalive_timeout 7s;", "locationSnippet": "limit_req zone=tenants burst=50;\n"},
    {"upstream": "http://unix:/run/shop/socket"},
])  # fmt: skip
def test_nginx_takes_each_form_of_its_configuration(chart, service, postgres, more):
    database = postgres.new_database()
    with container(chart, gateway(service, **more), "-gateway", "gateway", secrets(database)) as it:
        it.it = {**it.it, "args": ["-t", *it.it["args"]]}
        status, said = it.run()
        assert status == 0 and "[warn]" not in said and "[emerg]" not in said, said


def test_a_sidecar_runs_from_its_patch(chart, postgres, service):
    import yaml  # pylint: disable=import-outside-toplevel

    values = {"database": {"existingSecret": "shop-database"}, **gateway(service, mode="sidecar")}
    manifests = render(chart, values)
    spec = yaml.safe_load(manifests.one("ConfigMap", "-sidecar")["data"]["patch.yaml"])["spec"]["template"]["spec"]
    spec["containers"] = spec.pop("initContainers")
    with Container(spec, "pgonce-gateway", manifests, secrets(postgres.new_database())) as it:
        it.start()
        it.await_probe("readiness", 200)
        assert [ask(it.ports["pgonce"], "/", "POST", KEY, b"a")[0] for _ in range(2)] == [201, 201] and service.count == 1
        it.stop()


# ---- the hook


INIT = {"init": {"enabled": True}}


def test_the_hook_installs_the_contract_and_may_run_again_and_beside_another(chart, postgres):
    database = postgres.empty_database()
    done = []
    threads = [threading.Thread(target=lambda: done.append(run(chart, INIT, "-init", "init", secrets(database)))) for _ in range(2)]
    # Rendered in the threads as well; the processes are tied to them, and end before they do.
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [status for status, _ in done] == [0, 0], done
    assert database.value("SELECT count(*) FROM once.migration") > 0
    assert run(chart, INIT, "-init", "init", secrets(database))[0] == 0


def test_an_older_chart_that_finds_a_newer_contract_goes_on(chart, postgres):
    """A downgrade, or Argo CD's rollback."""
    database = postgres.new_database()
    database.execute("INSERT INTO once.migration (version, name, checksum, pgonce) SELECT 999, 'later', checksum, '99.0.0' FROM once.migration LIMIT 1")
    status, said = run(chart, INIT, "-init", "init", secrets(database))
    assert status == 0 and "nothing was changed" in said, said


def test_the_hook_fails_when_it_must(chart, postgres):
    foreign = postgres.empty_database()
    foreign.execute("CREATE SCHEMA once; CREATE TABLE once.mine ()")
    assert run(chart, INIT, "-init", "init", secrets(foreign))[0] == 4
    foreign.close()
    postgres.stop("immediate")
    assert run(chart, INIT, "-init", "init", secrets(foreign))[0] == 3


# ---- helm test


def test_helm_test_looks_into_everything_that_runs(chart, postgres, service):
    database = postgres.new_database()
    values = {**gateway(service), **JOBS["relay"][0], **JOBS["consume"][0], **JOBS["console"][0], "database": {"existingSecret": "shop-database"}}
    manifests = render(chart, values)
    spec = pods(manifests, "-test")
    names = [each["name"] for each in spec["containers"]]
    assert names == ["keep", "console", "gateway", "nginx", "relay-orders", "consume-stock"]
    for name in names:
        with Container(spec, name, manifests, secrets(database)) as it:
            status, said = it.run()
            assert status == 0, f"{name}: {said}"


def test_helm_test_fails_without_the_contract_and_for_a_wrong_option(chart, postgres):
    status, said = run(chart, {}, "-test", "keep", secrets(postgres.empty_database()))
    assert status == 1 and "run pgonce init" in said
    wrong = {"relays": {"orders": {"options": {"sink": "stdout", "bach": 7}}}}
    status, said = run(chart, wrong, "-test", "relay-orders", secrets(postgres.new_database()))
    assert status == 2 and "bach" in said
    status, said = run(chart, {}, "-test", "keep", {"shop-database": {"pg_service.conf": "[other]\n"}})
    assert status != 0 and "pgonce" in said


# ---- files


def test_a_configuration_from_a_secret_and_files_beside_it_are_read(chart, postgres):
    values = {"relays": {"orders": {"existingSecret": "shop-relays", "secrets": ["shop-hooks"]}}}
    given = secrets(postgres.new_database(), **{
        "shop-relays": {"pgonce.conf": "[relay orders]\nsink = webhook\nurl = https://shop.example/hooks\nsecret_file = SECRETS/webhook-key\n"},
        "shop-hooks": {"webhook-key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"},
    })  # fmt: skip
    with container(chart, values, "-relay-orders", "relay", given) as it:
        # The kubelet's paths are here in another folder.
        conf = it.directory / "etc/pgonce/conf/pgonce.conf"
        conf.write_text(conf.read_text().replace("SECRETS", it.here("/etc/pgonce/secrets")))
        it.start()
        it.await_probe("readiness", 200)
        assert "exposed" not in it.said(), "the file is not readable for others"
        it.stop()


def test_a_password_file_in_a_secret_would_be_ignored(chart, postgres):
    """kubernetes/kubernetes#57117: why the chart wants a service file."""
    if os.geteuid() != 0:
        pytest.skip("needs root, who gives a file to another group")
    postgres.stop()
    hba = postgres.data / "pg_hba.conf"
    hba.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    postgres.start()
    database = postgres.new_database()
    database.execute("CREATE ROLE keeper LOGIN PASSWORD 'sesame'; GRANT once_keeper TO keeper")
    with_password = service_file(database, "keeper") + "password=sesame\n"
    with container(chart, {}, "-keep", "keep", {"shop-database": {"pg_service.conf": with_password}}) as it:
        it.start()
        it.await_probe("readiness", 200)
        assert (it.directory / "etc/pgonce/database/pg_service.conf").stat().st_mode & 0o777 == 0o440
        it.stop()
    with container(chart, {}, "-keep", "keep", {"shop-database": {"pg_service.conf": service_file(database, "keeper")}}) as it:
        passfile = it.directory / "etc/pgonce/database/pgpass"
        passfile.write_text("*:*:*:*:sesame\n")
        passfile.chmod(0o440)
        (it.directory / "etc/pgonce/database/pg_service.conf").open("a").write(f"passfile={passfile}\n")
        it.start()
        it.await_probe("startup", 200)
        wait_until(lambda: "group or world access" in it.said() or "no password supplied" in it.said(), "the refusal")
        assert it.probe("readiness") == 503


def test_a_new_password_is_read_without_a_restart(chart, postgres):
    database = postgres.new_database()
    with container(chart, {}, "-keep", "keep", {"shop-database": {"pg_service.conf": service_file(database).replace("port=", "port=1")}}) as it:
        it.start()
        it.await_probe("readiness", 503)
        file = it.directory / "etc/pgonce/database/pg_service.conf"
        changed = file.with_name("new")
        changed.write_text(service_file(database))
        changed.chmod(0o444)
        changed.rename(file)
        it.await_probe("readiness", 200)
        it.stop()


def test_a_changed_secret_reaches_the_gateway_too(chart, postgres, service):
    database = postgres.new_database()
    with container(chart, gateway(service), "-gateway", "gateway", {"shop-database": {"pg_service.conf": service_file(database).replace("port=", "port=1")}}) as it:
        it.start()
        it.await_probe("readiness", 503)
        file = it.directory / "etc/pgonce/database/pg_service.conf"
        changed = file.with_name("new")
        changed.write_text(service_file(database))
        changed.chmod(0o444)
        changed.rename(file)
        it.await_probe("readiness", 200)
        it.stop()
