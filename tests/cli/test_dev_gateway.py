# SPDX-License-Identifier: PostgreSQL
"""What pgonce dev runs besides the server: the services and the gateway, up and down with it, after every kind of end."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request

import pytest

from harness.nginx import BUILD, MODULE
from harness.postgres import in_memory, is_running, private_directory, wait_until

from .command import PROGRAM
from .test_dev import Dev, clean_up

NEEDED = {"cli/pgonce": PROGRAM, "gateway/ngx_http_once_module.so": MODULE,
          **{f"examples/{name}/{name}-example": BUILD / f"examples/{name}/{name}-example" for name in ("payments", "handoff")}}
pytestmark = pytest.mark.skipif(not all(path.exists() for path in NEEDED.values()), reason="the module or the services are not built")


@pytest.fixture(params=[False, True], ids=["this user", "another user"])
def dev(request):
    if request.param and os.geteuid() != 0:
        pytest.skip("only root can become another user")
    parent = private_directory("pgonce-dev-", in_memory()) if request.param else pathlib.Path(tempfile.mkdtemp(prefix="pgonce-dev-", dir=in_memory()))
    parent.chmod(0o755)
    made = Dev(parent / ".pgonce", request.param)
    if request.param:
        # The tree as it was built, where that user gets to it.
        made.copy.unlink()
        for name, path in NEEDED.items():
            (made.copy.parent / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, made.copy.parent / name)
        made.program = made.copy.parent / "cli/pgonce"
    yield made
    clean_up(made)
    shutil.rmtree(parent, ignore_errors=True)


def start(dev):
    done = dev("--detach")
    assert done.returncode == 0, done.stderr
    return dev.status()["gateway"]


def post(gateway, key="k1", path="payments", behave=""):
    request = urllib.request.Request(f"{gateway['url']}/{path}", b'{"order": "A-1", "amount": 5, "currency": "EUR"}', method="POST",
                                     headers={"Content-Type": "application/json", "Idempotency-Key": key, "X-Behave": behave})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, answer.headers.get("Idempotency-Replayed"), answer.read()


def pids(gateway):
    return [gateway["pid"], *(service["pid"] for service in gateway["services"].values())]


def left_of(gateway):
    """Those of its nginx, master and workers: they are one session. Its port tells nothing once it is free: another may have taken it."""
    found = set()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(session) == gateway["pid"]:
                found.add(int(process.name))
    return found


def port_of(gateway):
    return int(gateway["url"].rpartition(":")[2])


def test_the_gateway_comes_up_and_goes_down_with_the_server(dev):
    process, told = dev.foreground()
    gateway = dev.status()["gateway"]
    assert gateway["url"] in told and "Idempotency-Key: pay-1" in told
    first, second = post(gateway), post(gateway)
    assert first == (201, None, second[2]) and second[:2] == (201, "true")
    assert post(gateway, "k2", "handoff")[0] == 201
    with urllib.request.urlopen(gateway["status"], timeout=60) as answer:
        assert {"payments", "handoff"} <= set(json.load(answer)["scopes"])
    running = pids(gateway)
    assert all(map(is_running, running)) and len(left_of(gateway)) > 1
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert not any(map(is_running, running)) and not left_of(gateway)
    assert dev.status()["gateway"] is None


def test_started_twice_they_are_the_same_and_the_address_stays(dev):
    gateway = start(dev)
    assert pids(start(dev)) == pids(gateway)
    assert dev("--stop").returncode == 0
    assert not any(map(is_running, pids(gateway)))
    again = start(dev)
    assert again["url"] == gateway["url"] and pids(again) != pids(gateway)


def test_a_port_that_somebody_took_meanwhile_is_left_to_him(dev):
    gateway = start(dev)
    assert dev("--stop").returncode == 0
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port_of(gateway)))
        other.listen()
        moved = start(dev)
        assert moved["url"] != gateway["url"] and post(moved)[0] == 201


def test_a_killed_dev_leaves_services_that_the_next_one_uses(dev):
    process, _ = dev.foreground()
    gateway = dev.status()["gateway"]
    process.kill()
    process.wait()
    assert post(gateway)[0] == 201
    assert pids(start(dev)) == pids(gateway)


def test_a_killed_nginx_is_replaced_with_the_workers_that_it_left(dev):
    gateway = start(dev)
    os.kill(gateway["pid"], signal.SIGKILL)
    wait_until(lambda: not is_running(gateway["pid"]), "nginx's end")
    assert left_of(gateway)  # its workers, which nobody watches any more
    again = start(dev)
    assert again["pid"] != gateway["pid"] and again["services"] == gateway["services"]
    assert post(again)[0] == 201
    assert dev("--stop").returncode == 0
    assert not left_of(again) and not left_of(gateway)


def test_a_killed_service_is_started_again(dev):
    gateway = start(dev)
    killed = gateway["services"]["payments"]["pid"]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not dev.status()["gateway"]["services"]["payments"]["running"], "the service's end")
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(gateway)
    assert refused.value.code == 502
    again = start(dev)
    assert again["pid"] == gateway["pid"] and post(again)[0] == 201


def test_a_stale_number_ends_nobody(dev):
    gateway = start(dev)
    assert dev("--stop").returncode == 0
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True, **dev.popen)
    try:
        for name in ("gateway", "payments", "handoff"):
            (pathlib.Path(gateway["configuration"]).parent / f"{name}.lock").write_text(f"{bystander.pid}\n")
        assert dev.status()["gateway"] is None
        assert dev("--stop").returncode == 0
        assert post(start(dev))[0] == 201
        assert dev("--stop").returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_starts_at_once_are_one_gateway(dev):
    processes = [subprocess.Popen(dev.words("--detach", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **dev.popen)
                 for _ in range(3)]
    told = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert len({json.loads(out)["gateway"]["pid"] for out, _ in told}) == 1


def test_a_service_that_dies_in_a_request_is_back_for_the_next(dev):
    gateway = start(dev)
    with pytest.raises(urllib.error.HTTPError) as cut:
        post(gateway, "k1", behave="die")
    assert cut.value.code == 502
    with pytest.raises(urllib.error.HTTPError) as doubt:
        post(gateway, "k1")
    assert doubt.value.code == 409 and b"in-doubt" in doubt.value.read()
    assert post(gateway, "k2")[0] == 201
    assert post(gateway, "k3", "handoff", "die")[0] == 201  # the stored outcome is the answer


def test_after_a_crash_of_the_server_everything_comes_up_again(dev):
    gateway = start(dev)
    first = post(gateway)
    os.kill(dev.status()["pid"], signal.SIGKILL)
    wait_until(lambda: dev("--detach").returncode == 0, "the server to come up again")
    again = dev.status()["gateway"]

    def replays():
        try:
            return post(again) == (201, "true", first[2])
        except urllib.error.HTTPError as refused:
            assert refused.code == 503  # it has not connected again yet
            return False

    wait_until(replays, "the stored answer")


def test_an_unreachable_module_and_service_are_loaded_all_the_same_by_root():
    """Only root gets to the tree; the services' user does not."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    closed = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-closed-", dir="/tmp"))  # 0700, root's
    made = Dev(closed / ".pgonce")
    for name, path in NEEDED.items():
        (closed / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, closed / name)
    made.program = closed / "cli/pgonce"
    try:
        gateway = start(made)
        assert post(gateway)[0] == 201
        owner = os.stat(f"/proc/{gateway['services']['payments']['pid']}").st_uid
        assert owner == os.stat(made.status()["data"]).st_uid != 0
    finally:
        clean_up(made)
        shutil.rmtree(closed)


def test_without_the_services_the_server_comes_up_and_that_is_said():
    alone = pathlib.Path(tempfile.mkdtemp(prefix="pgonce-alone-", dir="/tmp"))
    alone.chmod(0o755)
    shutil.copy(PROGRAM, alone / "pgonce")
    made = Dev(alone / ".pgonce")
    made.program = alone / "pgonce"
    try:
        done = made("--detach")
        if pathlib.Path("/usr/local/libexec/pgonce").exists():
            pytest.skip("the services are installed on this machine")
        assert done.returncode == 0 and "without the gateway and the payments service: " in done.stderr
        assert made.status()["gateway"] is None and made.value("SELECT 1") == 1
    finally:
        clean_up(made)
        shutil.rmtree(alone)
