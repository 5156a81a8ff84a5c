"""The examples in deploy/ name paths, options and probes that exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from runtime.cli.main import main
from runtime.server.origin import OPEN_PATHS

DEPLOY = Path(__file__).parents[2] / "deploy"


def parse(arguments):
    """The options of `onnxlm serve`, as click reads them."""
    command = main.get_command(click.Context(main), "serve")
    return command.make_context("serve", list(arguments)).params


@pytest.fixture(scope="module")
def kubernetes():
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))


def test_the_unit_starts_a_server_that_may_drain():
    text = (DEPLOY / "onnxlm.service").read_text().replace("\\\n", " ")
    words = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.M)[1])
    options = parse(words[2:])
    assert words[0].endswith("/onnxlm")
    assert float(re.search(r"TimeoutStopSec=(\d+)", text)[1]) > options["drain_timeout"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path):
    text = (DEPLOY / "onnxlm.service").read_text()
    (tmp_path / "onnxlm.service").write_text(re.sub(r"/opt/onnxlm/current/venv/bin/onnxlm", sys.executable, text))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / "onnxlm.service"], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "onnxlm.service" in line] == []
    assert "ExecStart=" in text


def test_the_image_and_the_pod_name_the_same_user(kubernetes):
    text = (DEPLOY / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+)$", text, re.M)[1]
    assert f"--uid {user} " in text
    assert kubernetes[0]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)


def test_the_image_starts_a_server():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    entry = re.search(r'^ENTRYPOINT \["onnxlm", "serve", (.*)\]$', text, re.M)[1]
    options = parse(shlex.split(entry.replace(",", "")))
    assert (options["host"], options["log_format"]) == ("0.0.0.0", "json")
    assert f"EXPOSE {options['port']}" in text


def test_the_pod_is_probed_where_no_key_is_needed_and_may_drain(kubernetes):
    deployment, _ = kubernetes
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parse(["model", *container["args"]])
    probes = {name: probe["httpGet"]["path"] for name, probe in container.items() if name.endswith("Probe")}
    assert probes == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert set(probes.values()) == OPEN_PATHS
    assert pod["terminationGracePeriodSeconds"] > options["drain_timeout"]


def test_the_service_finds_the_pod(kubernetes):
    deployment, service = kubernetes
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    ports = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == ports[0]["name"]


def test_the_dashboard_asks_for_figures_that_there_are(chat_bundle):
    from runtime.server.metrics import Metrics

    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    asked = set(re.findall(r"\b((?:onnxlm|process)_\w+)", json.dumps([panel["targets"] for panel in panels])))
    text = Metrics({}).text().decode()
    known = set(re.findall(r"^# TYPE (\w+)", text, re.M))
    known |= {f"{name}_bucket" for name in known} | {f"{name}_total" for name in known}
    assert asked <= known | {"process_cpu_seconds_total"}
    assert len(asked) > 10


def test_the_image_is_made_of_what_the_repository_has():
    root = DEPLOY.parent
    kept = re.findall(r"^!(.+)$", (root / ".dockerignore").read_text(), re.M)
    assert [name for name in kept if not (root / name).exists()] == []
    copied = re.findall(r"^COPY (?!\.)(\S+)", (DEPLOY / "Dockerfile").read_text(), re.M)
    assert set(copied) <= set(kept)


@pytest.mark.parametrize("name", ["test", "publish"])
def test_the_workflows_run_what_there_is(name):
    root = DEPLOY.parent
    workflow = yaml.safe_load((root / ".github" / "workflows" / f"{name}.yml").read_text())
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    paths = [word for step in steps for word in step.split() if word.startswith(("tests/", ".ci/"))]
    assert [path for path in paths if not (root / path).exists()] == []
    assert all(job["runs-on"] for job in workflow["jobs"].values())
