# SPDX-License-Identifier: PostgreSQL
"""What SQS and SNS share: the C tests of broker/aws_*.c; and where credentials come from, with a fake of each that gives them out, behind the sink of SQS."""

import datetime
import json
import os
import pathlib
import subprocess
import time
import urllib.parse

import pytest

from harness import aws
from harness.broker import certificates
from harness.postgres import PATIENCE_S, ROOT, clean_environment, is_running, wait_until
from relay.sinks import Sink

BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
SANITIZED = pathlib.Path(os.environ.get("PGONCE_BUILD_SANITIZED", ROOT / "build-sanitized"))
NONE = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}


@pytest.mark.parametrize("build", [BUILD, SANITIZED], ids=["plain", "sanitized"])
def test_the_c_tests_pass(build):
    done = subprocess.run(
        [build / "tests/broker/test_aws"], capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=clean_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr


def sqs(request):
    """All of SQS that one event needs."""
    asked = json.loads(request.body)
    if request.target == "GetQueueUrl":
        return 200, json.dumps({"QueueUrl": f"http://127.0.0.1/1/{asked['QueueName']}"})
    return 200, json.dumps({"Successful": [{"Id": each["Id"], "MessageId": "m"} for each in asked["Entries"]]})


@pytest.fixture
def door():
    with aws.Door(sqs, {}) as door:
        door.keys = {"AKIDNONE": ("x", None)}  # verified from the first call on
        yield door


@pytest.fixture
def play(door, tmp_path):
    def opened(**environment):
        options = {"sink": "sqs", "url": door.url, "timeout": "10s"}
        return Sink(tmp_path / "conf", options, aws.environment(**{**NONE, **environment}))

    return opened


def delivered(sink):
    result = sink.deliver("orders")
    assert result["verdict"] == "delivered", result


def at(seconds):
    return (datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Issuer:
    """Gives out credentials that SQS (the door) then takes, new ones each time, and only these."""

    def __init__(self, door, lifetime_s=3600):
        self.door, self.lifetime_s, self.given = door, lifetime_s, 0

    def new(self, keep=False):
        self.given += 1
        key = f"AKIDGIVEN{self.given}"
        self.door.keys = {**(self.door.keys if keep else {}), key: (f"s3cret{self.given}/+=", f"t0ken{self.given}/+=")}
        return {"AccessKeyId": key, "SecretAccessKey": f"s3cret{self.given}/+=", "Token": f"t0ken{self.given}/+=", "Expiration": at(self.lifetime_s)}


# ---- the shared file


def write_profile(path, name="default", key="AKIDFILE", secret="filesecret", token=None):
    lines = ["# of the test", f"[{name}]", f"aws_access_key_id = {key}", f"aws_secret_access_key={secret}"]
    path.write_text("\n".join([*lines, *([f"aws_session_token = {token}"] if token else []), "[other]", "aws_access_key_id = AKIDOTHER", ""]))
    return path


def test_the_shared_file_is_read_and_what_is_rotated_there_needs_no_restart(door, play, tmp_path):
    path = write_profile(tmp_path / "credentials", token="t0ken")
    door.keys = {"AKIDFILE": ("filesecret", "t0ken")}
    with play(AWS_SHARED_CREDENTIALS_FILE=path) as sink:
        delivered(sink)
        time.sleep(1.1)  # no oftener than each second is it asked again
        write_profile(path, key="AKIDNEW", secret="newsecret")
        door.keys = {"AKIDNEW": ("newsecret", None)}
        delivered(sink)


def test_a_profile_is_named_by_the_section_or_the_environment(door, tmp_path):
    path = write_profile(tmp_path / "credentials", name="shop")
    (tmp_path / "config").write_text("[profile shop]\nregion = eu-central-1\ns3 =\n  region = wrong\n[default]\nregion = us-east-1\n")
    door.keys = {"AKIDFILE": ("filesecret", None)}
    files = {"AWS_SHARED_CREDENTIALS_FILE": path, "AWS_CONFIG_FILE": tmp_path / "config", "AWS_REGION": None}
    options = {"sink": "sqs", "url": door.url, "timeout": "5s"}
    for more, environment in (({"profile": "shop"}, {}), ({}, {**NONE, "AWS_PROFILE": "shop"})):
        # What the section says goes before the keys of the environment, which are others.
        with Sink(tmp_path / "conf", {**options, **more}, aws.environment(**{**environment, **files})) as sink:
            delivered(sink)
    with Sink(tmp_path / "conf", {**options, "profile": "absent", "region": "eu-central-1"}, aws.environment(**files)) as sink:
        result = sink.deliver("orders")
        assert result["verdict"] == "unavailable" and "for the profile absent" in result["problem"]


# ---- what a profile says instead of keys


def write_config(path, **profiles):
    """profiles: name={entry: value}."""
    lines = []
    for name, entries in profiles.items():
        lines += [f"[{name if name == 'default' else f'profile {name}'}]", *(f"{entry} = {value}" for entry, value in entries.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def program(path, text, then=""):
    """A command that counts its runs in a file beside it, and writes the text."""
    path.write_text(f"#!/bin/sh\necho run >>'{path}.runs'\ncat <<'END'\n{text}\nEND\n{then}\n")
    path.chmod(0o755)
    return path


def runs(path):
    return len(pathlib.Path(f"{path}.runs").read_text().splitlines())


def test_a_program_of_the_profile_gives_credentials_and_is_run_again_before_they_end(door, play, tmp_path):
    door.keys = {"AKIDPROGRAM": ("program/s3cret", "program t0ken")}
    given = {"Version": 1, "AccessKeyId": "AKIDPROGRAM", "SecretAccessKey": "program/s3cret", "SessionToken": "program t0ken", "Expiration": at(4)}
    command = program(tmp_path / "give out", json.dumps(given))
    config = write_config(tmp_path / "config", default={"credential_process": f'"{command}" --for "a shop"'})
    with play(AWS_CONFIG_FILE=config) as sink:
        delivered(sink)
        wait_until(lambda: delivered(sink) or runs(command) >= 2, "the second run")


@pytest.mark.parametrize("text, then, said", [
    ("{}", "", "credential_process returns no credentials"), ("x", "exit 3", "failed with status 3"), ("", "", "wrote nothing"),
    (None, "echo s3cret; kill -9 $$", "ended by signal 9"), (None, "/nowhere/s3cret 2>&1", "failed with status 127"),
])
def test_a_program_that_gives_none_is_said_with_what_became_of_it_and_not_with_what_it_wrote(play, tmp_path, text, then, said):
    command = then if text is None else program(tmp_path / "give-out", f"{text}s3cret" if text == "x" else text, then)
    with play(AWS_CONFIG_FILE=write_config(tmp_path / "config", default={"credential_process": command})) as sink:
        result = sink.deliver("orders")
    assert result["verdict"] == "unavailable" and said in result["problem"] and "s3cret" not in result["problem"], result


def test_a_program_that_does_not_end_is_ended_with_all_that_it_started(play, tmp_path):
    command = program(tmp_path / "give-out", "{}", f"sleep 600 & echo $! >{tmp_path}/pid; wait")
    with play(AWS_CONFIG_FILE=write_config(tmp_path / "config", default={"credential_process": command})) as sink:
        result = sink.deliver("orders")
    assert result["verdict"] == "unavailable"
    wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())), "its end")


def assume_role(issuer, seen):
    """STS, which gives a role out to whoever has signed."""

    def answer(request):
        form = {name: values[0] for name, values in urllib.parse.parse_qs(request.body.decode()).items()}
        if form.get("Action") != "AssumeRole":
            return aws.Door.error(request, 400, "InvalidAction", "not here")
        seen.append(form)
        given = {"SessionToken" if name == "Token" else name: value for name, value in issuer.new().items()}
        xml = "".join(f"<{name}>{value}</{name}>" for name, value in given.items())
        return 200, f"<AssumeRoleResponse><AssumeRoleResult><Credentials>{xml}</Credentials></AssumeRoleResult></AssumeRoleResponse>"

    return answer


ROLE = "arn:aws:iam::1:role/shop"


@pytest.mark.parametrize("way", ["keys", "own keys", "program", "environment"])
def test_a_role_is_taken_by_another_profiles_credentials_signed_and_again_before_it_ends(door, play, tmp_path, way):
    issuer, seen = Issuer(door, lifetime_s=5), []
    source = {"aws_access_key_id": "AKIDBASE", "aws_secret_access_key": "base/s3cret", "aws_session_token": "base t0ken"}
    if way == "program":
        given = {"Version": 1, "AccessKeyId": "AKIDBASE", "SecretAccessKey": "base/s3cret", "SessionToken": "base t0ken"}
        source = {"credential_process": program(tmp_path / "give-out", json.dumps(given))}
    role = {"role_arn": ROLE, "source_profile": "base", "external_id": "a b", "duration_seconds": "900", "role_session_name": "till"}
    environment = {"AWS_PROFILE": "shop"}
    if way == "own keys":
        role |= source | {"source_profile": "shop"}
    if way == "environment":
        role = {name: value for name, value in role.items() if name != "source_profile"} | {"credential_source": "Environment"}
        environment = {"AWS_ACCESS_KEY_ID": "AKIDBASE", "AWS_SECRET_ACCESS_KEY": "base/s3cret", "AWS_SESSION_TOKEN": "base t0ken"}
    config = write_config(tmp_path / "config", shop=role, base=source)
    with aws.Door(assume_role(issuer, seen), {"AKIDBASE": ("base/s3cret", "base t0ken")}, service="sts") as sts:
        options = {"sink": "sqs", "url": door.url, "timeout": "10s", **({"profile": "shop"} if way == "environment" else {})}
        given = aws.environment(**{**NONE, "AWS_CONFIG_FILE": config, "AWS_ENDPOINT_URL_STS": sts.url, **environment})
        with Sink(tmp_path / "conf", options, given) as sink:
            delivered(sink)
            wait_until(lambda: delivered(sink) or len(seen) >= 2, "the second time")
    assert seen[0] == {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": ROLE, "ExternalId": "a b", "DurationSeconds": "900", "RoleSessionName": "till"}


def test_a_role_is_taken_by_an_instances_credentials_and_though_the_clock_is_wrong(door, play, tmp_path):
    """STS's own clock answers that, as that of SQS does."""
    issuer, seen = Issuer(door), []
    config = write_config(tmp_path / "config", default={"role_arn": ROLE, "credential_source": "Ec2InstanceMetadata"})
    with aws.Door(assume_role(issuer, seen), {}, service="sts") as sts, aws.Door(Machine(Issuer(sts)), {}) as imds:
        sts.ahead_s = 3600
        where = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url, "AWS_EC2_METADATA_DISABLED": None}
        with play(AWS_CONFIG_FILE=config, AWS_ENDPOINT_URL_STS=sts.url, **where) as sink:
            delivered(sink)
    assert len(seen) == 1 and len(sts.requests) == 2 and set(seen[0]) == {"Action", "Version", "RoleArn", "RoleSessionName"}


def test_a_profiles_own_token_file_is_exchanged_for_its_role(door, play, tmp_path):
    issuer, seen = Issuer(door), []
    (tmp_path / "token").write_text("jwt.one")
    config = write_config(tmp_path / "config", default={"role_arn": ROLE, "web_identity_token_file": tmp_path / "token", "role_session_name": "till"})
    with aws.Door(lambda request: answer_sts(issuer, request, seen), {}) as sts:
        with play(AWS_CONFIG_FILE=config, AWS_ENDPOINT_URL_STS=sts.url) as sink:
            delivered(sink)
    assert (seen[0]["WebIdentityToken"], seen[0]["RoleArn"], seen[0]["RoleSessionName"]) == ("jwt.one", ROLE, "till")


def test_what_sts_refuses_to_give_out_is_said_with_its_words(play, tmp_path):
    config = write_config(tmp_path / "config", default={"role_arn": ROLE, "source_profile": "base"}, base={"aws_access_key_id": "AKIDBASE", "aws_secret_access_key": "s3cret"})
    with aws.Door(lambda request: aws.Door.error(request, 403, "AccessDenied", "not authorized to perform: sts:AssumeRole"), {}, service="sts") as sts:
        with play(AWS_CONFIG_FILE=config, AWS_ENDPOINT_URL_STS=sts.url) as sink:
            result = sink.deliver("orders")
    assert result["verdict"] == "unavailable" and "not authorized to perform: sts:AssumeRole" in result["problem"]


@pytest.mark.parametrize("shop, said", [
    ({"sso_session": "x"}, "export-credentials"), ({"sso_start_url": "https://x"}, "export-credentials"),
    ({"role_arn": ROLE}, "add source_profile or credential_source"), ({"role_arn": ROLE, "source_profile": "base", "mfa_serial": "x"}, "mfa_serial"),
    ({"role_arn": ROLE, "source_profile": "other"}, "which is not supported"), ({"role_arn": ROLE, "source_profile": "absent"}, "for the profile absent"),
    ({"role_arn": ROLE, "credential_source": "Moon"}, "credential_source = Moon"), ({"role_arn": ROLE, "credential_source": "EcsContainer"}, "provides no credentials"),
    ({"role_arn": ROLE, "credential_source": "Environment"}, "provides no credentials"), ({"role_arn": ROLE, "credential_source": "Ec2InstanceMetadata"}, "provides no credentials"),
])
def test_a_profile_that_cannot_be_followed_says_what_to_do(play, tmp_path, shop, said):
    config = write_config(tmp_path / "config", default=shop, other={"role_arn": ROLE, "source_profile": "base"}, base={"aws_access_key_id": "A", "aws_secret_access_key": "B"})
    with play(AWS_CONFIG_FILE=config) as sink:
        result = sink.deliver("orders")
    assert result["verdict"] == "unavailable" and "from the shared file" in result["problem"] and said in result["problem"], result


# ---- proxies


def through(tunnel, **more):
    return aws.environment(HTTPS_PROXY=tunnel.url, http_proxy=tunnel.url, NO_PROXY="none.invalid", no_proxy="none.invalid", **more)


def test_calls_go_by_the_environments_proxy_and_a_proxy_sees_no_credentials(tmp_path):
    certificates(tmp_path)
    with aws.Tunnel() as tunnel, aws.Door(sqs, certificates=tmp_path) as door:
        options = {"sink": "sqs", "url": door.url, "timeout": "10s", "ca_file": tmp_path / "ca.pem"}
        with Sink(tmp_path / "conf", options, through(tunnel)) as sink:
            delivered(sink)
            assert set(tunnel.asked) == {f"CONNECT 127.0.0.1:{door.port}"}
            assert b"CONNECT" in tunnel.seen and aws.KEY.encode() not in tunnel.seen and b"SendMessageBatch" not in tunnel.seen
            tunnel.server.shutdown()
            tunnel.server.server_close()
        with Sink(tmp_path / "conf", options, through(tunnel)) as sink:
            result = sink.deliver("orders")
            assert result["verdict"] == "unavailable" and "cannot reach" in result["problem"], result
        with Sink(tmp_path / "conf", options, {**through(tunnel), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}) as sink:
            delivered(sink)


def test_sts_is_asked_through_the_proxy_too(door, tmp_path):
    issuer, seen = Issuer(door), []
    (tmp_path / "token").write_text("jwt")
    with aws.Tunnel() as tunnel, aws.Door(lambda request: answer_sts(issuer, request, seen), {}) as sts:
        environment = {**NONE, "AWS_WEB_IDENTITY_TOKEN_FILE": tmp_path / "token", "AWS_ROLE_ARN": ROLE, "AWS_ENDPOINT_URL_STS": sts.url}
        with Sink(tmp_path / "conf", {"sink": "sqs", "url": door.url, "timeout": "10s"}, through(tunnel, **environment)) as sink:
            delivered(sink)
    assert {asked.rstrip("/") for asked in tunnel.asked} == {f"POST {sts.url}", f"POST {door.url}"}


@pytest.mark.parametrize("whose", ["instance", "container"])
def test_the_machines_own_endpoints_are_never_asked_through_a_proxy(door, tmp_path, whose):
    issuer = Issuer(door)
    answers = Machine(issuer) if whose == "instance" else lambda request: (200, json.dumps(issuer.new()))
    with aws.Tunnel() as tunnel, aws.Door(answers, {}) as endpoint:
        where = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint.url, "AWS_EC2_METADATA_DISABLED": None}
        where = where if whose == "instance" else {"AWS_CONTAINER_CREDENTIALS_FULL_URI": endpoint.url + "/x"}
        with Sink(tmp_path / "conf", {"sink": "sqs", "url": door.url, "timeout": "10s"}, through(tunnel, **NONE, **where)) as sink:
            delivered(sink)
        assert endpoint.requests and {asked.rstrip("/") for asked in tunnel.asked} == {f"POST {door.url}"}


