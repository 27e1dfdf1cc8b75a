"""Manual pages and completion: those that are kept are what --help says now, and bash offers what a word may become."""
import gzip
import os
import pathlib
import re
import shlex
import subprocess
import sys

from cluster import BUILD

sys.path.insert(0, str(pathlib.Path(os.environ["MC_SOURCE"]) / "packaging"))

import async_stub  # noqa: E402
import deb  # noqa: E402
import manual  # noqa: E402


def test_the_manual_is_what_help_says():
    made = manual.made(BUILD)
    kept = {str(path.relative_to(manual.TARGET)): path.read_text() for path in manual.TARGET.rglob("*") if path.is_file()}
    assert set(kept) == set(made)
    assert [path for path in made if kept[path] != made[path]] == [], "./dev docs writes them anew"
    assert len(made) > 25 and "--eviction_policy" in made["completion/mooncake_master"] and "\\-\\-eviction_policy=s3fifo|clock|lru" in made["man1/mooncake_master.1"]
    assert set(manual.COMMANDS) == {path.name for path in BUILD.iterdir() if path.is_file() and os.access(path, os.X_OK) and re.match(r"mooncake$|(mooncake|mc|transfer_engine)_\w+$", path.name)}


def test_the_awaited_forms_are_those_of_the_stub():
    made = async_stub.made()
    assert async_stub.TARGET.read_text() == made, "./dev docs writes it anew"
    assert made.count("    async def async_") > 80 and "async def async_put(self, key: _Key, value: _Bytes," in made


def completed(*words):
    """What bash offers for the last word."""
    script = f". {shlex.quote(str(manual.TARGET / 'completion' / words[0]))}\nCOMP_WORDS=({' '.join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}\n_{words[0]}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-euc", script.replace(f"\n_{words[0]}\n", f"\n_{words[0]} || true\n")], capture_output=True, text=True, check=True, timeout=30).stdout.split()


def test_completion():
    assert completed("mooncake_master", "--evic") == ["--eviction_policy", "--eviction_ratio", "--eviction_high_watermark_ratio"]
    assert completed("mooncake_master", "--eviction_policy", "=", "s") == ["s3fifo"]
    assert completed("mooncake_master", "--eviction_policy", "=") == ["s3fifo", "clock", "lru"]
    assert completed("mooncake_master", "--eviction_policy", "l") == ["lru"]
    assert completed("mooncake_master", "--config_path", "--") == []  # a file: bash itself
    assert completed("mooncake_master", "--print_config", "--auth") == ["--auth_file"]
    assert completed("mooncake_bench", "re") == ["replay"]
    assert completed("mooncake", "") == ["status", "nodes", "keys", "events", "slow", "misses", "drain", "undrain", "top"] and completed("mooncake", "un") == ["undrain"]
    assert completed("mooncake", "nodes", "--sort", "=", "u") == ["use"] and completed("mooncake_key", "re") == ["revoke"] and completed("mooncake_disk", "c") == ["check"]
    assert completed("mooncake_bench", "policy", "--synth") == ["--synthetic"] and completed("mooncake_bench", "replay", "--synth") == []
    assert completed("mooncake_bench", "engine", "--path", "=", "r") == ["rdma"]
    assert completed("mooncake_bench", "replay", "--path", "=", "r") == []
    for name in manual.COMMANDS:
        subprocess.run(["bash", "-nu", str(manual.TARGET / "completion" / name)], check=True, timeout=30)


def test_the_package_has_them():
    files = deb.files_of({})
    for path in manual.TARGET.glob("*/*"):
        content, mode = files[f"usr/share/man/man1/{path.name}.gz" if path.suffix == ".1" else f"usr/share/bash-completion/completions/{path.name}"]
        assert mode == 0o644 and (gzip.decompress(content) if path.suffix == ".1" else content) == path.read_bytes()


def test_every_command_answers():
    """-h as --help, --version; a flag that there is not ends what serves with 1, as the original, and what looks or measures with 2."""
    serves = {"mooncake_master", "mooncake_client", "mc_store_rest_server", "mooncake_http_metadata_server", "mooncake_proxy"}
    for words in [[name] for name in manual.COMMANDS] + [["mooncake_bench", name] for name in manual.OF_BENCH]:
        def ask(*more):
            return subprocess.run([str(BUILD / words[0]), *words[1:], *more], capture_output=True, text=True, timeout=30)
        asked, shown = ask("-h"), ask("--help")
        assert (asked.returncode, asked.stdout, asked.stderr) == (0, shown.stdout, "") and shown.stdout, words
        bad = ask("--no-such-flag=1")
        assert bad.returncode == (1 if words[0] in serves else 2) and "no-such-flag" in bad.stderr and bad.stdout == "", (words, bad)
