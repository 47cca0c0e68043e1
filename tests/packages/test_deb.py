# SPDX-License-Identifier: PostgreSQL
"""The Debian packages on fresh machines, from the first `apt install` to the last `apt purge`: what docs/start/install.md says is typed, in this order. A machine
for each release; its tests build on each other."""

import os
import re
import shutil
import socket
import subprocess
import time

import pytest

from . import debs, fresh

pytestmark = pytest.mark.whole
LIMIT_S = 180
PATIENCE_S = 60
# Answers each request with its number; perl is in every Debian.
SERVICE = r"""
use strict; use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => 3000, Listen => 9, ReuseAddr => 1) or die;
my $count = 0;
while (my $client = $server->accept) {
    my $length = 0;
    while (defined(my $line = <$client>)) { $length = $1 if $line =~ /^content-length: (\d+)/i; last if $line =~ /^\r?\n$/; }
    read $client, my $body, $length if $length;
    my $text = "order " . ++$count . "\n";
    print $client "HTTP/1.1 201 Created\r\nContent-Length: " . length($text) . "\r\nConnection: close\r\n\r\n$text";
    close $client;
}
"""


def until(what, said):
    end = time.monotonic() + PATIENCE_S
    while not (value := what()):
        assert time.monotonic() < end, f"no {said} within {PATIENCE_S} s"
        time.sleep(0.1)
    return value


class Manager:
    """A service manager's socket, in the machine's tree."""

    def __init__(self, machine):
        self.name = "/tmp/notify"  # Debian 13 makes homes that others cannot enter
        self.path = machine.path(self.name)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        os.chmod(self.path, 0o777)
        self.socket.settimeout(PATIENCE_S)

    def until(self, beginning):
        while True:
            message = self.socket.recv(4096).decode()
            if message.startswith(beginning):
                return message

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.path.unlink()


class Place:
    """A machine, and what a user of it sees."""

    def __init__(self, machine):
        self.machine = machine
        self.run = machine.run

    def sql(self, text, database="shop"):
        return self.run(f"psql -qAt -d {database} -c {debs.quoted(text)}", user="postgres").out.strip()

    def ask(self, key):
        return self.run(f"curl -si -H 'Idempotency-Key: {key}' -d '{{\"amount\": 5}}' http://127.0.0.1:8080/orders", user="dev").out

    def gateway(self):
        return self.machine.started("exec pgonce gateway --dsn dbname=shop --upstream http://127.0.0.1:3000 --required", user="dev")

    def wait_for_gateway(self):
        until(lambda: self.run("curl -sf http://127.0.0.1:8080/once/ready", user="dev", check=False).status == 0, "gateway")

    def install(self, *more, check=True):
        return self.run(f"cd /home/dev && apt install -y {' '.join(more) or './dist/*.deb'} 2>&1", online=True, check=check)

    def unit(self, name):
        return dict(line.split("=", 1) for line in self.machine.read(f"/usr/lib/systemd/system/{name}.service").splitlines() if re.match(r"\w+=", line))


@pytest.fixture(scope="module", params=fresh.SUITES)
def place(request):
    folder = debs.packages(request.param)
    with fresh.Machine(request.param, include=("curl",), sudo=True) as machine:
        machine.run("id", user="dev")
        debs.give(machine, folder)
        machine.write("/home/dev/service.pl", SERVICE)
        with machine.started("exec perl service.pl", user="dev"):
            made = Place(machine)
            made.suite = request.param
            yield made


