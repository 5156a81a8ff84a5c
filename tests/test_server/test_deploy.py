"""The examples in deploy/ name paths, options and probes that exist."""

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
from runtime.server.auth import OPEN_PATHS

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
    (tmp_path / "onnxlm.service").write_text(re.sub(r"/opt/onnxlm/venv/bin/onnxlm", sys.executable, text))
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
