"""What operators take from ops/, docker-compose.yml and the Dockerfile is true of this version.

No Prometheus, Grafana, Docker or Kubernetes runs here; docs/how-to/deploy.md says what was tried with which.
"""

import json
import queue
import re
from configparser import ConfigParser
from types import SimpleNamespace

import kubernetes_validate
import promql_parser as promql
import pytest
import yaml
from packaging.requirements import Requirement
from prometheus_client.parser import text_string_to_metric_families

import cqueue
from cqueue import settings
from cqueue.dispatcher.execution.telemetry import Depth, QueueCounts, Stats
from cqueue.dispatcher.service.daemon import DaemonSettings
from cqueue.dispatcher.service.exporter import Exporter
from cqueue.dispatcher.service.metrics import Metrics, exposition
from cqueue.dispatcher.service.parent import ParentProcess
from cqueue.dispatcher.service.supervisor import BEYOND_GRACE_S
from cqueue.spool import Spool
from cqueue.store.operations import IdSlice, LockRow, LockState, Mutate, ReadIds, WideRow
from tests.fix_dispatcher import watched
from tests.unit import markdown_pages as markdown

OPS = markdown.ROOT / "ops"
TARGET = {"instance", "job"}
"""Labels that Prometheus gives every series."""
KUBERNETES = "1.33"


def _text(path):
    return (markdown.ROOT / path).read_text(encoding="utf-8")