def test_from_nothing_to_a_protected_endpoint_in_three_minutes(place):
    commands = debs.typed("docs/start/install.md", "Debian")
    install, *prepare, gateway, ask = commands
    assert install.startswith("sudo apt install ./dist/*.deb") and gateway.startswith("pgonce gateway") and ask.startswith("curl")
    began = time.monotonic()
    place.run(install.replace("apt install", "apt install -y"), user="dev", online=True)
    place.run(f"pg_ctlcluster {fresh.SERVERS[place.suite]} main start")  # systemd does it
    for command in prepare:
        place.run(f"export USER=dev; {command}", user="dev")
    with place.machine.started(f"exec {gateway}", user="dev"):
        place.wait_for_gateway()
        first = place.run(ask, user="dev").out
        took_s = time.monotonic() - began
        assert first == "order 1\n" == place.run(ask, user="dev").out
        assert "idempotency-replayed: true" in place.ask("order-1").lower() and "order 2" in place.ask("order-2")
    print(f"{place.suite}: {took_s:.0f} s")
    assert took_s < LIMIT_S


def test_the_server_has_both_extensions(place):
    place.run("createdb extended", user="postgres")
    place.sql("CREATE EXTENSION pgonce", "extended")
    place.sql("SELECT once.add_days()", "extended")
    place.sql("CREATE EXTENSION pgonce_native", "extended")
    assert place.sql("SELECT extversion FROM pg_extension WHERE extname LIKE 'pgonce%' ORDER BY extname", "extended") == f"{debs.RELEASE}\n{debs.RELEASE}"
    assert place.sql("SELECT once_native.obstacle(false) IS NULL", "extended") == "t"


def test_the_systems_nginx_has_the_module(place):
    place.machine.write("/etc/nginx/conf.d/orders.conf", """
once_database "host=/run/postgresql dbname=shop user=dev";
server { listen 127.0.0.1:8090; location / { once required; once_tenant none; once_scope orders; proxy_pass http://127.0.0.1:3000; } }
""")  # fmt: skip
    assert place.machine.path("/etc/nginx/modules-enabled/50-mod-http-once.conf").is_symlink()
    assert "load_module modules/ngx_http_once_module.so" in place.run("nginx -T 2>&1").both


def test_a_program_in_c_finds_the_library(place):
    place.run("apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config", online=True)
    place.machine.write("/root/try.c", '#include <pgonce.h>\n#include <stdio.h>\nint main(void) { puts(once_code_name(ONCE_USAGE)); return 0; }\n')
    place.run("gcc -Werror try.c -o try $(pkg-config --cflags --libs libpgonce) && ./try")
    assert "libpgonce.so.1 => /lib" in place.run("ldd try").out.replace("/usr/lib", "/lib")


def test_shells_complete_its_command_lines(place):
    place.run("apt-get install -y -qq --no-install-recommends bash-completion fish zsh", online=True)
    complete = "complete_it() { COMP_LINE=\"$*\"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=($*); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _pgonce; echo ${COMPREPLY[@]}; }; "
    load = ". /usr/share/bash-completion/bash_completion; { _completion_loader pgonce || _comp_load pgonce; } 2>/dev/null; "
    assert place.run(f"{load}{complete}complete_it pgonce ga").out == "gateway\n"
    assert place.run(f"{load}{complete}complete_it pgonce gateway --on-5xx r").out == "release\n"
    assert "gateway" in place.run("fish -c \"complete -C 'pgonce ga'\"").out
    assert "--upstream" in place.run("fish -c \"complete -C 'pgonce gateway --up'\"").out
    assert place.run("zsh -c 'autoload -U compinit; compinit -D; print $_comps[pgonce]'").out == "_pgonce\n"


def test_its_pages_can_be_read(place):
    for page in ("man1/pgonce.1.gz", "man1/pgonce-keep.1.gz", "man5/pgonce.conf.5.gz"):
        assert place.machine.path(f"/usr/share/man/{page}").exists()
    assert "## Roles" in place.machine.read("/usr/share/doc/pgonce/docs/how/services.md")


JOBS = {"pgonce-keep": "once_keeper", "pgonce-relay@orders": "once_relay", "pgonce-consume@stock": "once_consumer", "pgonce-console": "once_reader"}


