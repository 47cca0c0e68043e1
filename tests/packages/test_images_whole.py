# SPDX-License-Identifier: PostgreSQL
"""The images are built and run here: what is in them, who they run as, how each job ends. And compose.yaml, with podman-compose.

PGONCE_IMAGES=kept takes those of the last run instead of building them."""

import http.client
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import threading

import pytest

from harness.release import VERSION
from harness.broker import free_port
from harness.nats import Nats
from harness.postgres import Postgres, wait_until
from harness.release import VERSION
from harness.upstream import Answer as Service
from harness.upstream import Upstream
from harness.webhook import Answer, Webhook

from . import containers
from .containers import EPOCH, IMAGES, ROOT, SAFE, TMP

pytestmark = pytest.mark.whole

PGONCE, NGINX, EXAMPLE = (f"localhost/{name}:{VERSION}" for name in ("pgonce", "pgonce-nginx", "pgonce-example"))
PAGE = (ROOT / "docs/how/containers.md").read_text()
HOST = ("--network", "host")
# A container that was told to end has this long, whatever it does: more than it needs on a busy machine.
PATIENCE_S = 60


@pytest.fixture(scope="module", name="podman")
def make_podman():
    made = containers.podman()
    if os.environ.get("PGONCE_IMAGES") != "kept":
        made.build(IMAGES / "Containerfile", PGONCE)
        made.build(IMAGES / "Containerfile", EXAMPLE, "--target", "example")
        made.build(IMAGES / "Containerfile.nginx", NGINX)
    return made


@pytest.fixture(scope="module", name="server")
def make_server():
    with Postgres() as running:
        running.directory.chmod(0o711)  # containers run as another user
        yield running


@pytest.fixture(name="db")
def make_db(server):
    database = server.new_database()
    database.execute("CREATE TABLE effect (key text NOT NULL)")
    yield database
    database.drop()


def reaches(database):
    """Flags: the server's socket is in the container, too."""
    return (*HOST, "-v", f"{database.server.directory}:{database.server.directory}")


# ---- What is in an image.

USERS = {PGONCE: 65532, NGINX: 33, EXAMPLE: 65532}


@pytest.mark.parametrize("image", USERS)
def test_an_image_runs_as_an_ordinary_user_and_says_what_it_is(podman, image):
    told = podman.image(image)["Config"]
    assert told["User"] == f"{USERS[image]}:{USERS[image]}"
    assert told["Labels"]["org.opencontainers.image.licenses"].startswith("PostgreSQL") and told["Labels"]["org.opencontainers.image.description"]
    assert told.get("StopSignal", "SIGTERM") == ("SIGQUIT" if image == NGINX else "SIGTERM")
    assert not re.search("password|secret=|token", json.dumps(told), re.I)
    if image != EXAMPLE:
        assert told["Labels"]["org.opencontainers.image.version"] == VERSION


@pytest.mark.parametrize("image", USERS)
def test_an_image_has_only_what_runs(podman, image):
    with podman.mounted(image) as root:
        files = {path.relative_to(root).as_posix(): path.lstat() for path in root.rglob("*")}
    programs = {name for name in files if re.match(r"usr/s?bin/", name)}
    assert programs == {"usr/bin/once-ready", {PGONCE: "usr/bin/pgonce", NGINX: "usr/sbin/nginx", EXAMPLE: "usr/bin/payments-example"}[image]}
    left = [name for name in files if re.search(r"history|apt/|/lists/|\.(h|a|c|o|py|pc|deb|log)$|^(source|build|root|home)", name)]
    assert left == []
    for name, found in files.items():
        assert (found.st_uid, found.st_gid) == (0, 0), name
        assert found.st_mtime == int(EPOCH), name
        if not stat.S_ISLNK(found.st_mode):
            assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID), name
            assert not found.st_mode & 0o022 or name == "tmp", name
    # What scanners and lawyers ask for: which packages, and their terms.
    packages = {name.rsplit("/", 1)[1] for name in files if name.startswith("var/lib/dpkg/status.d/")}
    assert {"libc6", "libpq5", "ca-certificates"} <= packages
    assert all(f"usr/share/doc/{package}/copyright" in files for package in packages | {"pgonce"})