# ---- secrets


def test_no_secret_is_in_the_log_or_in_an_events_problem(door, tmp_path):
    secrets = ["AKIDSECRET", "s3cr3t/key", "s3cr3t/token"]
    write_profile(tmp_path / "credentials", key=secrets[0], secret=secrets[1], token=secrets[2])
    environment = aws.environment(**NONE, AWS_SHARED_CREDENTIALS_FILE=tmp_path / "credentials")
    door.keys = {secrets[0]: (secrets[1], secrets[2])}
    problems = []
    with open(tmp_path / "log", "wb") as log, Sink(tmp_path / "conf", {"sink": "sqs", "url": door.url, "timeout": "10s"}, environment, log=log) as sink:
        delivered(sink)
        door.keys = {secrets[0]: ("other", None)}
        problems.append(sink.deliver("orders")["problem"])
        door.keys = {"other": ("other", None)}
        problems.append(sink.deliver("orders")["problem"])
    text = (tmp_path / "log").read_text() + "".join(problems)
    assert 'from="shared file" access_key=AKID...' in text and all(problems)
    assert not [secret for secret in secrets if secret in text]


# ---- a web identity


def answer_sts(issuer, request, seen):
    form = {name: values[0] for name, values in urllib.parse.parse_qs(request.body.decode()).items()}
    seen.append(form)
    given = issuer.new()
    xml = "".join(f"<{'SessionToken' if name == 'Token' else name}>{value}</{'SessionToken' if name == 'Token' else name}>" for name, value in given.items())
    return 200, f"<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>{xml}</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"


