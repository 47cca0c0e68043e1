# SPDX-License-Identifier: PostgreSQL
"""The chart, rendered by helm: every combination that its README names. The reports that the names of some tests end with are of other projects' charts: each
was tried on this one."""

import copy
import re
import subprocess

import pytest

from harness.release import VERSION

from .chart import BUILD, CHART, VERSIONS, Refused, Schemas, combinations, packed, render, render_text, run_helm, unpacked

pytestmark = pytest.mark.whole
yaml = pytest.importorskip("yaml")

DATABASE = {"database": {"existingSecret": "shop-database"}}
GATEWAY = {"mode": "deployment", "upstream": "http://shop:3000", "tenant": "none"}
COMBINATIONS = dict(combinations())
EVERYTHING = yaml.safe_load(COMBINATIONS["Everything"])
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@pytest.fixture(scope="module")
def chart(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("chart"))


def everything(**changes):
    return {**copy.deepcopy(EVERYTHING), **changes}


def selects(selector, labels):
    return selector.items() <= labels.items()


def patch_of(manifests):
    return yaml.safe_load(manifests.one("ConfigMap", "-sidecar")["data"]["patch.yaml"])


# ---- each combination


@pytest.mark.parametrize("name", COMBINATIONS)
def test_helm_lint_has_nothing_to_say(chart, tmp_path, name):
    (tmp_path / "values.yaml").write_text(COMBINATIONS[name])
    done = run_helm("lint", "--strict", chart, "-f", tmp_path / "values.yaml")
    assert done.returncode == 0 and "1 chart(s) linted, 0 chart(s) failed" in done.stdout, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout and "[ERROR]" not in done.stdout


def test_helm_lint_takes_the_chart_as_it_is(chart):
    done = run_helm("lint", "--strict", chart)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_of_every_combination_fits_its_schema(chart, version):
    schemas = Schemas(version)
    wrong = []
    for name, values in COMBINATIONS.items():
        manifests = render(chart, values, kube=version)
        assert len(manifests) > 1
        wrong += [f"{name}: {each['metadata']['name']}: {problem}" for each in manifests for problem in schemas.problems(each)]
        if "sidecar" in yaml.safe_load(values).get("gateway", {}).get("mode", ""):
            spec = patch_of(manifests)["spec"]["template"]["spec"]
            spec.setdefault("containers", [{"name": "shop"}])
            wrong += [f"{name}: patch: {problem}" for problem in schemas.problems({"apiVersion": "v1", "kind": "Pod", "spec": spec})]
    assert not wrong, "\n".join(wrong)


