# SPDX-License-Identifier: PostgreSQL
"""The Containerfiles and compose.yaml agree with the programs, the contract and the documents. Nothing is built: test_images_whole.py does that."""

import http.server
import os
import pathlib
import re
import subprocess
import threading

import pytest
import yaml

from harness.nginx import BUILT_IN, MODULE, PROGRAM
from harness.postgres import ROOT, clean_environment

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
IMAGES = ROOT / "packaging/images"
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
PAGE = (ROOT / "docs/how/containers.md").read_text()
OURS = {name: each for name, each in SERVICES.items() if name != "database"}
HEALTHY = [name for name, each in OURS.items() if "healthcheck" in each]


def pgonce(*words):
    return subprocess.run([BUILD / "cli/pgonce", *words], capture_output=True, text=True, env=clean_environment(), check=False)


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_has_no_rights_to_lose(name):
    service = SERVICES[name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "pid", "network_mode", "devices"} & service.keys()
    assert service.get("user", "") in ("", "postgres")  # ours have theirs in the image


def test_ports_are_published_on_this_machine_only():
    published = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert published.keys() == {"gateway", "console"}
    assert all(re.fullmatch(r"127\.0\.0\.1:\$\{\w+:-\d+\}:\d+", port) for ports in published.values() for port in ports)
    assert all(each["networks"] == ["inside"] for name, each in SERVICES.items() if name not in published)
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_secrets_are_files_and_each_service_gets_its_own(tmp_path):
    told = subprocess.run([IMAGES / "secrets", tmp_path / "new"], capture_output=True, text=True, check=True, umask=0o000).stdout
    made = {path.name: path for path in (tmp_path / "new").iterdir()}
    assert made.keys() == COMPOSE["secrets"].keys() and len(told.split()) == len(made)
    assert all(COMPOSE["secrets"][name] == {"file": f"./secrets/{name}"} for name in made)
    # Containers run as other users; only the owner can enter the folder.
    assert {path.stat().st_mode & 0o777 for path in made.values()} == {0o444} and (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    passwords = {re.search(r"password=(\w{48})$", path.read_text(), re.M)[1] for name, path in made.items() if name not in ("postgres", "roles")}
    assert len(passwords | {made["postgres"].read_text()}) == len(made) - 1
    before = {name: path.read_text() for name, path in made.items()}
    assert subprocess.run([IMAGES / "secrets", tmp_path / "new"], capture_output=True, text=True, check=True).stdout == ""
    assert {name: path.read_text() for name, path in made.items()} == before

    for name, service in OURS.items():
        wanted = {"init": "owner"}.get(name, name)
        assert service["secrets"] == [{"source": wanted, "target": "pgonce"}]
        assert f"user={wanted}\n" in before[wanted]
        assert not re.search("password", str([service.get("command"), service.get("environment")]), re.I)
    for line in ("secrets", ".git"):
        assert line in (ROOT / ".dockerignore").read_text().splitlines()
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_each_command_of_compose_is_one_that_pgonce_has():
    for name, service in OURS.items():
        if service["image"].startswith("pgonce:"):
            command, *words = service["command"]
            told = pgonce(command, "--help")
            assert told.returncode == 0, name
            for word in filter(lambda each: each.startswith("--"), words):
                assert re.search(rf"^ +(-\w, )?{word}\b", told.stdout, re.M), f"{name}: {word}"


@pytest.mark.parametrize("name", HEALTHY)
def test_the_health_check_asks_the_port_that_the_service_serves(name):
    test = SERVICES[name]["healthcheck"]["test"]
    assert test[:2] == ["CMD", "/usr/bin/once-ready"]
    port = test[2]
    if name == "gateway":
        assert f"listen {port};" in (IMAGES / "nginx.conf").read_text()
    else:
        assert f"0.0.0.0:{port}" in SERVICES[name]["command"]
    if name != "payments":
        row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"| {port} |" in line)
        assert f"`{test[3] if len(test) > 3 else '/once/ready'}`" in row


def test_every_service_but_the_one_that_ends_has_a_health_check_and_waits_for_the_contract():
    assert set(HEALTHY) == OURS.keys() - {"init"} and "healthcheck" in SERVICES["database"]
    assert SERVICES["init"]["depends_on"] == {"database": {"condition": "service_healthy"}} and SERVICES["init"]["restart"] == "on-failure"
    for name in HEALTHY:
        assert SERVICES[name]["depends_on"]["init"] == {"condition": "service_completed_successfully"}, name
        assert SERVICES[name]["restart"] == "unless-stopped"  # for a composer that does not know these conditions
    # While the server makes its database, only its socket answers.
    assert "-h" in SERVICES["database"]["healthcheck"]["test"]
    # nginx looks its upstreams up once, when it starts.
    assert SERVICES["gateway"]["depends_on"]["payments"] == {"condition": "service_healthy"}


