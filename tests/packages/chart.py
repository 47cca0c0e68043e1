# SPDX-License-Identifier: PostgreSQL
"""The chart as a user gets it: packed, and rendered by helm, which is built from its Go module. And what stands in for a cluster: the schemas of several
versions of Kubernetes, and a pod whose containers are processes of this machine."""

import fcntl
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.request

import pytest

from harness.broker import free_port
from harness.postgres import PATIENCE_S, ROOT, clean_environment, private_directory, tied, wait_until

CHART = ROOT / "packaging/helm/pgonce"
BUILD = pathlib.Path(os.environ.get("PGONCE_BUILD", ROOT / "build"))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "pgonce/go"
HELM = ("helm.sh/helm/v3", "v3.19.5", "cmd/helm")
# Their packages hold the schemas; nothing of them is compiled.
SCHEMAS = ("sigs.k8s.io/kubectl-validate", "v0.0.4")
OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
# The module of each version that the first does not hold.
KUBERNETES = {"1.32": "v1.32.10", "1.34": "v1.34.2"}
VERSIONS = ("1.30", *KUBERNETES)
BUILD_S = 3600  # of helm, the first time, on a busy machine


def release():
    return re.search(r"^  version: '([\d.]+)'", (ROOT / "meson.build").read_text(), re.M)[1]


def packed(out):
    """The chart's package, made anew."""
    done = subprocess.run([ROOT / "packaging/helm/build", out], check=True, capture_output=True, text=True)
    return pathlib.Path(done.stdout.strip())


def unpacked(out):
    """The package's files, in a folder."""
    with tarfile.open(packed(out)) as archive:
        archive.extractall(out)
    return out / "pgonce"


# ---- what Go's module proxy has


def go():
    found = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if not found:
        pytest.skip("needs Go to build helm: tools/setup.sh test-packages")
    return found


@functools.lru_cache(maxsize=None)
def module(path, version):
    """The folder of a module's files."""
    done = subprocess.run([go(), "mod", "download", "-json", f"{path}@{version}"], cwd="/", capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout
    return pathlib.Path(json.loads(done.stdout)["Dir"])


@functools.lru_cache(maxsize=None)
def helm():
    """The program, built once for this user."""
    path, version, package = HELM
    program = CACHE / version / "helm"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            done = subprocess.run([go(), "install", f"{path}/{package}@{version}"], cwd="/", env={**os.environ, "GOBIN": str(program.parent)},
                                  capture_output=True, text=True, check=False, timeout=BUILD_S)  # fmt: skip
            assert done.returncode == 0, done.stderr
    return program


def run_helm(*words, given=""):
    return subprocess.run([helm(), *map(str, words)], input=given, capture_output=True, text=True, check=False, timeout=PATIENCE_S * 4,
                          env={**clean_environment(), "HOME": "/nonexistent", "HELM_CACHE_HOME": "/nonexistent", "HELM_CONFIG_HOME": "/nonexistent"})  # fmt: skip


class Refused(Exception):
    """helm does not render it; the text is what it says."""


def text_of(values):
    return values if isinstance(values, str) else json.dumps(values)  # JSON is YAML


def render_text(chart, values, name="shop", namespace="shops", kube="1.30", more=()):
    done = run_helm("template", name, chart, "-n", namespace, "--kube-version", f"{kube}.0", "-f", "-", *more, given=text_of(values))
    if done.returncode != 0:
        raise Refused(done.stderr)
    return done.stdout


def render(*args, **options):
    import yaml  # pylint: disable=import-outside-toplevel  # quick tests do without

    return Manifests([each for each in yaml.load_all(render_text(*args, **options), Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader) if each])


def combinations():
    """Those that the README names: (heading, values)."""
    text = (CHART / "README.md").read_text()
    found = re.findall(r"^### ([^\n]+)\n\n```yaml\n(.*?)^```$", text[text.index("\n## Combinations\n"):], re.M | re.S)
    assert len(found) >= 10
    return found


class Manifests(list):
    def of(self, kind):
        return [each for each in self if each["kind"] == kind]

    def one(self, kind, end):
        found = [each for each in self.of(kind) if each["metadata"]["name"].endswith(end)]
        assert len(found) == 1, f"{kind} {end}: {[each['metadata']['name'] for each in found]}"
        return found[0]

    def pods(self):
        """(name, kind, labels, pod's spec) of all that has pods."""
        for each in self:
            if each["kind"] in ("Deployment", "Job"):
                template = each["spec"]["template"]
                yield each["metadata"]["name"], each["kind"], template["metadata"]["labels"], template["spec"]
            elif each["kind"] == "Pod":
                yield each["metadata"]["name"], "Pod", each["metadata"]["labels"], each["spec"]


# ---- schemas


class Schemas:
    """Those of one version of Kubernetes, and of the Prometheus operator's resources: as strict as an API server with fieldValidation=Strict."""

    def __init__(self, version):
        self.version, self.files = version, {}

    def file(self, api):
        if api not in self.files:
            group, _, version = api.rpartition("/")
            if self.version in KUBERNETES:
                folder, name = module("k8s.io/kubernetes", KUBERNETES[self.version]) / "api/openapi-spec/v3", f"apis__{group}__{version}_openapi.json" if group else f"api__{version}_openapi.json"
            else:
                folder = module(*SCHEMAS) / "pkg/openapiclient/builtins" / self.version
                name = f"apis/{group}/{version}.json" if group else f"api/{version}.json"
            self.files[api] = json.loads((folder / name).read_text())
        return self.files[api]

    def problems(self, manifest):
        api, kind = manifest["apiVersion"], manifest["kind"]
        if api == "monitoring.coreos.com/v1":
            import yaml  # pylint: disable=import-outside-toplevel

            text = (module(*OPERATOR) / f"example/prometheus-operator-crd/monitoring.coreos.com_{kind.lower()}s.yaml").read_text()
            schema = next(each["schema"]["openAPIV3Schema"] for each in yaml.safe_load(text)["spec"]["versions"] if each["name"] == "v1")
            return list(problems(manifest, schema, {}, kind))
        group, _, version = api.rpartition("/")
        schemas = self.file(api)["components"]["schemas"]
        wanted = [each for each in schemas.values() for own in each.get("x-kubernetes-group-version-kind", ())
                  if (own["group"], own["version"], own["kind"]) == (group, version, kind)]  # fmt: skip
        assert len(wanted) == 1, f"{self.version} has no {api} {kind}"
        return list(problems(manifest, wanted[0], schemas, kind))


TYPES = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}


