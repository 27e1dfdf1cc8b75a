#!/usr/bin/env python3
"""Builds Debian's package of the commands of the portable wheels and the units of systemd/: deb.py CACHE TARGET [ARCHITECTURE...]

CACHE is that of portable.py, which has built the wheels there. The package needs glibc alone, of portable.py's floor or newer, so it is one for all
releases of Debian and Ubuntu that have it. The same commands give the same bytes (image.py's SOURCE_DATE_EPOCH).
"""
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

import image
import portable

HERE = pathlib.Path(__file__).resolve().parent
CONTROL = """Package: mooncake
Version: {version}
Architecture: {platform}
Maintainer: Mooncake in C <mooncake@localhost>
Section: net
Priority: optional
Depends: libc6 (>= {glibc})
Recommends: systemd
Suggests: libibverbs1, librdmacm1, ibverbs-providers
Installed-Size: {size}
Description: pool of memory for KV cache of inference clusters
 A master knows where each object lies, store nodes lend memory, clients move
 bytes straight between their own memory and a node's. This package has the
 commands, their settings in /etc/mooncake and a unit of systemd for each; none
 is started until it is enabled.
"""


def files_of(commands):
    """{path in the package: (content, mode)}"""
    found = {f"usr/bin/{name}": (content, 0o755) for name, content in commands.items()}
    for path in sorted((HERE / "systemd").glob("*.service")):
        found[f"usr/lib/systemd/system/{path.name}"] = path.read_bytes(), 0o644
    found["usr/lib/sysusers.d/mooncake.conf"] = (HERE / "systemd/mooncake.sysusers").read_bytes(), 0o644
    for path in sorted((HERE / "deb/etc").iterdir()):
        found[f"etc/mooncake/{path.name}"] = path.read_bytes(), 0o640 if path.suffix == ".env" else 0o644
    for path in sorted((HERE / "manual/man1").iterdir()):
        found[f"usr/share/man/man1/{path.name}.gz"] = gzip.compress(path.read_bytes(), mtime=0), 0o644
    for path in sorted((HERE / "manual/completion").iterdir()):
        found[f"usr/share/bash-completion/completions/{path.name}"] = path.read_bytes(), 0o644
    for pattern in ("*.yml", "dashboards/*.json"):
        for path in sorted((HERE / "monitoring").glob(pattern)):
            found[f"usr/share/mooncake/monitoring/{path.relative_to(HERE / 'monitoring')}"] = path.read_bytes(), 0o644
    found["usr/share/doc/mooncake/copyright"] = image.copyright_text(), 0o644
    return found


def build(cache, target, architecture):
    files, platform = files_of(image.commands_of(image.wheel_of(cache, architecture))), image.PLATFORMS[architecture]
    kept = [f"/{path}" for path in files if path.startswith("etc/")]
    control = CONTROL.format(version=image.version(), platform=platform, glibc=".".join(map(str, portable.GLIBC)),
                             size=sum(-(-len(content) // 1024) for content, _ in files.values()))
    texts = {"control": (control.encode(), 0o644), "conffiles": ("".join(f"{path}\n" for path in kept).encode(), 0o644)}
    texts.update({name: ((HERE / "deb" / name).read_bytes(), 0o755) for name in ("postinst", "prerm", "postrm")})
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for path, (content, mode) in {**files, **{f"DEBIAN/{name}": text for name, text in texts.items()}}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
            (root / path).chmod(mode)
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
            os.utime(path, (image.epoch(), image.epoch()))
        made = target / f"mooncake_{image.version()}_{platform}.deb"
        portable.run("dpkg-deb", "--build", "--root-owner-group", "-Zxz", root, made, env={**os.environ, "SOURCE_DATE_EPOCH": str(image.epoch())})
    print(f"{made.name}: {made.stat().st_size / 1e6:.1f} MB")
    return made


def main(cache, target, *architectures):
    target = pathlib.Path(target)
    target.mkdir(parents=True, exist_ok=True)
    for architecture in architectures or image.PLATFORMS:
        build(pathlib.Path(cache).resolve(), target, architecture)


if __name__ == "__main__":
    main(*sys.argv[1:])
