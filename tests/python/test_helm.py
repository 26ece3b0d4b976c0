"""The chart in packaging/helm: what it makes of values is valid by Kubernetes' schemas, and values that are not valid are
refused with their name."""

import json
import os
import subprocess

import pytest
import yaml

from harness import ROOT
from test_kubernetes import MANIFESTS, VERSIONS, check, configuration, documents, holds_together, pod, version

CHART = ROOT / "packaging" / "helm" / "cashew"
#: Paths of the tools that packaging/tools pins: scripts/long builds them.
HELM = os.environ.get("CASHEW_HELM")
STRICT = os.environ.get("CASHEW_STRICT")

pytestmark = [pytest.mark.long, pytest.mark.skipif(not HELM, reason="needs helm, which scripts/long builds")]


def run(*words, **named):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=100, **named)


def template(place, values, *options):
    path = place.directory / "values.yaml"
    # What is JSON is YAML.
    path.write_text(json.dumps(values))
    return run(HELM, "template", "gate", CHART, "--namespace", "shop", "--kube-version", "1.30.0", "--values", path, *options)


def made(place, values, *options):
    done = template(place, values, *options)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


EVERYTHING = {
    "replicas": 3,
    "image": {"repository": "registry.example/cashew", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
    "pullSecrets": [{"name": "registry"}],
    "config": "pools:\n  app:\n    listen: 0.0.0.0:6379\n    redis: true\n    servers: ['10.0.0.1:6379:1']\n"
              "  cache:\n    listen: 0.0.0.0:11211\n    servers: ['10.0.0.2:11211:1']\n",
    "secretName": "passwords",
    "ports": [{"name": "app", "containerPort": 6379, "port": 6379, "nodePort": 30079},
              {"name": "cache", "containerPort": 11211, "port": 11211}],
    "service": {"type": "LoadBalancer", "annotations": {"a.example/b": "true"}, "externalTrafficPolicy": "Local"},
    "stats": {"port": 9090, "address": "::"},
    "drainSeconds": 30,
    "stopSeconds": 90,
    "podDisruptionBudget": {"enabled": True, "maxUnavailable": "25%"},
    "serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}},
    "resources": {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "readEndpoints": True,
    "serviceAccount": {"annotations": {"a.example/role": "reader"}},
    "env": [{"name": "TZ", "value": "UTC"}],
    "podAnnotations": {"a.example/pod": "yes"},
    "podLabels": {"team": "cache"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "cashew"}}}]}},
    "priorityClassName": "high",
    "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}],
}


def test_helm_finds_nothing_wrong():
    done = run(HELM, "lint", "--strict", "--kube-version", "1.30.0", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"podDisruptionBudget": {"enabled": False}, "replicas": 1}])
def test_what_it_makes_is_known_to_kubernetes(place, values):
    found = made(place, values)
    for (kind, _), document in found.items():
        if kind != "ServiceMonitor":
            for known in VERSIONS:
                check(document, known)
    holds_together(found)


def test_every_value_is_put_somewhere(place):
    declared = set(yaml.safe_load((CHART / "values.yaml").read_text()))
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert declared == set(EVERYTHING) == set(schema["properties"]) - {"global"}
    before = made(place, {})
    for name, value in EVERYTHING.items():
        assert made(place, {name: value}) != before, name


def test_values_say_what_is_asked_for(place):
    found = made(place, EVERYTHING)
    container, = pod(found)["containers"]
    assert container["image"] == "registry.example/cashew@sha256:" + "0" * 64
    assert pod(found)["terminationGracePeriodSeconds"] == 120
    assert container["args"][-4:] == ["-a", "::", "-s", "9090"]
    assert pod(found)["automountServiceAccountToken"] is True
    assert configuration(found) == EVERYTHING["config"]
    role = found["Role", "gate-cashew"]
    assert role["rules"] == [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
                              "verbs": ["get", "list", "watch"]}]
    assert found["RoleBinding", "gate-cashew"]["subjects"][0]["namespace"] == "shop"
    service = found["Service", "gate-cashew"]["spec"]
    assert service["externalTrafficPolicy"] == "Local" and service["ports"][0]["nodePort"] == 30079


def test_another_file_is_a_rollout(place):
    def annotations(values):
        found = made(place, values)
        deployment = next(it for (kind, _), it in found.items() if kind == "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    assert annotations({}) != annotations({"config": EVERYTHING["config"]})


@pytest.mark.skipif(not STRICT, reason="needs what reads a ServiceMonitor, which scripts/long builds")
def test_prometheus_operator_knows_the_monitor(place):
    monitor = made(place, EVERYTHING)["ServiceMonitor", "gate-cashew"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"

    def judge(document):
        return run(STRICT, input=yaml.safe_dump(document))

    assert judge(monitor).returncode == 0, judge(monitor).stderr
    monitor["spec"]["endpoints"][0]["intervall"] = "5s"
    assert "intervall" in judge(monitor).stderr


@pytest.mark.parametrize("values, named", [
    ({"replicas": "two"}, "replicas"),
    ({"replica": 2}, "replica"),
    ({"image": {"tag": "a b"}}, "tag"),
    ({"image": {"digest": "sha256:1"}}, "digest"),
    ({"config": {"pools": {}}}, "config"),
    ({"ports": []}, "ports"),
    ({"ports": [{"name": "Main", "containerPort": 1, "port": 1}]}, "name"),
    ({"ports": [{"name": "stats", "containerPort": 1, "port": 1}]}, "name"),
    ({"ports": [{"name": "main", "containerPort": 65536, "port": 1}]}, "containerPort"),
    ({"service": {"type": "Ingress"}}, "type"),
    ({"drainSeconds": -1}, "drainSeconds"),
    ({"podDisruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
    ({"serviceMonitor": {"interval": "soon"}}, "interval"),
    ({"resources": {"requests": {"memory": "much"}}}, "memory"),
    ({"podLabels": {"team": 7}}, "team"),
])
def test_what_is_not_valid_is_refused(place, values, named):
    done = template(place, values)
    assert done.returncode != 0 and named in done.stderr and "schema" in done.stderr, done.stderr


def test_the_manifests_are_what_the_chart_makes(place):
    path = place.directory / "cashew.yaml"
    done = run(ROOT / "packaging" / "manifests", path)
    assert done.returncode == 0, done.stderr
    assert path.read_text() == MANIFESTS.read_text(), "packaging/manifests writes it anew"


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version()
