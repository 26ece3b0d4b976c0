"""The manifests in packaging/kubernetes: valid by Kubernetes' own schemas, and what they say about the program holds."""

import copy
import types

import kubernetes_validate
import pytest
import yaml

from harness import CASHEW, HOST, ROOT, Conn, Process, accepts, free_port, wait_until
from test_readyz import get

MANIFESTS = ROOT / "packaging" / "kubernetes" / "cashew.yaml"
#: The oldest that the chart names, and the newest whose schema is here.
VERSIONS = ["1.25", "1.30", "1.37"]


def documents(text):
    return {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(text) if it}


def check(document, version="1.30"):
    kubernetes_validate.validate(document, version, strict=True)


def pod(found):
    return next(it for (kind, _), it in found.items() if kind == "Deployment")["spec"]["template"]["spec"]


def configuration(found):
    return next(it for (kind, _), it in found.items() if kind == "ConfigMap")["data"]["cashew.yml"]


def holds_together(found):
    """What one document says of another is so."""
    deployment = next(it for (kind, _), it in found.items() if kind == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    container, = pod(found)["containers"]
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    for (kind, name), it in found.items():
        spec = it.get("spec", {})
        if kind in ("Deployment", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"].items() <= labels, name
        if kind == "Service":
            assert spec["selector"].items() <= labels, name
            assert {port["targetPort"] for port in spec["ports"]} <= set(ports), name
        if kind == "ServiceMonitor":
            wanted = spec["selector"]["matchLabels"].items()
            service, = [other for (kind, _), other in found.items()
                        if kind == "Service" and wanted <= other["metadata"]["labels"].items()]
            assert {port["port"] for port in spec["endpoints"]} <= {port["name"] for port in service["spec"]["ports"]}
    volumes = {it["name"]: it for it in pod(found)["volumes"]}
    assert {it["name"] for it in container["volumeMounts"]} == set(volumes)
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in found
    assert ("ServiceAccount", pod(found)["serviceAccountName"]) in found
    # What begins before the end must be over before the kill.
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod(found)["terminationGracePeriodSeconds"] > int(command[command.index("--delay") + 1])
    # Nothing that is not needed.
    security = pod(found)["securityContext"] | container["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]} and security["seccompProfile"] == {"type": "RuntimeDefault"}
    # Without it a Unix socket for operators, and so the drain, has no place.
    assert "/run/cashew" in {it["mountPath"] for it in container["volumeMounts"]}


@pytest.fixture(scope="module")
def manifests():
    return documents(MANIFESTS.read_text())


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_all_that_they_say(manifests, version):
    kinds = sorted(kind for kind, _ in manifests)
    assert kinds == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"]
    for document in manifests.values():
        check(document, version)


def test_the_check_finds_what_is_wrong(manifests):
    def broken(change):
        deployment = copy.deepcopy(next(it for (kind, _), it in manifests.items() if kind == "Deployment"))
        change(deployment["spec"]["template"]["spec"])
        return deployment

    for change in (lambda pod: pod.update(terminationGracePeriod=60),
                   lambda pod: pod["containers"][0]["readinessProbe"].update(periodSeconds="2s"),
                   lambda pod: pod["containers"][0]["ports"][0].pop("containerPort")):
        with pytest.raises(kubernetes_validate.ValidationError):
            check(broken(change))


def test_documents_fit_together(manifests):
    holds_together(manifests)
    container, = pod(manifests)["containers"]
    for port in container["ports"]:
        if port["name"] != "stats":
            assert f"listen: 0.0.0.0:{port['containerPort']}" in configuration(manifests)
    assert container["image"].endswith(":" + version())


def version():
    text = (ROOT / "Cargo.toml").read_text()
    return text.split('[workspace.package]\nversion = "')[1].split('"')[0]


def test_the_program_does_what_they_ask_of_it(place, manifests):
    """It is started, probed and ended as the kubelet does."""
    server = place.redis()
    container, = pod(manifests)["containers"]
    directory = place.directory / "etc"
    directory.mkdir()
    file = directory / "cashew.yml"
    text = configuration(manifests)
    port, stats_port = free_port(), free_port()
    for shipped, here in {"redis:6379:1": f"{HOST}:{server.port}:1", "0.0.0.0:22121": f"{HOST}:{port}"}.items():
        assert shipped in text
        text = text.replace(shipped, here)
    file.write_text(text)

    def here(words):
        named = {"/etc/cashew/cashew.yml": str(file), "22222": str(stats_port), "0.0.0.0": HOST, "/usr/bin/cashew": CASHEW,
                 "15": "2"}
        return [named.get(word, word) for word in words]

    process = Process([CASHEW, *here(container["args"])], place.directory, "cashew",
                      lambda: accepts(port) and accepts(stats_port))
    place.stack.callback(process.kill)

    gateway = types.SimpleNamespace(stats_port=stats_port)
    ports = {it["name"]: it["containerPort"] for it in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert ports[asked["port"]] == int(container["args"][container["args"].index("-s") + 1])
        wait_until(lambda: get(gateway, asked["path"])[0] == 200, probe)
    with Conn(port) as conn:
        assert conn.call("SET", "k", "v") == "OK"
        drain = Process(here(container["lifecycle"]["preStop"]["exec"]["command"]), place.directory, "drain")
        place.stack.callback(drain.kill)
        paths = {probe: container[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")}
        wait_until(lambda: get(gateway, paths["readinessProbe"])[0] == 503, "no new clients are to come")
        # It lives, and serves.
        assert get(gateway, paths["livenessProbe"])[0] == 200
        assert conn.call("GET", "k") == b"v"
        wait_until(lambda: not drain.running(), "the drain is over")
        assert drain.child.wait() == 0
    assert process.stop() == 0


def test_the_docs_show_what_kubernetes_knows():
    text = (ROOT / "docs" / "how-to.md").read_text()
    block = text.split("```yaml k8s\n")[1].split("```")[0]
    spec = yaml.safe_load(block)
    check({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "cashew"}, **spec})
