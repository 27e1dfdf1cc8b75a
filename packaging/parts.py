"""What is linked in statically, from one table: the text behind --version --verbose, and the list that scanners read (CycloneDX 1.5, JSON).

parts.py OUTPUT.c OUTPUT.json VERSION [NAME VERSION SOURCE]...     each library of PARTS once; SOURCE: "" or a Debian release, whose source it is

The build calls it with the versions that it has found. Licence texts lie in licenses/NAME.txt, which wheels carry.
"""
import json
import sys

OURS, OUR_LICENSE = "mooncake-transfer-engine", "Apache-2.0"
# name: (licence by SPDX, where it comes from)
PARTS = {
    "hiredis": ("BSD-3-Clause", "https://github.com/redis/hiredis"),
    "libevent": ("BSD-3-Clause", "https://libevent.org"),
    "libyaml": ("MIT", "https://pyyaml.org/wiki/LibYAML"),
    "pcre2": ("BSD-3-Clause", "https://www.pcre.org"),
    "xxhash": ("BSD-2-Clause", "https://xxhash.com"),
    "zlib": ("Zlib", "https://zlib.net"),
}


def identity(name, version, source):
    """As package URLs spell it, by which scanners find what is known to be wrong with it."""
    kind = f"deb/debian/{name}@{version}?arch=source&distro={source}" if source else f"generic/{name}@{version}"
    return "pkg:" + kind.replace("+", "%2B")


def make_list(version, found):
    """The CycloneDX document: no time and no random number, so that two builds of one source have the same bytes."""
    components = []
    for name, of, source in found:
        license_id, website = PARTS[name]
        components.append({"type": "library", "bom-ref": identity(name, of, source), "name": name, "version": of, "licenses": [{"license": {"id": license_id}}],
                           "purl": identity(name, of, source), "externalReferences": [{"type": "website", "url": website}]})
    ours = {"type": "application", "bom-ref": OURS, "name": OURS, "version": version, "licenses": [{"license": {"id": OUR_LICENSE}}]}
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": ours}, "components": components,
            "dependencies": [{"ref": OURS, "dependsOn": [part["bom-ref"] for part in components]}, *({"ref": part["bom-ref"]} for part in components)]}


def make_text(found):
    lines = "".join(f'\n    "  {name} {version} ({PARTS[name][0]}{", Debian " + source if source else ""})\\n"' for name, version, source in found)
    return f'#include "base/build.h"\n\nconst char *mc_build_parts(void)\n{{\n    return{lines};\n}}\n'


def main(code, document, version, *words):
    found = sorted(zip(words[::3], words[1::3], words[2::3]))
    if [name for name, _, _ in found] != sorted(PARTS) or not all(of for _, of, _ in found):
        sys.exit(f"parts.py: {sorted(PARTS)} are expected, each with a version, not {found}")
    with open(code, "w", encoding="ascii") as file:
        file.write(make_text(found))
    with open(document, "w", encoding="ascii") as file:
        json.dump(make_list(version, found), file, indent=2)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
