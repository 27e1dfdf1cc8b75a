"""packaging/parts.py: what is linked in, its licences, and the list of it."""
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "packaging"))
import parts  # noqa: E402

FOUND = [word for name in parts.PARTS for word in (name, "1.2+3-4", "bookworm" if name == "zlib" else "")]


def test_the_list_and_the_text_name_the_same(tmp_path):
    parts.main(tmp_path / "a.c", tmp_path / "a.json", "1+c1", *FOUND)
    document = json.loads((tmp_path / "a.json").read_text(encoding="ascii"))
    assert document["metadata"]["component"]["version"] == "1+c1"
    assert [part["name"] for part in document["components"]] == sorted(parts.PARTS)
    code = (tmp_path / "a.c").read_text(encoding="ascii")
    for part in document["components"]:
        assert f'"  {part["name"]} {part["version"]} ({part["licenses"][0]["license"]["id"]}' in code
    assert "pkg:deb/debian/zlib@1.2%2B3-4?arch=source&distro=bookworm" in {part["purl"] for part in document["components"]}
    refs = {part["bom-ref"] for part in document["components"]} | {parts.OURS}
    assert {entry["ref"] for entry in document["dependencies"]} == refs == set(document["dependencies"][0]["dependsOn"]) | {parts.OURS}


@pytest.mark.parametrize("words", [FOUND[3:], [*FOUND, "other", "1", ""], [FOUND[0], "", *FOUND[2:]]])
def test_a_library_that_is_not_known_or_has_no_version_stops_the_build(tmp_path, words):
    with pytest.raises(SystemExit):
        parts.main(tmp_path / "a.c", tmp_path / "a.json", "1", *words)


def test_each_library_has_its_licence_and_is_in_the_notice():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "packaging/licenses").glob("*.txt")}
    assert texts.keys() == parts.PARTS.keys()
    assert all(re.search("copyright", text, re.I) and len(text) > 500 for text in texts.values())
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8").lower()
    assert [name for name in parts.PARTS if f"  {name} " not in notice] == []