def problems(value, schema, schemas, where):
    for part in schema.get("allOf", ()):
        yield from problems(value, part, schemas, where)
    if "$ref" in schema:
        yield from problems(value, schemas[schema["$ref"].rpartition("/")[2]], schemas, where)
        return
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string" or {"type": "integer"} in schema.get("oneOf", ()):
        if not isinstance(value, (int, str)):
            yield f"{where}: neither a number nor text"
        return
    if "oneOf" in schema and "type" not in schema:  # a quantity: text or a number
        if not isinstance(value, (int, float, str)):
            yield f"{where}: neither a number nor text"
        return
    kind = schema.get("type")
    if kind in TYPES and (not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
        yield f"{where}: {value!r} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value!r} does not match {schema['pattern']}"
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}: {name} is missing"
        for name, own in value.items():
            if name in known:
                yield from problems(own, known[name], schemas, f"{where}.{name}")
            elif isinstance(others, dict):
                yield from problems(own, others, schemas, f"{where}.{name}")
            elif known and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{where}: unknown field {name}"
    if isinstance(value, list):
        for number, own in enumerate(value):
            yield from problems(own, schema.get("items", {}), schemas, f"{where}[{number}]")


# ---- a pod


def ask(port, path, method="GET", headers=None, body=None, timeout=PATIENCE_S):
    """(status, headers, body); (0, {}, error) if there is no answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers=headers or {}, data=body)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.headers, refusal.read()
    except OSError as away:
        return 0, {}, str(away).encode()


class Container:
    """What a kubelet makes of a container, as a process: its files with the owners and modes that a Secret's have, its environment and nothing else, its
    command as another user without capabilities on a read-only root (if root runs the tests). Paths lead into a folder, and ports are free ones of 127.0.0.1."""

    def __init__(self, spec, name, manifests, secrets):
        """secrets: what Secrets and ConfigMaps hold that the chart does not make, by name and key."""
        self.spec = spec
        self.it = next(each for each in spec["containers"] if each["name"] == name)
        self.directory = private_directory("pgonce-pod-")
        self.directory.chmod(0o711)
        # Root runs it as the user of the pod, whom this machine does not know, as little as most images do. An ordinary user runs it as itself.
        self.user = {**spec.get("securityContext", {}), **self.it["securityContext"]}["runAsUser"] if os.geteuid() == 0 else None
        self.ports = {each["name"]: free_port() for each in self.it.get("ports", ())}
        self.numbers = {str(each["containerPort"]): str(self.ports[each["name"]]) for each in self.it.get("ports", ())}
        self.replaced = {"/usr/lib/nginx/modules/ngx_http_once_module.so": str(BUILD / "gateway/ngx_http_once_module.so")}
        self.process = None
        self.lines, self.reader = [], None
        self.writable = []
        volumes = {each["name"]: each for each in spec["volumes"]}
        mounts = [(each["mountPath"], volumes[each["name"]]) for each in self.it.get("volumeMounts", ())]
        self.replaced |= {path: f"{self.directory}{path}" for path, _ in mounts}
        for path, volume in mounts:
            self.mount(pathlib.Path(f"{self.directory}{path}"), volume, manifests, secrets)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        shutil.rmtree(self.directory, ignore_errors=True)

    def here(self, text):
        for path, own in sorted(self.replaced.items(), key=lambda pair: -len(pair[0])):
            text = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w-])", own, text)
        text = re.sub(r"(listen )(\d+);", lambda found: f"{found[1]}127.0.0.1:{self.number(found[2])};", text)
        return re.sub(r"(?:0\.0\.0\.0|\[::\]):(\d+)", lambda found: f"127.0.0.1:{self.number(found[1])}", text)

    def number(self, port):
        """Ours for a port, also for one that this container does not name (nginx -t)."""
        return self.numbers.setdefault(port, str(free_port()))

    def mount(self, folder, volume, manifests, secrets):
        folder.mkdir(parents=True)
        if "emptyDir" in volume:
            self.writable.append(folder)
            if self.user:
                os.chown(folder, self.user, self.user)
            return
        sources = [volume] if "projected" not in volume else volume["projected"]["sources"]
        mode = (volume.get("secret") or volume.get("projected") or {}).get("defaultMode", 0o644)
        for source in sources:
            kind = "secret" if "secret" in source else "configMap"
            name = source[kind].get("secretName") or source[kind]["name"]
            made = [each["data"] for each in manifests.of("ConfigMap") if kind == "configMap" and each["metadata"]["name"] == name]
            data = made[0] if made else secrets[name]
            items = source[kind].get("items") or [{"key": key, "path": key} for key in data]
            for item in items:
                file = folder / item["path"]
                file.write_text(self.here(data[item["key"]]) if kind == "configMap" else data[item["key"]])
                file.chmod(mode)
                if self.user:
                    os.chown(file, 0, self.user)  # root, and the group of fsGroup

    def command(self):
        return [self.here(word) for word in self.it["command"] + self.it.get("args", [])]

    def environment(self):
        return {"PATH": f"{BUILD}/cli:/usr/sbin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"} | {each["name"]: self.here(each["value"]) for each in self.it.get("env", ())}

    def confined(self, words):
        """securityContext, as far as the tests may."""
        context = self.it["securityContext"]
        assert context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]} and not context["allowPrivilegeEscalation"]
        if not self.user:
            return words
        kept = "".join(f"mount --bind {folder} {folder}; " for folder in self.writable)
        frozen = "for place in / /tmp /dev/shm /var/tmp; do mountpoint -q $place && mount -o remount,bind,ro $place; done; "
        drop = f"exec setpriv --reuid={self.user} --regid={self.user} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "
        return ["unshare", "--mount", "--propagation=private", "sh", "-c", f'{kept}{frozen}{drop} --pdeathsig QUIT -- "$@"', "sh", *words]

    def start(self):
        """Its output is a pipe that belongs to its user, as a container's."""
        ours, its = os.pipe()
        if self.user:
            os.fchown(its, self.user, self.user)
        self.process = subprocess.Popen(tied(self.confined(self.command())), stdout=its, stderr=its, stdin=subprocess.DEVNULL, env=self.environment(), cwd="/")
        os.close(its)
        self.reader = threading.Thread(target=self.read, args=(ours,), daemon=True)
        self.reader.start()
        return self

    def read(self, ours):
        with os.fdopen(ours, errors="replace") as lines:
            self.lines.extend(lines)  # one by one

    def run(self):
        """For a container that ends: (status, what it wrote)."""
        self.start()
        status = self.process.wait(PATIENCE_S)
        self.reader.join(PATIENCE_S)
        return status, self.said()

    def said(self):
        return "".join(self.lines)

    def probe(self, kind):
        """The status of its answer."""
        wanted = self.it[f"{kind}Probe"]["httpGet"]
        return ask(self.ports[wanted["port"]], wanted["path"])[0]

    def await_probe(self, kind, status):
        def is_so():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.said()}"
            return self.probe(kind) == status

        try:
            wait_until(is_so, f"{kind} {status}")
        except TimeoutError as late:
            raise TimeoutError(f"{late}; it is {self.probe(kind)}\n{self.said()}") from late

    def stop_signal(self):
        """The image's."""
        file = {"pgonce": "Containerfile", "pgonce-nginx": "Containerfile.nginx"}[self.it["image"].rpartition(":")[0]]
        return signal.Signals[re.search(r"^STOPSIGNAL (\w+)$", (ROOT / "packaging/images" / file).read_text(), re.M)[1]]

    def stop(self):
        """As a kubelet ends a pod: preStop, then the image's stop signal. Returns the seconds that it took; fails if SIGKILL would have been needed."""
        began = time.monotonic()
        grace = self.spec["terminationGracePeriodSeconds"]
        hook = self.it.get("lifecycle", {}).get("preStop")
        if hook is not None:
            time.sleep(hook["sleep"]["seconds"])
        self.process.send_signal(self.stop_signal())
        status = self.process.wait(max(1, grace - (time.monotonic() - began)))
        assert status == 0, f"it ended with {status}:\n{self.said()}"
        return time.monotonic() - began