@pytest.mark.parametrize("name", JOBS)
def test_a_unit_starts_reloads_and_stops_as_its_manager_expects(place, name):
    """By hand, as its user and with its environment: no systemd runs on such a machine."""
    unit, (job, _, instance) = place.unit(re.sub("@.*", "@", name)), name.partition("@")
    assert (unit["Type"], unit["User"], unit["DynamicUser"]) == ("notify", "pgonce", "yes")
    assert place.run("stat -c '%U %G %a' /etc/pgonce").out == "root pgonce 750\n"
    place.run("createdb jobs; pgonce init --dsn dbname=jobs; createuser pgonce || true", user="postgres")  # with the roles
    place.sql(f"GRANT {JOBS[name]} TO pgonce")
    place.sql("CREATE SCHEMA IF NOT EXISTS shop; GRANT USAGE ON SCHEMA shop TO pgonce", "jobs")
    place.sql("CREATE OR REPLACE FUNCTION shop.take_stock(once.message) RETURNS void LANGUAGE sql AS ''", "jobs")  # the file's handler
    place.run("sed 's/^dsn = .*/dsn = dbname=jobs/' /usr/share/doc/pgonce/examples/pgonce.conf > /etc/pgonce/pgonce.conf; chgrp pgonce /etc/pgonce/pgonce.conf")
    command = unit["ExecStart"].replace("%i", instance).replace(f"${job.removeprefix('pgonce-').upper()}_OPTIONS", "")
    environment = {"PGDATABASE": "jobs", "WATCHDOG_USEC": "2000000"}
    with Manager(place.machine) as manager:
        environment["NOTIFY_SOCKET"] = manager.name
        with place.machine.started(f"echo $$ > /tmp/{job}.pid; exec {command}", user="pgonce", env=environment) as process:
            assert re.search("STATUS=(at work|listening)", manager.until("READY=1"))
            manager.until("WATCHDOG=1")
            pid = place.machine.read(f"/tmp/{job}.pid").strip()
            place.run(unit["ExecReload"].replace("$MAINPID", pid))
            manager.until("RELOADING=1")
            manager.until("READY=1")
            manager.until("WATCHDOG=1")
            place.run(f"kill -TERM {pid}")
            manager.until("STOPPING=1")
            assert process.wait(PATIENCE_S) == 0


def test_another_version_beside_it_is_told_in_one_line(place):
    place.machine.write("/usr/local/bin/pgonce", "#!/bin/sh\necho pgonce 0.9\n", 0o755)
    said = place.install("--reinstall", "./dist/pgonce_*.deb").both
    lines = [line for line in said.splitlines() if "/usr/local" in line]
    assert lines == ["pgonce: another pgonce is in /usr/local/bin, and most shells find that one first. Remove it: rm /usr/local/bin/pgonce"]
    place.run("rm /usr/local/bin/pgonce")


def test_what_an_administrator_has_disabled_stays_so_in_an_upgrade_and_no_answer_is_lost(place):
    link = place.machine.path("/etc/nginx/modules-enabled/50-mod-http-once.conf")
    place.run("rm /etc/nginx/conf.d/orders.conf")
    link.unlink()
    place.run("chmod 700 /etc/pgonce")
    count = place.sql("SELECT count(*) FROM once.intent")
    debs.give(place.machine, debs.packages(place.suite, debs.NEXT))
    with place.gateway():
        place.wait_for_gateway()
        place.install()  # while it serves
        assert "order 1" in place.ask("order-1")
    assert debs.NEXT in place.run("pgonce version").out and not link.is_symlink()
    assert place.run("stat -c %a /etc/pgonce").out == "700\n"
    place.run("pgonce init --dsn dbname=shop", user="dev")
    with place.gateway():
        place.wait_for_gateway()
        again = place.ask("order-1")
        assert "order 1" in again and "idempotency-replayed: true" in again.lower()
    assert place.sql("SELECT count(*) FROM once.intent") == count
    assert place.sql("SELECT once_native.obstacle(false) IS NULL", "extended") == "t"
    place.run("ln -s /usr/share/nginx/modules-available/mod-http-once.conf /etc/nginx/modules-enabled/50-mod-http-once.conf")


