"""The chart, by Helm's own library, and what it says: against the schemas of Kubernetes, oldest and newest, and in itself."""
import json
import pathlib
import re

import helm_python
import jsonschema
import kubernetes_validate
import pytest
import yaml

import image
import render

VERSIONS = ("1.25.0", "1.31.0", "1.37.0")  # the chart's oldest, one between, the newest that the schemas have
PACKAGING = pathlib.Path(image.ROOT) / "packaging"
VALUES = {
    "default": {},
    "disk": {"store": {"disk": {"enabled": True, "bytes": 1 << 40, "storageClassName": "fast"}}},
    "rdma": {"store": {"protocol": "rdma", "rdmaResource": "rdma/hca", "extraEnv": [{"name": "MC_GID_INDEX", "value": "3"}], "nodeSelector": {"a": "b"},
                       "tolerations": [{"key": "gpu", "operator": "Exists"}]}},
    "tls": {"tls": {"secretName": "mooncake-tls", "serverName": "pool.example.org"}, "store": {"disk": {"enabled": True}}},
    "tls, callers without certificates": {"tls": {"secretName": "mooncake-tls", "callers": False}},
    "keys": {"auth": {"secretName": "mooncake-auth"}},
    "keys and tls": {"auth": {"secretName": "mooncake-auth"}, "tls": {"secretName": "mooncake-tls"}, "store": {"disk": {"enabled": True}}},
    "outside": {"etcd": {"enabled": False, "endpoints": ["10.0.0.1:2379", "10.0.0.2:2379"]}, "master": {"extraArgs": ["--default_kv_lease_ttl=5000"]}},
    "monitoring": {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}, "dashboards": True}},
    "monitoring, keys and tls": {"monitoring": {"enabled": True, "tokenSecret": "reader"}, "auth": {"secretName": "mooncake-auth"},
                                 "tls": {"secretName": "mooncake-tls", "serverName": "pool.example.org"}},
}
# What is used of the Prometheus operator's definitions (monitoring.coreos.com/v1), whose own schemas are in no package.
SECRET_KEY = {"type": "object", "required": ["name", "key"], "additionalProperties": False, "properties": {"name": {"minLength": 1}, "key": {"minLength": 1}}}
ENDPOINT = {"type": "object", "required": ["port", "path", "scheme", "relabelings"], "additionalProperties": False, "properties": {
    "port": {"type": "string"}, "path": {"const": "/metrics"}, "interval": {"type": "string"}, "scheme": {"enum": ["http", "https"]},
    "relabelings": {"items": {"type": "object", "additionalProperties": False, "properties": {"targetLabel": {"const": "job"}, "replacement": {"type": "string"}}}},
    "tlsConfig": {"type": "object", "additionalProperties": False, "properties": {
        "ca": {"properties": {"secret": SECRET_KEY}}, "cert": {"properties": {"secret": SECRET_KEY}}, "keySecret": SECRET_KEY, "serverName": {"type": "string"}}},
    "authorization": {"type": "object", "additionalProperties": False, "properties": {"credentials": SECRET_KEY}}}}
OPERATOR = {
    "PodMonitor": {"required": ["selector", "podMetricsEndpoints"], "additionalProperties": False, "properties": {
        "selector": {"required": ["matchLabels"]}, "podMetricsEndpoints": {"type": "array", "minItems": 1, "items": ENDPOINT}}},
    "PrometheusRule": {"required": ["groups"], "additionalProperties": False, "properties": {"groups": {"type": "array", "minItems": 1, "items": {
        "required": ["name", "rules"]}}}}}


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.fixture(name="said", params=VALUES)
def make_said(request):
    return documents(render.manifest(VALUES[request.param]))


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas(said, version):
    for one in said:
        if one["kind"] in OPERATOR:
            assert one["apiVersion"] == "monitoring.coreos.com/v1"
            jsonschema.validate(one["spec"], OPERATOR[one["kind"]])
        else:
            kubernetes_validate.validate(one, version, strict=True)