def test_a_web_identity_is_exchanged_at_sts_with_the_token_as_it_is_now(door, play, tmp_path):
    issuer, seen = Issuer(door, lifetime_s=6), []
    (tmp_path / "token").write_text("jwt.one+/=\n")
    with aws.Door(lambda request: answer_sts(issuer, request, seen), {}) as sts:
        environment = {"AWS_WEB_IDENTITY_TOKEN_FILE": tmp_path / "token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/shop", "AWS_ENDPOINT_URL_STS": sts.url}
        with play(**environment) as sink:
            delivered(sink)
            (tmp_path / "token").write_text("jwt.two")
            wait_until(lambda: delivered(sink) or len(seen) >= 2, "the second exchange")
    assert [form["WebIdentityToken"] for form in seen[:2]] == ["jwt.one+/=", "jwt.two"]
    assert (seen[0]["Action"], seen[0]["Version"], seen[0]["RoleArn"]) == ("AssumeRoleWithWebIdentity", "2011-06-15", "arn:aws:iam::1:role/shop")
    assert "Authorization" not in sts.requests[0].headers


def test_what_sts_refuses_is_said_with_its_words(play, tmp_path):
    (tmp_path / "token").write_text("jwt")
    with aws.Door(lambda request: aws.Door.error(request, 400, "InvalidIdentityToken", "the token is of another issuer"), {}) as sts:
        with play(AWS_WEB_IDENTITY_TOKEN_FILE=tmp_path / "token", AWS_ROLE_ARN="arn:x", AWS_ENDPOINT_URL_STS=sts.url) as sink:
            result = sink.deliver("orders")
    assert result["verdict"] == "unavailable" and "from the web identity" in result["problem"] and "the token is of another issuer" in result["problem"]