def names_of(place):
    return place.run("dpkg-query -W -f '${Package} ${db:Status-Abbrev}\\n' | grep once | cut -d' ' -f1").out.split()


def test_removed_it_serves_no_more_and_installed_again_it_is_as_before(place):
    place.run("apt remove -y " + " ".join(names_of(place)))
    assert place.run("pgonce version", check=False).status == 127
    assert "successful" in place.run("nginx -t 2>&1").both
    assert place.machine.path("/etc/pgonce/pgonce.conf").exists()
    place.install()
    assert "ngx_http_once_module" in place.run("nginx -T 2>&1").both and place.machine.path("/etc/pgonce/pgonce.conf").exists()


def test_purged_nothing_is_left_but_every_database(place):
    count = place.sql("SELECT count(*) FROM once.intent")
    place.run("mkdir -p /etc/systemd/system/multi-user.target.wants && ln -s /usr/lib/systemd/system/pgonce-relay@.service "
              "/etc/systemd/system/multi-user.target.wants/pgonce-relay@orders.service")  # fmt: skip
    place.run("apt purge -y " + " ".join(names_of(place)))
    assert "successful" in place.run("nginx -t 2>&1").both
    left = [name for name in place.machine.files() if re.search(r"once(?!\w)|pgonce", name) and not re.match(r"home/dev|root/|tmp/|var/(cache|lib/postgresql|lib/apt|log)", name)]
    assert left == []
    assert place.run("getent passwd pgonce", check=False).status == 2 and "once" not in place.run("dpkg -l").out
    assert place.sql("SELECT count(*) FROM once.intent") == count != "0"


# ---- what does not fit


def test_lintian_has_nothing_to_say():
    """With the reasons of packaging/debian/*.lintian-overrides."""
    if debs.here() not in fresh.SUITES or not shutil.which("lintian"):
        pytest.skip("lintian of Debian 12 or 13: tools/setup.sh deb")
    files = sorted(debs.packages(debs.here()).glob("*.deb"))
    done = subprocess.run(["lintian", "--allow-root", "--pedantic", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.fixture(scope="module")
def other():
    """A Debian 13 with the packages of Debian 12."""
    folder = debs.packages("bookworm")
    with fresh.Machine("trixie") as machine:
        machine.run("id", user="dev")
        debs.give(machine, folder)
        yield Place(machine)


@pytest.mark.parametrize("name, missing", [("postgresql-15-pgonce", "postgresql-15"), ("postgresql-15-pgonce-native", "postgresql-15"),
                                           ("libnginx-mod-http-once", "nginx-abi-1.22.1-7"), ("pgonce", "libnats3.4")])
def test_a_package_of_another_release_names_what_is_missing_and_leaves_nothing(other, name, missing):
    said = other.install(f"./dist/{name}_*.deb", check=False)
    assert said.status == 100 and re.search(rf"^ ?.*{name} .*(: )?Depends: .*{re.escape(missing)}", said.both, re.M), said.both
    assert "once" not in other.run("dpkg -l").out


def test_without_nginx_the_gateway_says_in_one_line_what_to_do():
    folder = debs.packages("bookworm")
    with fresh.Machine("bookworm") as machine:
        machine.run("id", user="dev")
        debs.give(machine, folder)
        place = Place(machine)
        place.install("--no-install-recommends", "./dist/pgonce_*.deb")
        said = place.run("pgonce gateway --upstream http://127.0.0.1:3000", user="dev", check=False)
        assert said.status == 1 and re.fullmatch(r"pgonce gateway: nginx is not installed here\nhint: install it \(Debian, Ubuntu: apt install nginx\).*\n", said.err), said