def test_a_misspelt_field_is_noticed():
    wrong = documents(render.manifest({}))
    [store] = [one for one in wrong if one["kind"] == "StatefulSet" and one["metadata"]["name"] == "mooncake-store"]
    store["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(store, VERSIONS[0], strict=True)


def pods(said):
    for one in said:
        if "template" in one.get("spec", {}):
            yield one, one["spec"]["template"]


def test_what_belongs_together(said):
    selected = {one["metadata"]["name"]: one["spec"]["selector"] for one in said if one["kind"] == "Service"}
    for one, template in pods(said):
        labels = template["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert selected[one["metadata"]["name"]].items() <= labels.items()
        others = [name for name, selector in selected.items() if selector.items() <= labels.items()]
        assert others == [one["metadata"]["name"]], "another Service has these pods too"
        assert one["spec"].get("serviceName", one["metadata"]["name"]) in selected
        volumes = {volume["name"] for volume in template["spec"].get("volumes", ())} | {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == volumes
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                [asked] = [container[probe][kind] for kind in ("httpGet", "tcpSocket") if kind in container[probe]] if probe in container else [None]
                assert asked is None or asked["port"] in ports


@pytest.mark.parametrize("name", [name for name in VALUES if name.startswith("monitoring")])
def test_the_operator_is_told_what_the_documents_say(name):
    said, values = documents(render.manifest(VALUES[name])), VALUES[name]
    [rules] = [one for one in said if one["kind"] == "PrometheusRule"]
    assert rules["spec"] == yaml.safe_load((PACKAGING / "monitoring/alerts.yml").read_text())
    wanted = yaml.safe_load((PACKAGING / "monitoring/prometheus.yml").read_text())["scrape_configs"]
    jobs = {}
    for one in (one for one in said if one["kind"] == "PodMonitor"):
        assert one["metadata"]["labels"].items() >= values["monitoring"].get("labels", {}).items()
        [chosen] = [template for _, template in pods(said) if one["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()]
        [container], [endpoint] = chosen["spec"]["containers"], one["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}
        assert endpoint["scheme"] == container["readinessProbe"]["httpGet"]["scheme"].lower() == ("https" if "tls" in values else "http")
        assert ("tlsConfig" in endpoint, "authorization" in endpoint) == ("tls" in values, "auth" in values)
        jobs[endpoint["relabelings"][0]["replacement"]] = container["name"]
    assert jobs == {"mooncake": "master", "mooncake-store": "store"} and jobs.keys() <= {job["job_name"] for job in wanted}
    found = {key: json.loads(text) for one in said if one["kind"] == "ConfigMap" for key, text in one["data"].items()}
    folder = PACKAGING / "monitoring/dashboards"
    assert found == ({path.name: json.loads(path.read_text()) for path in folder.iterdir()} if values["monitoring"].get("dashboards") else {})


def test_nobody_is_root(said):
    for _, template in pods(said):
        assert template["spec"]["securityContext"]["runAsNonRoot"] and template["spec"]["securityContext"]["runAsUser"] == image.USER
        for container in template["spec"]["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"] and context["capabilities"]["drop"] == ["ALL"]


def test_the_grace_holds_what_a_store_does_at_its_end(said):
    [template] = [template for one, template in pods(said) if one["metadata"]["name"] == "mooncake-store"]
    [store] = template["spec"]["containers"]
    [grace] = [word.split("=")[1] for word in store["command"] if word.startswith("--exit_grace_s=")]
    hook = store["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[0] == "sleep"
    requests_s, end_s = 5, 5
    assert template["spec"]["terminationGracePeriodSeconds"] >= int(hook[1]) + requests_s + int(grace) + end_s


def test_what_the_master_must_know_of_disks():
    for name, wanted in (("default", False), ("disk", True)):
        said = {one["metadata"]["name"]: template["spec"]["containers"][0] for one, template in pods(documents(render.manifest(VALUES[name])))}
        assert ("--enable_offload" in said["mooncake-master"]["command"]) == wanted
        assert ({"name": "MOONCAKE_OFFLOAD_ENABLED", "value": "true"} in said["mooncake-store"]["env"]) == wanted


@pytest.mark.parametrize("name, expected", [("default", None), ("tls", {"MC_TLS_CERT": "/tls/tls.crt", "MC_TLS_KEY": "/tls/tls.key", "MC_TLS_CA_CERT": "/tls/ca.crt",
                                            "MC_TLS_CLIENT_CA_CERT": "/tls/ca.crt", "MC_TLS_SERVER_NAME": "pool.example.org"}),
                                            ("tls, callers without certificates", {"MC_TLS_CERT": "/tls/tls.crt", "MC_TLS_KEY": "/tls/tls.key",
                                                                                   "MC_TLS_CA_CERT": "/tls/ca.crt", "MC_TLS_SERVER_NAME": "mooncake"})])
def test_tls(name, expected):
    """Of masters and stores, and of nothing where it is off: files out of the Secret, and probes that speak HTTPS."""
    said = documents(render.manifest(VALUES[name]))
    for one, template in pods(said):
        [container], spec = template["spec"]["containers"], template["spec"]
        variables = {variable["name"]: variable.get("value") for variable in container.get("env", ()) if variable["name"].startswith("MC_TLS_")}
        secrets = [volume["secret"]["secretName"] for volume in spec.get("volumes", ()) if "secret" in volume]
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", ())}
        if expected is None or one["metadata"]["name"] == "mooncake-etcd":
            assert variables == {} and secrets == [] and "/tls" not in mounts
            continue
        assert variables == expected and secrets == ["mooncake-tls"] and mounts["/tls"]["readOnly"] and "subPath" not in mounts["/tls"]
    probes = [template["spec"]["containers"][0][probe] for one, template in pods(said) for probe in ("readinessProbe", "livenessProbe")
              if one["metadata"]["name"] != "mooncake-etcd"]
    schemes = {probe["httpGet"]["scheme"] for probe in probes if "httpGet" in probe}
    assert schemes == {"HTTPS" if expected else "HTTP"}
    scraped = {one["metadata"]["annotations"]["prometheus.io/scheme"] for one in said if one["kind"] == "Service" and "annotations" in one["metadata"]}
    assert scraped == {"https" if expected else "http"}


@pytest.mark.parametrize("name", ["default", "keys", "keys and tls"])
def test_keys(name):
    """Masters have all of them, stores the file of their own, and nothing of them is in the manifest; where they are off there is nothing."""
    for one, template in pods(documents(render.manifest(VALUES[name]))):
        [container], spec = template["spec"]["containers"], template["spec"]
        variables = {variable["name"]: variable.get("value") for variable in container.get("env", ()) if variable["name"].startswith("MC_AUTH_")}
        secrets = [volume["secret"] for volume in spec.get("volumes", ()) if volume["name"] == "auth"]
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", ()) if mount["name"] == "auth"}
        if name == "default" or one["metadata"]["name"] == "mooncake-etcd":
            assert variables == {} and secrets == [] and mounts == {}
            continue
        file = {"mooncake-master": "keys", "mooncake-store": "stores"}[one["metadata"]["name"]]
        assert variables == {"MC_AUTH_FILE": "/auth/keys"} and mounts["/auth"]["readOnly"] and "subPath" not in mounts["/auth"]
        assert secrets == [{"secretName": "mooncake-auth", "defaultMode": 0o440, "items": [{"key": file, "path": "keys"}]}]


def test_flags_and_variables_are_known(said, inside):
    """By the commands themselves: a flag that there is not is an error, and the doctor lists the variables."""
    listed = inside("mooncake_doctor", "--variables").stdout
    known = set(re.findall(r"\b(?:MC|MOONCAKE)_[A-Z0-9_]+", listed))
    assert "MC_DATA_DIR" in known and "MC_DATA_DIRR" not in known
    for one, template in pods(said):
        [container] = template["spec"]["containers"]
        if container["command"][0] == "etcd":
            continue
        assert {variable["name"] for variable in container["env"]} - {"POD_IP"} <= known
        words = [word.replace("$(POD_IP)", "10.0.0.1") for word in container["command"]]
        variables = [f"{variable['name']}={variable.get('value', '10.0.0.1')}" for variable in container["env"]]
        done = inside("env", *variables, *words, "--print_config")
        assert done.returncode == 0, (one["metadata"]["name"], done.stderr)


def test_the_chart_is_well_formed():
    found = helm_python.lint(str(render.CHART))
    assert not found["errors"] and all(one["severity"] <= 1 for one in found["messages"]), found  # 1: it has no icon
    for version in (image.version(),):
        with helm_python.Chart.load(str(render.CHART)) as chart:
            assert chart.values["image"]["tag"] == version.replace("+", "-")
        assert f"appVersion: {version}" in (render.CHART / "Chart.yaml").read_text()


@pytest.mark.parametrize("wrong", [{"store": {"memory": "48gb"}}, {"etcd": {"enabled": False}}, {"etcd": {"replicas": 2}}, {"store": {"protocol": "udp"}},
                                   {"tls": {"secretName": "A B"}}, {"tls": {"secretName": "a", "serverName": ""}}, {"tls": {"cert": "a"}},
                                   {"auth": {"secretName": "A B"}}, {"auth": {"token": "a:b"}}, {"stores": {}}, {"monitoring": {"enabled": True, "interval": "often"}},
                                   {"monitoring": {"enabled": True}, "auth": {"secretName": "a"}}, {"image": {"repository": "a", "tag": "0.5.0+c1"}}])
def test_values_that_cannot_be_are_refused(wrong):
    with pytest.raises(helm_python.HelmError):
        render.manifest(wrong)


def test_the_manifest_without_helm_is_the_charts():
    assert {path.name: path.read_text() for path in render.PLAIN.iterdir()} == render.plain(), "./dev manifests"


def test_helm_packs_it(tmp_path):
    helm_python.package(str(render.CHART), destination=str(tmp_path))
    [path] = tmp_path.iterdir()
    with helm_python.Chart.load(str(path)) as chart:
        assert chart.name == "mooncake"
        said = documents("---\n".join(text for name, text in chart.render(VALUES["monitoring"], name="a").items() if name.endswith(".yaml")))
        assert {"PrometheusRule", "PodMonitor", "ConfigMap"} <= {one["kind"] for one in said}