# ── Metrics: what is exported, and what the reference, the dashboard, the alerts and KEDA say of it ──


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Labels by series, as Prometheus reads them of daemon, parent and `cqueue metrics`; all have a value."""
    metrics = Metrics("shop:app")
    counts = Stats(QueueCounts(), {"mail": QueueCounts()}, 0, 0, 0, "running")
    held = SimpleNamespace(latest={"mail": Depth(1, 1, 1, 1.0)})
    metrics.watch(watched(lambda: counts, held, quarantined={"mail": 1}))
    metrics.handling.labels("mail", "shop:send").observe(1)
    metrics.started_late("mail", 1)
    for what in ("sent", "claimed", "acked", "returned", "buried", "expired"):
        metrics.calls.count(what, "mail", 1)
    for call in ("send", "claim", "ack"):
        metrics.calls.took(call, "mail", 0)
    for call in ("send", "claim", "ack", "nack", "bury"):
        metrics.calls.failed(call, "mail", [cqueue.OutcomeUnknown("?"), cqueue.NotDone("no")])
    wide_row = WideRow("mail@1", 0, 0)
    metrics.calls.answered(Mutate(wide_row, lock=LockRow(LockState.FREE, b"", 0, 1)), False)
    metrics.calls.answered(ReadIds(wide_row, 0, 0, 9, 10), IdSlice([], 2000))
    with (
        Spool(tmp_path_factory.mktemp("spool"), disk_reserve=0) as spool,
        cqueue.connect("memory://") as client,
    ):
        spool.append("queue.mail", b"x").result(10)
        spool.forwarding["queue.mail"].forwarded += 1
        parent = ParentProcess(DaemonSettings(target="shop:app"), 1, queue.SimpleQueue())
        client.create_log("events")
        client.subscribe("events", name="billing", listeners=[print])
        exporter = Exporter(client, subscriptions=True)
        pages = [exposition(metrics.families()), parent.exposition(), exporter.exposition()]
    found = {}
    for page in pages:
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_reference_lists_what_is_exported(exported):
    """Each metric with its labels, and no other."""
    page = _text("docs/reference/metrics.md")
    rows = re.findall(r"^\| `(cqueue_\w+)` \| (\w+) \|([\w, ]*)\|", page, re.MULTILINE)
    listed = {
        name + ("_count" if kind == "histogram" else ""): set(filter(None, re.split(", *", labels.strip())))
        for name, kind, labels in rows
    }
    assert listed == {
        name: labels
        for name, labels in exported.items()
        if name.startswith("cqueue_") and not name.endswith(("_bucket", "_sum"))
    }


def expressions():
    """(where, PromQL, text with labels) of all that is asked of Prometheus."""
    for panel in json.loads(_text("ops/grafana/dashboards/cqueue.json"))["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in yaml.safe_load(_text("ops/alerts.yml"))["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())
    for trigger in yaml.safe_load(_text("ops/kubernetes/keda.yaml"))["spec"]["triggers"]:
        yield trigger["name"], trigger["metadata"]["query"], ""


def test_what_is_asked_is_exported(exported):
    """Under these names, with the labels that select, group and are shown."""
    for where, text, shown in expressions():
        asked = promql.parse(text.replace("$__rate_interval", "1m"))
        known = TARGET.union(*map(_labels_of(exported, where), _parts(asked, promql.VectorSelector)))
        grouped = set()
        for group in _parts(asked, promql.AggregateExpr):
            labels = set(group.modifier.labels) if group.modifier else set()
            joined = _joined(exported, group.expr)
            for selector in _parts(group.expr, promql.VectorSelector):
                assert labels <= exported[selector.name] | TARGET | joined, where
            grouped |= labels
        named = {one or other for one, other in re.findall(r"\$labels\.(\w+)|{{\s*(\w+)\s*}}", shown)}
        assert named <= (grouped or known), where


def test_an_idle_application_hides_no_busy_one():
    """Each has its own share, where one Prometheus watches several."""
    shares = [text for _, text, _ in expressions() if "cqueue_running" in text and "cqueue_threads" in text]
    assert len(shares) == 2
    for text in shares:
        groups = _parts(promql.parse(text), promql.AggregateExpr)
        assert [group.modifier.labels for group in groups] == [["app"], ["job", "instance", "app"]] * 2


def test_every_limit_of_a_spool_is_watched(exported):
    """Small messages reach the limit of messages long before that of bytes."""
    limits = {name.removeprefix("cqueue_spool_limit_") for name in exported if "_spool_limit_" in name}
    assert len(limits) == 2
    for limit in limits:
        share = f"cqueue_spool_used_{limit} / cqueue_spool_limit_{limit}"
        asked = {where: text for where, text, _ in expressions() if share in text}
        assert asked.keys() == {"Share of the limits", "CqueueSpoolFills"}
        # `or` leaves out what its left side has: each side is compared before it.
        assert f"{share} > " in asked["CqueueSpoolFills"]


def _labels_of(exported, where):
    """A function: the labels of what a selector names, which must have those that it selects by."""

    def labels(selector):
        assert selector.name in exported, where
        assert {each.name for each in selector.matchers.matchers} <= exported[selector.name], where
        return exported[selector.name]

    return labels


def _joined(exported, expression):
    """The labels that `group_left` takes over from its right side, which must have them, and be unique."""
    found = set()
    for join in _parts(expression, promql.BinaryExpr):
        taken = set(join.modifier.group_labels or ()) if join.modifier else set()
        # While processes of two versions run, `cqueue_build_info` has two series of an instance.
        assert not taken or isinstance(join.rhs, promql.AggregateExpr)
        assert all(taken <= exported[right.name] for right in _parts(join.rhs, promql.VectorSelector))
        found |= taken
    return found


def _parts(expression, kind):
    found = []

    def look(part):
        if isinstance(part, kind):
            found.append(part)
        if isinstance(part, promql.MatrixSelector):
            promql.walk(part.vector_selector, look)

    promql.walk(expression, look)
    return found


def test_the_alerts_name_what_exists():
    """Commands that exist, and events that the log has; the dashboard names alerts that there are."""
    alerts = {rule["alert"] for rule in yaml.safe_load(_text("ops/alerts.yml"))["groups"][0]["rules"]}
    board = _text("ops/grafana/dashboards/cqueue.json")
    assert set(re.findall(r"Alert (\w+)", board)) <= alerts
    texts = board + _text("ops/alerts.yml")
    for line in re.findall(r"`(cqueue [a-z ]+)", texts):
        assert markdown.complaint(tuple(line.split())) is None
    events = _text("docs/reference/events.md")
    assert all(f"`{event}`" in events for event in re.findall(r"`(\w+_\w+)`", texts) if event != "cqueue_up")


# ── What runs in containers ──


def services():
    return yaml.safe_load(_text("docker-compose.yml"))["services"]


def containers():
    """(name, arguments) of all that runs the image of the Dockerfile, or one made from it."""
    for name, service in services().items():
        if service["image"] == "cqueue":
            yield f"compose {name}", service["command"]
    for manifest in manifests():
        pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield container["name"], container["args"]


def manifests():
    for path in sorted((OPS / "kubernetes").glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def test_containers_run_commands_that_exist():
    for name, arguments in containers():
        assert markdown.complaint(("cqueue", *arguments)) is None, name


def test_compose_mounts_files_that_exist_and_waits_for_services_that_it_has():
    """The schema is applied at each `up`, before all that needs it."""
    for name, service in services().items():
        for mount in service.get("volumes", ()):
            place = mount.partition(":")[0]
            assert not place.startswith(".") or (markdown.ROOT / place).exists(), name
        assert set(service.get("depends_on", ())) <= set(services())
        if service["image"] == "cqueue" and name != "schema":
            assert service["depends_on"] == {"schema": {"condition": "service_completed_successfully"}}
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "only this machine"


def test_prometheus_scrapes_ports_that_containers_answer_on():
    jobs = yaml.safe_load(_text("ops/prometheus.yml"))["scrape_configs"]
    targets = {target for job in jobs for target in job["static_configs"][0]["targets"]}
    assert targets == {"dispatcher:9100", "metrics:9101"}
    assert services()["dispatcher"]["command"][-2:] == ["--health-port", "9100"]
    assert services()["metrics"]["command"] == ["metrics", "--host", "0.0.0.0"]  # noqa: S104
    (mounted,) = [mount for mount in services()["prometheus"]["volumes"] if "alerts" in mount]
    assert yaml.safe_load(_text("ops/prometheus.yml"))["rule_files"] == [mounted.split(":")[1]]


@pytest.mark.parametrize("manifest", list(manifests()), ids=lambda manifest: manifest["kind"])
def test_manifests_are_kubernetes(manifest):
    """Each field is one that Kubernetes knows, and in its form. Its schemas do not have KEDA's own kind."""
    if manifest["kind"] == "ScaledObject":
        with pytest.raises(kubernetes_validate.SchemaNotFoundError):
            kubernetes_validate.validate(manifest, KUBERNETES)
        return
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_what_belongs_together_in_kubernetes_is_called_alike():
    """Selectors find their pods, KEDA its Deployment, containers their ConfigMap, probes their port."""
    found = {(each["kind"], each["metadata"]["name"]): each for each in manifests()}
    pods = {
        name: each["spec"]["template"]
        for (kind, name), each in found.items()
        if kind in {"Deployment", "Job"}
    }
    for (kind, name), each in found.items():
        if kind == "Deployment":
            assert each["spec"]["selector"]["matchLabels"].items() <= pods[name]["metadata"]["labels"].items()
        if kind == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"].items() <= pods[name]["metadata"]["labels"].items()
        if kind == "ScaledObject":
            assert each["spec"]["scaleTargetRef"]["name"] in pods
        if kind == "Service":
            assert each["spec"]["selector"].items() <= pods[name]["metadata"]["labels"].items()
    for pod in pods.values():
        (container,) = pod["spec"]["containers"]
        assert ("ConfigMap", container["envFrom"][0]["configMapRef"]["name"]) in found
        ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", ())}
        for probe in (container[name]["httpGet"] for name in container if name.endswith("Probe")):
            assert ports[probe["port"]] in container["args"]
        scraped = pod["metadata"].get("annotations", {}).get("prometheus.io/port")
        assert scraped is None or scraped in ports.values()


