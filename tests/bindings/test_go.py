"""The original's Go package and its own tests, unchanged, on libmooncake_store."""
import os
import re
import shutil

from conftest import BUILD, foreign, run

# They name port 50051, so they run on a network of their own.
ALONE = """
ip link set lo up
"$1" --rpc_address=127.0.0.1 --rpc_port=50051 --metrics_port=0 >master.log 2>&1 &
trap "kill $!" EXIT
for i in $(seq 200); do ! grep -q 'started on port 50051' master.log || break; sleep 0.1; done
shift
"$@"
"""


def go(kept, installed, libraries, folder, *command):
    environment = {**os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": f"-I{installed}/include", "CGO_LDFLAGS": f"-L{libraries} -Wl,-rpath,{libraries} -lmooncake_store",
                   "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod", "GOCACHE": str(kept / "go")}
    return run("unshare", "--net", "bash", "-c", ALONE, "bash", BUILD / "mooncake_master", *command, cwd=folder, env=environment)


def test_its_integration_tests(kept, installed, libraries, tmp_path):
    shutil.copytree(foreign("mooncake") / "mooncake-store/go", tmp_path / "go")
    said = go(kept, installed, libraries, tmp_path / "go", "go", "test", "-v", "-count=1", "./...")
    passed = re.findall(r"^--- PASS: (\w+)", said, re.M)
    assert len(passed) >= 5 and "--- FAIL" not in said and "--- SKIP" not in said, said
