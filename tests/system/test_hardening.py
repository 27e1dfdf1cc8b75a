"""Programs, libraries and extensions have the protections of compiler and linker (meson.build), and our own code has, not only what is linked in."""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["MC_SOURCE"])
sys.path[:0] = [str(SOURCE / "tests/wheel"), str(SOURCE / "packaging")]
import hardening  # noqa: E402
import portable  # noqa: E402

BUILD = pathlib.Path(os.environ["MC_BUILD"])
ROOMS = ("mcbase", "mccore", "mcdisk", "mcmaster", "mcproxy", "mcservice", "mcstore", "mctransfer")
OPTIONS = {option["name"]: option["value"] for option in json.loads((BUILD / "meson-info/intro-buildoptions.json").read_text(encoding="utf-8"))}
pytestmark = pytest.mark.skipif(OPTIONS["b_sanitize"] not in ("none", [], ""), reason="sanitizers look for themselves")


def said_of(room, *command):
    return subprocess.run([*command, BUILD / f"lib{room}.a"], capture_output=True, text=True, check=True).stdout


def test_what_is_installed_is_protected():
    places = json.loads((BUILD / "meson-info/intro-installed.json").read_text(encoding="utf-8"))
    files = [path for path in places if pathlib.Path(path).is_relative_to(BUILD) and pathlib.Path(path).read_bytes()[:4] == b"\x7fELF"]
    assert len(files) >= 12
    assert [problem for path in files for problem in hardening.check(path)[0]] == []


@pytest.mark.parametrize("room", ROOMS)
def test_our_own_code_is_protected(room):
    """Debian's static libraries have some of it too, so that a program alone proves nothing of ours."""
    wanted = set(re.findall(r"U (__\w+_chk(?:_fail)?)$", said_of(room, "nm", "-u"), re.M))
    assert "__stack_chk_fail" in wanted and len(wanted) > 1
    headers = said_of(room, "readelf", "-nW")
    if os.uname().machine == "x86_64":
        assert headers.count("x86 feature: IBT, SHSTK") == headers.count("File: ")


def test_large_frames_touch_their_pages():
    code = "".join(said_of(room, "objdump", "-d", "--no-show-raw-insn") for room in ROOMS)
    if os.uname().machine == "x86_64":
        assert re.search(r"(?:orq? +|movq +)\$0x0,\(%rsp\)", code)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="of x86-64")
@pytest.mark.parametrize("name", ["mooncake", "mooncake_master", "libmooncake.so"])
def test_nothing_of_ours_keeps_the_mark_away(name, tmp_path):
    """That branches end where they may (IBT), and returns where they came from (SHSTK), a loader believes of a whole file only: the linker says so when
    it holds of all that went in. It says what keeps it from that; Debian's own objects do (docs/security.md)."""
    command = shlex.split(subprocess.run(["ninja", "-C", BUILD, "-t", "commands", "-s", name], capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    command[command.index("-o") + 1] = str(tmp_path / "linked")
    done = subprocess.run([*command, "-Wl,-z,cet-report=warning", "-Wl,--no-fatal-warnings"], cwd=BUILD, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lacking = re.findall(r"ld: (\S+): warning: missing (?:IBT|SHSTK)", done.stderr)
    assert [one for one in lacking if not one.startswith("/") or pathlib.Path(re.sub(r"\(.*", "", one)).is_relative_to(BUILD)] == []
    marked = "x86 feature: IBT, SHSTK" in subprocess.run(["readelf", "-nW", tmp_path / "linked"], capture_output=True, text=True, check=True).stdout
    assert marked == (lacking == [])


def test_what_a_wheel_is_linked_with_is_compiled_likewise():
    asked = re.search(r"get_supported_arguments\(('-fstack-protector.*?)\)", (SOURCE / "meson.build").read_text(encoding="utf-8"))[1]
    wanted = set(re.findall(r"'(-f[^']+)'", asked))
    assert len(wanted) == 3 and wanted <= {*portable.FLAGS, *portable.FLAGS_OF["x86_64"]}
    assert wanted - {"-fcf-protection=full"} <= {*portable.FLAGS, *portable.FLAGS_OF["aarch64"]}