# ---- a container


@pytest.mark.parametrize("way", ["token", "token file"])
def test_a_containers_credentials_are_asked_for_with_its_token(door, play, tmp_path, way):
    issuer = Issuer(door)
    (tmp_path / "token").write_text("container t0ken\n")
    given = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": tmp_path / "token"} if way == "token file" else {"AWS_CONTAINER_AUTHORIZATION_TOKEN": "container t0ken"}
    with aws.Door(lambda request: (200, json.dumps(issuer.new())), {}) as agent:
        with play(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{agent.url}/v1/credentials", **given) as sink:
            delivered(sink)
    request, = agent.requests
    assert (request.method, request.path, request.headers["Authorization"]) == ("GET", "/v1/credentials", "container t0ken")


@pytest.mark.parametrize("url", ["http://127.0.0.1.example/x", "http://127.0.0.1:1@127.0.0.2/x", "http://localhost:x@127.0.0.2"])
def test_a_containers_token_is_sent_to_this_machine_or_by_https_alone(play, url):
    with play(AWS_CONTAINER_CREDENTIALS_FULL_URI=url, AWS_CONTAINER_AUTHORIZATION_TOKEN="t0ken") as sink:
        result = sink.deliver("orders")
    assert result["verdict"] == "unavailable" and "must be https://" in result["problem"]


# ---- a machine's role


class Machine:
    """IMDSv2."""

    def __init__(self, issuer):
        self.issuer, self.paths = issuer, []

    def __call__(self, request):
        self.paths.append((request.method, request.path))
        if (request.method, request.path) == ("PUT", "/latest/api/token"):
            return (200, "imds-t0ken") if request.headers.get("X-aws-ec2-metadata-token-ttl-seconds") else (400, "")
        if request.method != "GET" or request.headers.get("X-aws-ec2-metadata-token") != "imds-t0ken":
            return 401, ""
        if request.path == "/latest/meta-data/iam/security-credentials/":
            return 200, "shop-role\n"
        return (200, json.dumps({"Code": "Success", **self.issuer.new()})) if request.path.endswith("/shop-role") else (404, "")


def test_an_instances_role_is_asked_for_by_imdsv2_and_again_before_it_ends(door, play):
    machine = Machine(Issuer(door, lifetime_s=6))
    with aws.Door(machine, {}) as imds:
        with play(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.url, AWS_EC2_METADATA_DISABLED=None) as sink:
            delivered(sink)
            wait_until(lambda: delivered(sink) or machine.issuer.given >= 2, "the second time")
    assert machine.paths[:3] == [
        ("PUT", "/latest/api/token"), ("GET", "/latest/meta-data/iam/security-credentials/"), ("GET", "/latest/meta-data/iam/security-credentials/shop-role"),
    ]


@pytest.mark.alone
def test_while_whoever_gives_them_out_is_away_those_that_are_valid_yet_are_used(door, play):
    issuer = Issuer(door, lifetime_s=16)
    with aws.Door(Machine(issuer), {}) as imds:
        with play(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.url, AWS_EC2_METADATA_DISABLED=None) as sink:
            delivered(sink)
            began = time.monotonic()
            imds.fail("", 500, times=1000)
            imds.forward = lambda request: (500, "")
            while time.monotonic() - began < 10:  # they are asked for from the eighth second on
                delivered(sink)
                time.sleep(0.2)
            wait_until(lambda: "no AWS credentials from the instance" in sink.deliver("orders")["problem"], "their end")
            imds.forward, imds.rules = Machine(issuer), []
            wait_until(lambda: sink.deliver("orders")["verdict"] == "delivered", "new ones")


def test_credentials_that_the_service_refuses_are_asked_for_again(door, play):
    issuer = Issuer(door)
    with aws.Door(Machine(issuer), {}) as imds:
        with play(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.url, AWS_EC2_METADATA_DISABLED=None) as sink:
            delivered(sink)
            time.sleep(1.1)  # no oftener than each second
            door.keys = {"AKIDNONE": ("x", None)}  # revoked
            delivered(sink)
    assert issuer.given == 2


def test_the_environment_goes_first_and_the_machine_last(door, play, tmp_path):
    issuer = Issuer(door)
    with aws.Door(lambda request: (200, json.dumps(issuer.new(keep=True))), {}) as agent:
        path = write_profile(tmp_path / "credentials")
        door.keys = {aws.KEY: (aws.SECRET, None), "AKIDFILE": ("filesecret", None)}
        container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": agent.url + "/x"}
        for environment, key in (
            ({"AWS_ACCESS_KEY_ID": aws.KEY, "AWS_SECRET_ACCESS_KEY": aws.SECRET, "AWS_SHARED_CREDENTIALS_FILE": path, **container}, aws.KEY),
            ({"AWS_SHARED_CREDENTIALS_FILE": path, **container}, "AKIDFILE"),
            (container, "AKIDGIVEN1"),
        ):
            with play(**environment) as sink:
                delivered(sink)
            assert f"Credential={key}/" in door.requests[-1].headers["Authorization"]