@pytest.mark.parametrize("image", [PGONCE, NGINX])
def test_an_image_is_not_larger_than_the_page_says(podman, image):
    name = image.split("/")[1].split(":")[0]
    row = next(line for line in PAGE.splitlines() if line.startswith("| size"))
    most = [int(each) for each in re.findall(r"(\d+) MB", row)][name != "pgonce"]
    size = podman.image(image)["Size"] / 1e6
    assert most * 0.8 < size <= most, f"{name}: {size:.1f} MB"


def test_the_same_source_gives_the_same_layer(podman):
    """Built anew on the same base."""
    podman.build(IMAGES / "Containerfile.nginx", NGINX)  # nothing is to do, unless PGONCE_IMAGES has kept that of another source
    again = "localhost/pgonce-nginx:again"
    podman.build(IMAGES / "Containerfile.nginx", again, "--no-cache")
    assert podman.image(again)["RootFS"] == podman.image(NGINX)["RootFS"]


# ---- The command.


def test_without_arguments_it_prints_its_help(podman):
    done = podman.run(PGONCE)
    assert done.returncode == 0 and done.stdout.startswith("pgonce makes retries harmless") and "Usage: pgonce COMMAND" in done.stdout
    assert podman.run(PGONCE, "--version").stdout.startswith(f"pgonce {VERSION} ")


@pytest.mark.parametrize(
    "dsn, said",
    {
        "host=nowhere.invalid dbname=app": 'could not translate host name "nowhere.invalid"',
        "host=127.0.0.1 port=1 dbname=app": "Connection refused",
        "service=pgonce": 'service file "/run/secrets/pgonce" not found',
    }.items(),
)
def test_a_wrong_database_is_one_line(podman, dsn, said):
    done = podman.run(PGONCE, "doctor", "--dsn", dsn, flags=HOST)
    assert done.returncode in (2, 3) and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr


def test_names_are_looked_up_in_the_hosts_file_and_certificates_are_there(podman, db):
    """Each needs a file that an image without a system might lack: nsswitch.conf, and the bundle where OpenSSL looks."""
    done = podman.run(PGONCE, "doctor", "--dsn", "host=database.test port=1", flags=("--add-host", "database.test:127.0.0.1"))
    assert 'connection to server at "database.test" (127.0.0.1), port 1 failed: Connection refused' in done.stderr
    done = podman.run(PGONCE, "init", "--dsn", db.dsn(), flags=reaches(db))
    assert done.returncode == 0, done.stderr
    with podman.mounted(PGONCE) as root:
        assert (root / "usr/lib/ssl/cert.pem").is_symlink() and (root / "etc/ssl/certs/ca-certificates.crt").read_text().count("BEGIN CERTIFICATE") > 50


def test_a_service_file_that_all_may_read_holds_the_password(podman, db, tmp_path):
    """As a secret is mounted: owned by another user, and read-only. A password file of libpq would be ignored."""
    secret = tmp_path / "secret"
    secret.write_text(f"[pgonce]\nhost={db.server.directory}\ndbname={db.name}\nuser=postgres\npassword=unused\n")
    secret.chmod(0o444)
    flags = (*reaches(db), "-v", f"{secret}:/run/secrets/pgonce:ro", "-e", "PGSERVICE=pgonce")
    done = podman.run(PGONCE, "keep", "--once", flags=flags)
    assert done.returncode == 0, done.stderr


@pytest.fixture(name="settings")
def make_settings(tmp_path):
    def write(text):
        path = tmp_path / "pgonce.conf"
        path.write_text(text)
        path.chmod(0o644)
        tmp_path.chmod(0o755)
        return ("-v", f"{path}:/etc/pgonce/pgonce.conf:ro")

    return write


