"""Everything of mooncake.store and mooncake.engine with wrong types, lengths and liars: an exception that says so, or a code; never a crash."""
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

import pytest

from python_cluster import address, master, node, store  # noqa: F401
from mooncake.store import ObjectDataType, ReplicateConfig, SoftPinAction

PROGRAM = pathlib.Path(__file__).with_name("hostile_arguments.py")
# ZeroDivisionError is what one of the arguments raises when it is looked at.
ALLOWED = {"TypeError", "ValueError", "UnicodeEncodeError", "UnicodeDecodeError", "NotImplementedError", "BufferError", "RuntimeError", "ZeroDivisionError"}
TIMES = 400 if os.environ.get("MC_TEST_ALL") else 60


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("python", ["without torch", "with torch"])
def test_hostile_arguments(master, python, seed):
    program = sys.executable if python == "without torch" else os.environ.get("MC_TORCH_PYTHON")
    if program is None:
        pytest.skip("no Python with torch: MC_TORCH_PYTHON")
    done = subprocess.run([program, "-B", str(PROGRAM), master.address, str(seed), str(TIMES)], capture_output=True, text=True, timeout=170, errors="replace",
                          env={**os.environ, "MC_LOG_LEVEL": "ERROR", "MC_TCP_BIND_ADDRESS": "127.0.0.1"})
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["methods"] > 100 and found["calls"] == found["methods"] * TIMES
    allowed = ALLOWED | ({"ImportError"} if python == "without torch" else set())
    assert set(found["raised"]) <= allowed, {name: example for name, example in found["raised"].items() if name not in allowed}


def test_a_mock_of_a_config_is_none(store):
    """isinstance() believes what a mock says of itself; its memory is not a config's."""
    wrong, data = mock.MagicMock(spec=ReplicateConfig), bytearray(8)
    assert isinstance(wrong, ReplicateConfig)
    for call in (lambda: store.put("k", b"v", wrong), lambda: store.put_parts("k", b"v", config=wrong), lambda: store.put_batch(["k"], [b"v"], wrong),
                 lambda: store.put_from("k", address(data), 8, wrong), lambda: store.batch_put_from(["k"], [address(data)], [8], wrong),
                 lambda: store.batch_put_from_multi_buffers(["k"], [[address(data)]], [[8]], wrong), lambda: store.upsert("k", b"v", wrong),
                 lambda: store.batch_put_session_start(["k"], [8], wrong)):
        with pytest.raises(TypeError, match="ReplicateConfig"):
            call()
    assert store.is_exist("k") == 0
    config = ReplicateConfig()
    for field, value in (("soft_pin_action", SoftPinAction.ENABLE), ("data_type", ObjectDataType.TENSOR)):
        with pytest.raises(TypeError):
            setattr(config, field, mock.MagicMock(spec=value))
    assert store.put("k", b"v", type("Config", (ReplicateConfig,), {})()) == 0, "one that is derived from it is one"
