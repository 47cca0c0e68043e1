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
from harness.postgres import PATIENCE_S, ROOT, clean_environment, wait_until
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


def test_a_containers_token_is_sent_to_this_machine_or_by_https_alone(play):
    with play(AWS_CONTAINER_CREDENTIALS_FULL_URI="http://127.0.0.1.example/x", AWS_CONTAINER_AUTHORIZATION_TOKEN="t0ken") as sink:
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


def test_while_whoever_gives_them_out_is_away_those_that_are_valid_yet_are_used(door, play):
    issuer = Issuer(door, lifetime_s=8)
    with aws.Door(Machine(issuer), {}) as imds:
        with play(AWS_EC2_METADATA_SERVICE_ENDPOINT=imds.url, AWS_EC2_METADATA_DISABLED=None) as sink:
            delivered(sink)
            began = time.monotonic()
            imds.fail("", 500, times=1000)
            imds.forward = lambda request: (500, "")
            while time.monotonic() - began < 6:
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