def test_term_ends_a_relay_after_the_events_that_are_under_way(podman, db, settings):
    with Webhook(lambda _: Answer(hang=True)) as hook:
        flags = (*reaches(db), *settings(f"[relay shop]\ndsn = {db.dsn()}\nsink = webhook\nurl = {hook.url}\nallow_plain = yes\nallow_private = yes\n"))
        with podman.started(PGONCE, "relay", flags=flags) as relay:
            wait_until(lambda: "event=active" in relay.said(), f"the relay: {relay.said()}")
            db.execute("SELECT once.emit('order.placed', '{}')")
            hook.wait(1)
            relay.signal("TERM")
            assert relay.is_running()  # it waits for the answer
            hook.release(Answer(200))
            assert relay.end(PATIENCE_S) == 0
        with podman.started(PGONCE, "relay", flags=flags) as relay:
            wait_until(lambda: "event=active" in relay.said(), f"the relay: {relay.said()}")
            db.execute("SELECT once.emit('order.placed', '{}')")
            hook.wait(2)
            hook.release(Answer(200))
            relay.signal("TERM")
            assert relay.end(PATIENCE_S) == 0
        assert len(set(hook.event_ids())) == len(hook.event_ids()) == 2


def test_term_ends_a_consumer_after_the_message_that_it_applies(podman, db, settings):
    db.execute("CREATE FUNCTION public.take(message once.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(7);"
               " INSERT INTO effect VALUES ('taken'); END $$")
    with Nats() as nats:
        with nats.connect() as client:
            client.request("$JS.API.STREAM.CREATE.ORDERS", json.dumps({"name": "ORDERS", "subjects": ["order.>"]}).encode())
            client.request("order.placed", b"{}", headers=(("Pgonce-Event-Id", "order-7"),))
        flags = (*reaches(db), *settings(f"[consume stock]\ndsn = {db.dsn()}\nsource = nats\nurl = {nats.url}\nstream = ORDERS\nhandler = public.take\n"))
        holder = db.connect(autocommit=False)
        holder.cursor().execute("SELECT pg_advisory_xact_lock(7)")
        with podman.started(PGONCE, "consume", flags=flags) as consume:
            wait_until(lambda: db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = 7") == 1, "the handler")
            consume.signal("TERM")
            holder.rollback()
            assert consume.end(PATIENCE_S) == 0, consume.said()
        assert db.value("SELECT count(*) FROM effect") == 1


def test_term_ends_a_keeper_which_gives_its_lease_back(podman, db):
    words = ("keep", "--dsn", db.dsn(), "--interval", "1h")
    for _ in range(2):  # the second one would wait for the lease of a killed one
        with podman.started(PGONCE, *words, flags=reaches(db)) as keep:
            wait_until(lambda keep=keep: "event=step" in keep.said(), "the keeper's work", patience_s=30)
            keep.signal("TERM")
            assert keep.end(PATIENCE_S) == 0
            assert "event=stopped" in keep.said()


def test_term_ends_a_console_that_has_clients(podman, db):
    port = free_port()
    with podman.started(PGONCE, "console", "--dsn", db.dsn(), "--listen", f"127.0.0.1:{port}", flags=reaches(db)) as console:
        wait_until(lambda: console.execute("/usr/bin/once-ready", port, "/ready").returncode == 0, "the console")
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        asked.request("GET", "/")
        assert asked.getresponse().read().lstrip().startswith(b"<!doctype html>")
        console.signal("TERM")  # its connection is open
        assert console.end(PATIENCE_S) == 0


# ---- nginx.


class Gate:
    """nginx's container before a service of this machine. port: the gate's; probes: of /once/ready."""

    def __init__(self, podman, db, upstream, tmp_path):
        self.podman, self.port = podman, free_port()
        upstream_folder = upstream.directory
        upstream_folder.chmod(0o711)
        upstream.path.chmod(0o777)
        tmp_path.chmod(0o755)
        (tmp_path / "gate.conf").write_text(
            f'once_database "{db.dsn()}";\nserver {{ listen 127.0.0.1:{self.port}; client_max_body_size 20m; location / {{ once required; once_scope pay; once_tenant none;'
            f" proxy_pass http://unix:{upstream.path}; }} }}\n"
        )
        (tmp_path / "gate.conf").chmod(0o644)
        self.flags = (*reaches(db), "-v", f"{upstream_folder}:{upstream_folder}", "-v", f"{tmp_path}/gate.conf:/etc/nginx/conf.d/gate.conf:ro", *TMP)

    def ask(self, key, body=b"{}"):
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        asked.request("POST", "/pay", body, {"Idempotency-Key": f'"{key}"', "Content-Type": "application/json", "X-Test": key})
        answer = asked.getresponse()
        return answer.status, answer.getheader("Idempotency-Replayed"), answer.read()


@pytest.fixture(name="upstream")
def make_upstream():
    with Upstream() as running:
        yield running


@pytest.fixture(name="gate")
def make_gate(podman, db, upstream, tmp_path):
    gate = Gate(podman, db, upstream, tmp_path)
    with podman.started(NGINX, flags=gate.flags) as container:
        gate.container = container
        wait_until(lambda: container.execute("/usr/bin/once-ready", 8081).returncode == 0, f"nginx: {container.said()}")
        yield gate


def test_the_gateway_works_on_a_read_only_root_and_logs_to_its_output(gate):
    large = b'{"a": "' + b"x" * 3_000_000 + b'"}'  # goes to a temporary file
    first = gate.ask("one", large)
    assert first[:2] == (201, None) and gate.ask("one", large) == (first[0], "true", first[2])
    assert gate.container.execute("/usr/bin/once-ready", 8081, "/once/live").returncode == 0
    assert gate.container.execute("/usr/bin/once-ready", 8081, "/once/metrics").returncode == 0
    out, err = gate.container.logs()
    assert out.count('verdict="new_claim"') == out.count('verdict="replay_success"') == 1 and 'method="POST"' in out
    assert not re.search(r"\[(emerg|alert|crit|error)\]", err)
    with open(f"/proc/{gate.container.pid()}/status", encoding="utf-8") as status:
        status = status.read()
    assert "\nUid:\t33\t33\t33\t33\n" in status and "\nNoNewPrivs:\t1\n" in status and "\nCapEff:\t0000000000000000\n" in status


def test_stopping_the_gateway_lets_a_running_request_finish(gate, upstream):
    """podman stop sends the image's own stop signal, QUIT."""
    finish = threading.Event()
    upstream.script("slow", Service(hold=finish))
    answers = []
    client = threading.Thread(target=lambda: answers.append(gate.ask("slow")))
    client.start()
    upstream.wait("slow")
    pid = gate.container.pid()
    stop = subprocess.Popen(["podman", "stop", "-t", str(PATIENCE_S), gate.container.name], env=gate.podman.environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", gate.port)) != 0, "nginx to close its door")
    assert os.path.exists(f"/proc/{pid}")  # podman calls a container that is being stopped no longer running
    finish.set()
    client.join(PATIENCE_S)
    assert stop.wait(PATIENCE_S) == 0 and answers[0][:2] == (201, None)
    assert gate.container.end(PATIENCE_S) == 0


def test_term_stops_the_gateway_at_once(gate):
    gate.ask("one")
    gate.container.signal("TERM")
    assert gate.container.end(PATIENCE_S) == 0


def test_the_gateway_reads_its_configuration_again(gate):
    gate.ask("one")
    done = gate.container.execute("/usr/sbin/nginx", "-e", "stderr", "-s", "reload")
    assert done.returncode == 0, done.stderr
    assert gate.ask("one")[:2] == (201, "true")


def test_what_is_missing_is_one_line(podman):
    def said(*flags):
        done = podman.run(NGINX, flags=flags)
        assert done.returncode == 1
        return [line for line in done.stderr.splitlines() if "[emerg]" in line]

    without = said(*TMP)
    assert len(without) == 1 and "there is no once_database, the database of the intents" in without[0]


def test_without_a_place_to_write_it_names_that_place(podman, db, upstream, tmp_path):
    gate = Gate(podman, db, upstream, tmp_path)
    done = podman.run(NGINX, flags=gate.flags[: -len(TMP)])
    assert done.returncode == 1 and len([line for line in done.stderr.splitlines() if "[emerg]" in line]) == 1
    assert re.search(r'"/tmp/\w+(\.pid)?" failed \(30: Read-only file system\)', done.stderr)


# ---- compose.yaml.


class Compose:
    def __init__(self, podman):
        self.podman, self.project = podman, f"test{os.getpid()}"
        self.gate, self.console = free_port(), free_port()
        self.environment = {"POSTGRES_IMAGE": "localhost/postgres:17", "GATEWAY_PORT": str(self.gate), "CONSOLE_PORT": str(self.console), "PATH": os.environ["PATH"]}

    def __call__(self, *words):
        return self.podman.call("-p", self.project, *words, program="podman-compose", env=self.environment, timeout=300)

    def inside(self, service, *words):
        return self.podman.call("exec", f"{self.project}_{service}_1", *words)

    def logs(self, service):
        done = self.podman.call("logs", f"{self.project}_{service}_1")
        return done.stdout + done.stderr


@pytest.fixture(name="compose")
def make_compose(podman, tmp_path_factory):
    if not shutil.which("podman-compose"):
        pytest.skip("there is no podman-compose: tools/setup.sh test-packages")
    podman.build(ROOT / "tests/packages/postgres_image/Containerfile", "localhost/postgres:17", context=ROOT / "tests/packages/postgres_image")
    secrets = ROOT / "secrets"
    made = not secrets.exists()
    subprocess.run([IMAGES / "secrets"], check=True, capture_output=True)
    compose = Compose(podman)
    try:
        yield compose
    finally:
        compose("down", "-v")
        if made:
            shutil.rmtree(secrets)


def charge(port, key):
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked.request("POST", "/payments", '{"order": "lamp", "amount": 100, "currency": "EUR"}', {"Idempotency-Key": f'"{key}"', "Content-Type": "application/json"})
    answer = asked.getresponse()
    return answer.status, answer.getheader("Idempotency-Replayed"), answer.read()


def is_healthy(compose, service):
    import yaml  # pylint: disable=import-outside-toplevel

    test = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"][service]["healthcheck"]["test"]
    return compose.inside(service, *test[1:]).returncode == 0


SERVING = ("database", "keeper", "relay", "console", "payments", "gateway")


def test_compose_runs_everything_and_a_request_twice_charges_once(compose):
    done = compose("up", "-d", "--no-build")
    assert done.returncode == 0, done.stdout + done.stderr
    for service in SERVING:
        wait_until(lambda service=service: is_healthy(compose, service), f"{service}: {compose.logs(service)}", patience_s=PATIENCE_S)
    first = charge(compose.gate, "order-7")
    assert first[:2] == (201, None) and charge(compose.gate, "order-7") == (201, "true", first[2])
    counted = compose.inside("database", "psql", "-U", "postgres", "-d", "app", "-Atc", "SELECT count(*) FROM payments.charge").stdout
    assert counted == "1\n"
    wait_until(lambda: '"destination": "charge.made"' in compose.logs("relay"), "the event of the charge")
    assert compose.logs("relay").count('"destination": "charge.made"') == 1
    page = http.client.HTTPConnection("127.0.0.1", compose.console, timeout=20)
    page.request("GET", "/")
    assert page.getresponse().status == 200

    # No secret is in what the machine's users can list.
    told = compose.podman.must("inspect", *(f"{compose.project}_{service}_1" for service in SERVING))
    for secret in (ROOT / "secrets").iterdir():
        for password in re.findall(r"[0-9a-f]{48}", secret.read_text()):
            assert password not in told
    # A stop and a start later the answer is still the same.
    assert compose("down").returncode == 0
    assert compose("up", "-d", "--no-build").returncode == 0
    for service in SERVING:
        wait_until(lambda service=service: is_healthy(compose, service), f"{service}: {compose.logs(service)}", patience_s=PATIENCE_S)
    assert charge(compose.gate, "order-7") == (201, "true", first[2])