def test_the_grace_period_of_the_gateway_is_longer_than_the_time_it_gives_its_requests():
    seconds = int(re.search(r"worker_shutdown_timeout (\d+)s;", (IMAGES / "nginx.conf").read_text())[1])
    assert seconds > 60 and int(SERVICES["gateway"]["stop_grace_period"].rstrip("s")) > seconds
    assert SERVICES["gateway"]["stop_signal"] == "SIGQUIT" and "\nSTOPSIGNAL SIGQUIT\n" in (IMAGES / "Containerfile.nginx").read_text()
    assert int(SERVICES["relay"]["stop_grace_period"].rstrip("s")) > 30


def test_the_database_of_compose_has_all_roles_of_the_contract():
    """Its owner may make none."""
    wanted = set(re.findall(r"^ +\('(once_\w+)',", (ROOT / "contract/access/grants.sql").read_text(), re.M))
    script = (IMAGES / "compose/database.sql").read_text()
    assert len(wanted) > 6 and set(re.findall(r"^CREATE ROLE (\w+) NOLOGIN;", script, re.M)) == wanted
    assert "SUPERUSER" not in script and "CREATEROLE" not in script


def test_the_relay_of_compose_has_a_valid_configuration():
    done = pgonce("relay", "--check-config", "--config", IMAGES / "compose/pgonce.conf")
    assert done.returncode == 0, done.stderr


def nginx_takes(tmp_path, gateway):
    """What nginx -t says to the image's configuration with that conf.d."""
    text = (IMAGES / "nginx.conf").read_text()
    text = text.replace("/usr/lib/nginx/modules/ngx_http_once_module.so", str(MODULE)).replace("/tmp/", f"{tmp_path}/").replace("/etc/nginx/conf.d/*.conf", f"{tmp_path}/conf.d/*.conf")
    text = re.sub(r"listen \d+;", f"listen unix:{tmp_path}/socket;", text)
    (tmp_path / "conf.d").mkdir()
    if gateway:
        (tmp_path / "conf.d/gateway.conf").write_text(re.sub(r"listen \d+;", f"listen unix:{tmp_path}/gateway;", gateway))
    (tmp_path / "nginx.conf").write_text(text)
    done = subprocess.run([PROGRAM, "-e", "stderr", "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.skipif(bool(BUILT_IN), reason="the configuration loads a module, and this nginx has it built in")
def test_nginx_takes_the_configuration_of_the_image_and_of_compose(tmp_path):
    gateway = (IMAGES / "compose/gateway.conf").read_text().replace("server payments:3000;", "server 127.0.0.1:3000;")
    status, said = nginx_takes(tmp_path, gateway)
    assert status == 0, said


@pytest.mark.skipif(bool(BUILT_IN), reason="the configuration loads a module, and this nginx has it built in")
def test_the_image_without_a_configuration_says_what_is_missing(tmp_path):
    status, said = nginx_takes(tmp_path, None)
    assert status == 1 and "there is no once_database, the database of the intents: add it to http" in said


@pytest.mark.parametrize("name", ["Containerfile", "Containerfile.nginx"])
def test_a_containerfile_ends_with_a_stage_that_has_only_what_runs(name):
    text = (IMAGES / name).read_text()
    last = text[text.rindex("\nFROM "):]
    assert last.startswith("\nFROM scratch AS ") and "\nRUN " not in last and "\nADD " not in last
    user = re.search(r"^USER (\d+):(\d+)$", last, re.M)  # Kubernetes' runAsNonRoot takes no names
    assert user and int(user[1]) > 0 and f"{user[1]}:{user[2]}" in PAGE
    assert not re.search(r"^(?:ARG|ENV) .*(?:PASSWORD|SECRET|TOKEN)", text, re.M)
    assert ("\nHEALTHCHECK " in last) != ("# No HEALTHCHECK: " in last)
    for label in ("title", "description", "version", "revision", "licenses"):
        assert f"org.opencontainers.image.{label}=" in last


def test_the_images_have_a_library_for_each_broker():
    text = (IMAGES / "Containerfile").read_text()
    for option in ("command", "kafka", "rabbitmq", "nats"):
        assert f"-D{option}=enabled" in text  # or meson fails: else what is missing would be left out silently


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # pylint: disable=invalid-name
        self.send_response({"/once/ready": 200, "/away": 503}.get(self.path, 404))
        self.end_headers()

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


@pytest.fixture(name="ready", scope="module")
def make_ready(tmp_path_factory):
    program = tmp_path_factory.mktemp("ready") / "once-ready"
    subprocess.run(["gcc", "-Wall", "-Wextra", "-Werror", "-o", program, IMAGES / "ready.c"], check=True)
    return program


def test_the_health_check_succeeds_for_200_alone(ready):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_port)
        asked = {path: subprocess.run([ready, port, *path], capture_output=True, text=True, check=False) for path in ((), ("/away",), ("/x",))}
        server.shutdown()
    assert [done.returncode for done in asked.values()] == [0, 1, 1]
    assert asked[("/away",)].stderr.startswith("once-ready: HTTP/1.0 503")
    closed = subprocess.run([ready, port], capture_output=True, text=True, check=False)
    assert closed.returncode == 1 and "refused" in closed.stderr
    for words in ((), ("0",), ("x",), (port, "ready"), (port, "/", "/")):
        assert subprocess.run([ready, *words], capture_output=True, check=False).returncode == 2
