"""The laptop's compose file: against Compose's own schema, and its services as containers in namespaces."""
import json
import os
import pathlib
import subprocess
import sys

import jsonschema
import pytest
import yaml

import image

HERE = pathlib.Path(__file__).resolve().parent
COMPOSE = pathlib.Path(image.ROOT) / "packaging/compose/compose.yaml"


def test_schema():
    schema = json.loads((pathlib.Path(os.environ["MC_DEPLOY"]) / "compose/compose/config/compose_spec.json").read_text())
    said = yaml.safe_load(COMPOSE.read_text())
    said.pop("name")  # younger than this schema
    judge = jsonschema.Draft7Validator(schema)
    judge.validate(said)
    said["services"]["master"]["helthcheck"] = {}
    with pytest.raises(jsonschema.ValidationError):
        judge.validate(said)


def test_it_is_of_this_version_and_well_confined():
    said = yaml.safe_load(COMPOSE.read_text())
    for service in said["services"].values():
        assert service["image"] == f"mooncake:{image.version().replace('+', '-')}"
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert set(service.get("depends_on", {})) <= set(said["services"])
        for text in service.get("volumes", ()):
            assert text.split(":")[0] in said["volumes"]


def test_its_services(root, tmp_path):
    done = subprocess.run([sys.executable, "-B", str(HERE / "laptop.py"), str(COMPOSE), str(root), str(tmp_path)], capture_output=True, text=True, timeout=240,
                          check=False)
    if done.returncode == 77:
        pytest.skip("namespaces are not allowed here")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert done.stdout.splitlines() == ["both have it", "one has it", "all have ended"]