def test_pods_get_what_a_client_with_a_password_needs(tmp_path):
    """It wants TLS: the authority lies where the ConfigMap says. Secrets are those of the page."""
    page = _text("docs/how-to/deploy.md")
    config = next(each["data"] for each in manifests() if each["kind"] == "ConfigMap")
    variables = set(re.findall(r"=(CQUEUE_(?:USERNAME|PASSWORD))=", page))
    authority = settings.load(environ=config | dict.fromkeys(variables, "x"), directory=tmp_path).tls_ca
    secrets = set()
    for pod in (
        each["spec"]["template"]["spec"] for each in manifests() if "template" in each.get("spec", {})
    ):
        (container,) = pod["containers"]
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        volume = next(each for each in pod["volumes"] if each["name"] == mounts[str(authority.parent)])
        assert f"configmap {volume['configMap']['name']} --from-file={authority.name}=" in page
        secrets |= {each["secretRef"]["name"] for each in container["envFrom"] if "secretRef" in each}
    assert secrets == set(re.findall(r"create secret generic (\S+)", page))


def test_a_dispatcher_is_killed_later_than_its_grace_ends():
    (dispatcher,) = [each for each in manifests() if each["metadata"]["name"] == "shop-dispatch"][:1]
    pod = dispatcher["spec"]["template"]["spec"]
    compose = services()["dispatcher"]
    for arguments, killed_s in (
        (pod["containers"][0]["args"], pod["terminationGracePeriodSeconds"]),
        (compose["command"], int(compose["stop_grace_period"].rstrip("s"))),
    ):
        grace_s = int(arguments[arguments.index("--grace") + 1].rstrip("s"))
        assert killed_s >= grace_s + BEYOND_GRACE_S


# ── The image ──


def test_the_image_has_all_that_setup_needs_pinned_by_hash():
    """At versions that setup.cfg allows; nothing without a hash."""
    setup = ConfigParser()
    setup.read_string(_text("setup.cfg"))
    lists = [
        setup["options"]["install_requires"],
        setup["options.extras_require"]["web"],
        setup["options.extras_require"]["spool"],
    ]
    needs = [Requirement(line) for line in "\n".join(lists).splitlines() if line and not line.startswith("#")]
    text = _text("docker/requirements.txt").replace("\\\n", "")
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+) +--hash=sha256:", text, re.MULTILINE))
    assert len(pinned) == len(re.findall(r"^\w", text, re.MULTILINE))
    for need in needs:
        assert need.specifier.contains(pinned[need.name]), need


def test_the_image_is_built_from_files_that_the_context_has():
    """.dockerignore leaves out everything but these; no root, and no shell before the command."""
    kept = re.findall(r"^!(.+)$", _text(".dockerignore"), re.MULTILINE)
    assert all(list(markdown.ROOT.glob(pattern)) for pattern in kept)
    text = _text("Dockerfile")
    for copied in re.findall(r"docker/[\w.-]+\.txt", text):
        assert (markdown.ROOT / copied).exists()
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert text.rstrip().endswith('ENTRYPOINT ["cqueue"]')
    for manifest in manifests():
        pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
        assert not pod or pod["securityContext"]["runAsUser"] == 10001