def test_the_schemas_find_what_is_wrong(chart):
    """They see what an API server would refuse."""
    keep = render(chart, DATABASE).one("Deployment", "-keep")
    for change in ({"replica": 1}, {"replicas": "one"}, {"strategy": {"rollingUpdate": {"maxSurge": []}}}):
        assert list(Schemas("1.30").problems({**keep, "spec": {**keep["spec"], **change}})), change
    del keep["spec"]["selector"]
    assert list(Schemas("1.34").problems(keep))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_belongs_together_names_each_other(chart, name):
    manifests = render(chart, COMBINATIONS[name])
    given = COMBINATIONS[name]
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(names) == len(set(names)), "two objects have one name"
    pods = list(manifests.pods())
    for each in manifests.of("Deployment"):
        assert selects(each["spec"]["selector"]["matchLabels"], each["spec"]["template"]["metadata"]["labels"])
        for spread in each["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
            assert selects(spread["labelSelector"]["matchLabels"], each["spec"]["template"]["metadata"]["labels"])
    for each in manifests.of("Service"):
        if each["spec"]["selector"] == {"app": "shop"}:
            sidecar = patch_of(manifests)["spec"]["template"]["spec"]
            chosen = [port["name"] for part in ("initContainers", "containers") for container in sidecar.get(part, ()) for port in container["ports"]]
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= set(chosen)
            continue
        chosen = [spec for _, kind, labels, spec in pods if kind == "Deployment" and selects(each["spec"]["selector"], labels)]
        assert chosen or each["metadata"]["name"].endswith("-metrics"), f"{each['metadata']['name']} selects nothing"
        for spec in chosen:
            ports = {port["name"] for container in spec["containers"] for port in container["ports"]}
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for each in manifests.of(kind):
            selector = each["spec"].get("selector", each["spec"].get("podSelector"))["matchLabels"]
            assert [1 for _, _, labels, _ in pods if selects(selector, labels)], each["metadata"]["name"]
    for each in manifests.of("ServiceMonitor"):
        services = [own for own in manifests.of("Service") if selects(each["spec"]["selector"]["matchLabels"], own["metadata"]["labels"])]
        assert services and {end["port"] for end in each["spec"]["endpoints"]} <= {port["name"] for own in services for port in own["spec"]["ports"]}
    for each in manifests.of("HorizontalPodAutoscaler"):
        assert ("Deployment", each["spec"]["scaleTargetRef"]["name"]) in names
    for owner, _, _, spec in pods:
        volumes = {each["name"] for each in spec["volumes"]}
        assert len(volumes) == len(spec["volumes"])
        mounted = {mount["name"] for container in spec["containers"] for mount in container["volumeMounts"]}
        assert mounted == volumes, f"{owner}: {mounted ^ volumes}"
        assert len({each["name"] for each in spec["containers"]}) == len(spec["containers"])
        for container in spec["containers"]:
            places = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(places) == len(set(places)), f"{owner}: two volumes at one place"
            ports = {port["name"] for port in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert probe not in container or container[probe]["httpGet"]["port"] in ports
            files = [word for word in container["command"] + container.get("args", []) if word.startswith(("/etc/", "/run/"))]
            for file in files + [each["value"] for each in container["env"] if each["value"].startswith("/")]:
                assert any(file.startswith(f"{place}/") for place in places), f"{owner}: nothing brings {file}"
        for volume in spec["volumes"]:
            for kind, source in (each for own in [volume, *volume.get("projected", {}).get("sources", ())] for each in own.items()):
                if kind not in ("secret", "configMap"):
                    continue
                own = source.get("secretName") or source["name"]
                made = [each for each in manifests.of("ConfigMap") if kind == "configMap" and each["metadata"]["name"] == own]
                assert made or own in given, f"{owner}: no object has {own}"
                for item in source.get("items", ()) if made else ():
                    assert item["key"] in made[0]["data"]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_pods_have_the_least_rights_and_their_secrets_in_files(chart, name):
    manifests = render(chart, COMBINATIONS[name])
    assert not manifests.of("Secret"), "a Secret that the chart made would be in the release's record, and made anew by an upgrade"
    ordinary = name != "OpenShift"
    for owner, kind, _, spec in manifests.pods():
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, owner
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert isinstance(spec["securityContext"].get("runAsUser"), int) == ordinary
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"] and context["capabilities"] == {"drop": ["ALL"]}
            assert "envFrom" not in container and not [each for each in container["env"] if "valueFrom" in each]
            assert "PGPASSWORD" not in str(container) and "--dsn" not in container.get("args", ())
            assert container["resources"]["requests"]["memory"] and container["resources"]["limits"]["memory"]
            if kind == "Deployment":
                assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"]
        for volume in spec["volumes"]:
            # For the group alone. libpq refuses a key of root's that others may read, and a password file that the group may read.
            assert volume.get("secret", volume.get("projected", {"defaultMode": 0o440}))["defaultMode"] == 0o440


@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_containers_are_told_is_what_the_command_knows(chart, name):
    for owner, _, _, spec in render(chart, COMBINATIONS[name]).pods():
        for container in spec["containers"]:
            if container["command"] != ["pgonce"]:
                assert container["command"] == ["nginx"], f"{owner}: the images have no shell"
                continue
            known = subprocess.run([BUILD / "cli/pgonce", "help", container["args"][0]], capture_output=True, text=True, check=True).stdout
            for word in container["args"]:
                assert not word.startswith("--") or re.search(rf"(?<![\w-]){word}(?![\w-])", known), word


# ---- what goes wrong with charts


def selectors(manifests):
    return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["selector"] for each in manifests.of("Deployment")}


def test_no_value_and_no_version_changes_a_selector(chart, tmp_path):
    """jetstack/version-checker#140, eclipse-tractusx/puris#886: it is immutable, and an upgrade fails."""
    before = selectors(render(chart, everything()))
    assert len(before) == 7
    later = unpacked(tmp_path)
    text = (later / "Chart.yaml").read_text()
    (later / "Chart.yaml").write_text(re.sub(r"^(version|appVersion): .*", r'\1: "2.7.1"', text, flags=re.M))
    changed = everything(fullnameOverride="other", commonLabels={"team": "b", "tier": "x"}, pod={"labels": {"a": "b"}}, keep={"pod": {"labels": {"c": "d"}}})
    assert selectors(render(later, changed)) == before


def test_two_releases_in_one_namespace_do_not_touch_each_other(chart):
    first, second = (render(chart, everything(), name=name) for name in ("shop", "shop-pgonce"))
    assert not {(each["kind"], each["metadata"]["name"]) for each in first} & {(each["kind"], each["metadata"]["name"]) for each in second}
    for one, other in ((first, second), (second, first)):
        foreign = [labels for _, _, labels, _ in other.pods()]
        for each in one:
            selector = each["spec"].get("selector", each["spec"].get("podSelector", {})) if "spec" in each else {}
            selector = selector.get("matchLabels", selector)
            if selector and each["kind"] != "ServiceMonitor":
                assert not [1 for labels in foreign if selects(selector, labels)], each["metadata"]["name"]


def parent(folder, dependencies, template=""):
    """A chart of a user's, which has this one as a dependency."""
    own = folder / "shop"
    (own / "templates").mkdir(parents=True)
    (own / "charts").mkdir()
    packed(own / "charts")
    (own / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": "shop", "version": "0.1.0", "dependencies": dependencies}))
    (own / "templates/deployment.yaml").write_text(template)
    return own


def test_a_chart_may_have_it_twice_and_give_it_global_values(tmp_path):
    """helm/helm#10392, cert-manager/cert-manager#7334: the schema must take what helm and a condition add."""
    own = parent(tmp_path, [{"name": "pgonce", "version": VERSION, "alias": alias, "condition": f"{alias}.enabled"} for alias in ("orders", "payments")])
    manifests = render(own, {"global": {"registry": "x"}, "orders": {"enabled": True, **everything()}, "payments": {"enabled": True, **everything()}})
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(names) == len(set(names))
    for each in manifests.of("Deployment"):
        assert 1 == len([1 for _, kind, labels, _ in manifests.pods() if kind == "Deployment" and selects(each["spec"]["selector"]["matchLabels"], labels)])


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata:
      labels: {app: shop}
      annotations:
        {{- include "pgonce.sidecar.annotations" .Subcharts.pgonce | nindent 8 }}
    spec:
      terminationGracePeriodSeconds: {{ include "pgonce.sidecar.grace" .Subcharts.pgonce }}
      initContainers:
        {{- include "pgonce.sidecar.container" .Subcharts.pgonce | nindent 8 }}
      containers: [{name: shop, image: shop}]
      volumes:
        {{- include "pgonce.sidecar.volumes" .Subcharts.pgonce | nindent 8 }}
"""


def test_a_chart_that_includes_the_sidecar_gets_what_the_patch_has(tmp_path):
    # The README's text is what is tried.
    lines = [line.strip() for line in DEPLOYMENT.splitlines() if "pgonce.sidecar" in line]
    assert all(line in (CHART / "README.md").read_text() for line in lines) and len(lines) == 4
    values = yaml.safe_load(COMBINATIONS["A sidecar"])
    manifests = render(parent(tmp_path, [{"name": "pgonce", "version": VERSION}], DEPLOYMENT), {"pgonce": values})
    included = manifests.one("Deployment", "shop")
    spec = included["spec"]["template"]["spec"]
    assert not list(Schemas("1.30").problems(included))
    patch = patch_of(manifests)["spec"]["template"]
    assert {"initContainers": spec["initContainers"], "volumes": spec["volumes"], "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"]} == patch["spec"]
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
    assert included["spec"]["template"]["metadata"]["annotations"] == patch["metadata"]["annotations"]
    # Nobody sets fsGroup there, so root's files must be readable for this user.
    assert {volume["secret"]["defaultMode"] for volume in spec["volumes"] if "secret" in volume} == {0o444}
    assert spec["initContainers"][0]["securityContext"]["runAsUser"] > 0
    mounted = {mount["name"] for mount in spec["initContainers"][0]["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]} and all(name.startswith("pgonce-") for name in mounted)


def test_the_sidecar_may_be_an_ordinary_container(chart):
    spec = patch_of(render(chart, COMBINATIONS["A sidecar as an ordinary container"]))["spec"]["template"]["spec"]
    assert "initContainers" not in spec and "restartPolicy" not in spec["containers"][0]


def test_an_older_kubernetes_is_refused(chart):
    with pytest.raises(Refused, match="requires kubeVersion: >=1.30"):
        render_text(chart, DATABASE, kube="1.29")


def test_long_names_are_cut_and_stay_different(chart):
    long = "a" * 50
    values = everything(relays={f"{'r' * 61}{end}": {"options": {"sink": "stdout"}} for end in "ab"})
    names = set()
    for release in (f"{long}xy", f"{long}xz"):
        for each in render(chart, values, name=release):
            assert NAME.fullmatch(each["metadata"]["name"]), each["metadata"]["name"]
            assert (each["kind"], each["metadata"]["name"]) not in names
            names.add((each["kind"], each["metadata"]["name"]))
            for label in each["metadata"]["labels"].values():
                assert LABEL.fullmatch(label), label
        for _, _, labels, spec in render(chart, values, name=release).pods():
            assert all(LABEL.fullmatch(label) for label in labels.values())
            assert all(NAME.fullmatch(own["name"]) for own in spec["volumes"] + spec["containers"])


def test_a_budget_lets_a_node_be_drained(chart):
    """helm/charts#7127: minAvailable 1 of one pod blocks every drain."""
    manifests = render(chart, everything())
    replicas = {each["metadata"]["name"]: each["spec"].get("replicas", 2) for each in manifests.of("Deployment")}
    budgets = manifests.of("PodDisruptionBudget")
    assert {each["metadata"]["name"] for each in budgets} == {name for name, count in replicas.items() if count > 1}
    assert len(budgets) == 3
    for each in budgets:
        assert each["spec"]["maxUnavailable"] == 1 and "minAvailable" not in each["spec"]
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_an_autoscaler_is_alone_with_the_number_of_pods(chart):
    """coredns/helm#64: each upgrade would set it back."""
    for on in (True, False):
        manifests = render(chart, {**DATABASE, "gateway": {**GATEWAY, "autoscaling": {"enabled": on}}})
        assert ("replicas" in manifests.one("Deployment", "-gateway")["spec"]) is not on and bool(manifests.of("HorizontalPodAutoscaler")) is on


def annotations(manifests, end):
    return manifests.one("Deployment", end)["spec"]["template"]["metadata"].get("annotations", {})


def test_a_changed_configuration_replaces_the_pods_that_have_it_and_no_others(chart):
    """redpanda-data/kminion#238"""
    before = render(chart, everything())
    relays = copy.deepcopy(EVERYTHING["relays"])
    relays["orders"]["options"]["batch"] = 7
    after = render(chart, everything(relays=relays, gateway={**EVERYTHING["gateway"], "wait": "10s"}))
    for end, changes in (("-relay-orders", True), ("-gateway", True), ("-relay-hooks", False), ("-consume-stock", False), ("-keep", False)):
        assert (annotations(before, end) != annotations(after, end)) is changes, end


def test_a_hook_needs_nothing_that_comes_later(chart):
    """longhorn/longhorn#8707: a hook whose service account the release makes waits for ever. The same for a NetworkPolicy."""
    manifests = render(chart, everything())
    hooks = [each for each in manifests if "pre-install,pre-upgrade" in each["metadata"].get("annotations", {}).get("helm.sh/hook", "")]
    job = next(each for each in hooks if each["kind"] == "Job")
    spec = job["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "default" and not manifests.of("ServiceAccount")
    for volume in spec["volumes"]:
        assert "configMap" not in volume and volume["secret"]["secretName"] in ("shop-database", "shop-database-ca")
    policy = next(each for each in hooks if each["kind"] == "NetworkPolicy")
    assert selects(policy["spec"]["podSelector"]["matchLabels"], job["spec"]["template"]["metadata"]["labels"])
    weights = [int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in (policy, job)]
    assert weights == sorted(weights) and weights[0] < weights[1]
    # A second try replaces the first, and it ends by itself.
    assert job["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation" and job["spec"]["activeDeadlineSeconds"] and job["spec"]["backoffLimit"]
    assert spec["restartPolicy"] == "Never"
    assert "rollback" not in job["metadata"]["annotations"]["helm.sh/hook"]


def test_each_pod_has_a_policy_that_lets_it_resolve_names_and_reach_its_database(chart):
    """DandyDeveloper/charts#151, grafana/loki#21650"""
    manifests = render(chart, everything(networkPolicy={"enabled": True, "dnsPorts": [5353], "database": {"ports": [6432]}}))
    for owner, _, labels, _ in manifests.pods():
        policies = [each["spec"] for each in manifests.of("NetworkPolicy") if selects(each["spec"]["podSelector"]["matchLabels"], labels)]
        assert len(policies) == 1 and policies[0]["policyTypes"] == ["Ingress", "Egress"], owner
        ports = [(port["port"], port["protocol"]) for rule in policies[0]["egress"] for port in rule["ports"]]
        assert {(5353, "UDP"), (5353, "TCP"), (6432, "TCP")} <= set(ports), owner
        assert all("ports" in rule for rule in policies[0]["egress"] + policies[0].get("ingress", []))


@pytest.mark.parametrize("job, ports", [
    ({"sink": "kafka", "url": "kafka://a:9093,b:9094"}, [9093, 9094]),
    ({"sink": "nats", "url": "nats://nats"}, [4222]),
    ({"sink": "rabbitmq", "url": "amqps://rabbit/vhost"}, [5671]),
    ({"sink": "sns", "region": "eu-central-1"}, [443]),
    ({"sink": "webhook", "url": "https://a.example:8443/x/{topic}"}, [8443]),
    ({"sink": "stdout"}, []),
    ({"source": "kafka", "url": "kafka://kafka"}, [9092]),
    ({"source": "sqs", "region": "eu-central-1", "queue": "a"}, [443]),
    ({"source": "rabbitmq", "url": "amqp://rabbit:5673", "queue": "a", "endpoint": "http://mailer/x"}, [80, 5673]),
])  # fmt: skip
def test_a_policy_lets_a_relay_and_a_consumer_reach_its_broker(chart, job, ports):
    kind, end = ("relays", "-relay-orders") if "sink" in job else ("consumers", "-consume-orders")
    manifests = render(chart, {**DATABASE, kind: {"orders": {"options": job}}, "networkPolicy": {"enabled": True}})
    egress = manifests.one("NetworkPolicy", end)["spec"]["egress"]
    assert sorted(port["port"] for rule in egress[2:] for port in rule["ports"]) == ports


def test_metrics_and_doors_are_open_for_those_who_need_them_alone(chart):
    manifests = render(chart, everything())
    doors = {end: [([port["port"] for port in rule["ports"]], "from" in rule) for rule in manifests.one("NetworkPolicy", end)["spec"].get("ingress", ())]
             for end in ("-gateway", "-keep", "-console", "-relay-orders", "-test")}  # fmt: skip
    assert doors == {"-gateway": [(["http"], False), (["metrics"], True)], "-keep": [(["metrics"], True)], "-console": [(["http"], True)],
                     "-relay-orders": [(["metrics"], True)], "-test": []}  # fmt: skip
    closed = render(chart, {**DATABASE, "console": {"enabled": True}, "networkPolicy": {"enabled": True}})
    assert "ingress" not in closed.one("NetworkPolicy", "-console")["spec"]


def test_rules_and_dashboard_are_those_of_dashboards(chart):
    from harness.postgres import ROOT  # pylint: disable=import-outside-toplevel

    manifests = render(chart, everything())
    rules = yaml.safe_load((ROOT / "dashboards/alerts.yml").read_text())["groups"]
    assert manifests.one("PrometheusRule", "-rules")["spec"]["groups"] == rules
    assert manifests.one("ConfigMap", "-dashboard")["data"]["pgonce.json"].strip() == (ROOT / "dashboards/grafana.json").read_text().strip()
    moved = render_text(chart, everything(metrics={"prometheusRule": {"enabled": True, "runbookBase": "https://wiki.example/pgonce/"}}))
    assert "https://wiki.example/pgonce/how/runbook.md#pgonceprocessdown" in moved and "file:///" not in moved
    # The rules look for jobs with such names.
    [relabeling] = manifests.one("ServiceMonitor", "-metrics")["spec"]["endpoints"][0]["relabelings"]
    assert relabeling == {"action": "replace", "targetLabel": "job", "replacement": "pgonce-shops-shop"}


def test_pods_that_are_not_ready_are_scraped_too(chart):
    """Without a database none is ready, and then their numbers matter most."""
    for name in ("A sidecar", "Everything"):
        found = [each for each in render(chart, COMBINATIONS[name]).of("Service") if each["metadata"]["name"].endswith("-metrics")]
        assert found and all(each["spec"]["publishNotReadyAddresses"] and each["spec"]["clusterIP"] == "None" for each in found)


def test_options_become_the_lines_that_the_command_reads(chart):
    options = {"sink": "webhook", "url": "https://a.example/{topic} # not a comment", "route": ["a.* -> b", "c -> d"], "attempts": 1000000, "allow_private": True, "ce_source": 'say "x"'}
    conf = render(chart, {**DATABASE, "relays": {"a": {"section": "orders.v2", "options": options}}}).one("ConfigMap", "-relay-a")["data"]["pgonce.conf"]
    assert conf.splitlines() == [
        "[relay orders.v2]", 'allow_private = "yes"', 'attempts = "1000000"', 'ce_source = "say "x""', 'route = "a.* -> b"', 'route = "c -> d"', 'sink = "webhook"',
        'url = "https://a.example/{topic} # not a comment"',
    ]  # fmt: skip


REFUSED = [
    ({}, "keep.database.existingSecret (or database.existingSecret): name the Secret"),
    ({**DATABASE, "gatway": {}}, "gatway"),
    ({**DATABASE, "gateway": {"mode": "sidecarr"}}, "gateway/mode"),
    ({**DATABASE, "gateway": {"mode": "deployment", "tenant": "none"}}, "gateway.upstream: say where the service is"),
    ({**DATABASE, "gateway": {"mode": "deployment", "upstream": "http://shop:3000"}}, "gateway.tenant: say who owns the keys"),
    ({**DATABASE, "gateway": {**GATEWAY, "upstream": "http://shop:3000/api"}}, "gateway/upstream"),
    ({**DATABASE, "gateway": {**GATEWAY, "scope": 'a"; b'}}, "gateway/scope"),
    ({**DATABASE, "gateway": {**GATEWAY, "image": {"tag": 1.10}}}, "gateway/image/tag"),
    ({**DATABASE, "relays": {"orders": {}}}, "relays.orders: give one of options, existingConfigMap and existingSecret"),
    ({**DATABASE, "relays": {"orders": {"options": {"sink": "stdout"}, "existingSecret": "x"}}}, "not options and existingSecret"),
    ({**DATABASE, "relays": {"Orders_1": {"options": {"sink": "stdout"}}}}, "Orders_1"),
    ({**DATABASE, "relays": {"orders": {"options": {"sink": "nats", "password": "x"}}}}, "a secret belongs in a Secret"),
    ({**DATABASE, "relays": {"orders": {"options": {"sink": "nats", "url": "nats://me:geheim@nats:4222"}}}}, "holds a secret"),
    ({**DATABASE, "relays": {"orders": {"options": {"sink": "webhook", "header": "Authorization: Bearer x"}}}}, "holds a secret"),
    ({**DATABASE, "relays": {"orders": {"options": {"sink": "stdout", "route": "a\n[relay b]"}}}}, "a value is one line"),
    ({**DATABASE, "relays": {"orders": {"existingSecret": "x"}}, "networkPolicy": {"enabled": True}}, "relays.orders.egress"),
    ({**DATABASE, "gateway": {"mode": "deployment", "existingConfigMap": "x"}, "networkPolicy": {"enabled": True}}, "networkPolicy.upstream.to"),
    ({**DATABASE, "console": {"enabled": True, "allowDecisions": True}}, "console.allowDecisions: a decision is recorded with the person"),
    ({**DATABASE, "console": {"enabled": True, "userHeader": "X-User"}}, "console.userHeader: say in console.trustedAddresses"),
    ({**DATABASE, "commonLabels": {"app.kubernetes.io/name": "x"}}, "commonLabels: app.kubernetes.io/name is the chart's own label"),
    ({**DATABASE, "keep": {"pod": {"labels": {"app.kubernetes.io/component": "x"}}}}, "pod.labels of keep: app.kubernetes.io/component is the chart's own label"),
    ({**DATABASE, "metrics": {"job": "shop"}}, "metrics.job: begin it with"),
]  # fmt: skip


@pytest.mark.parametrize("values, said", REFUSED, ids=[said for _, said in REFUSED])
def test_what_cannot_work_is_refused_with_what_to_do(chart, values, said):
    with pytest.raises(Refused, match=re.escape(said)) as refused:
        render_text(chart, values)
    assert "geheim" not in str(refused.value)


def test_the_source_is_refused_for_what_it_lacks():
    for part in ("prometheusRule", "dashboard"):
        with pytest.raises(Refused, match="packaging/helm/build packs them into it"):
            render_text(CHART, {**DATABASE, "metrics": {part: {"enabled": True}}})


def test_notes_say_what_to_do_next(tmp_path):
    # helm prints them to those who install, which needs a cluster: here they are a manifest's text.
    own = unpacked(tmp_path)
    notes = (own / "templates/NOTES.txt").read_text()
    (own / "templates/notes.yaml").write_text('{{ define "notes" }}' + notes + '{{ end }}apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {text: {{ include "notes" . | quote }}}\n')
    said = {name: render(own, values).one("ConfigMap", "notes")["data"]["text"] for name, values in COMBINATIONS.items()}
    assert "kubectl -n shops patch deployment SERVICE --patch-file patch.yaml" in said["A sidecar"] and "get configmap shop-pgonce-sidecar -o" in said["A sidecar"]
    assert "init is off. Run `pgonce init`" in said["A sidecar"] and "logs job/shop-pgonce-init" in said["Everything"]
    assert "http://shop-pgonce-gateway.shops:80, in front of http://shop:3000" in said["Everything"]
    assert "port-forward service/shop-pgonce-console 9480:80" in said["The console, to look"]
    assert all("helm test shop -n shops" in text for text in said.values())
