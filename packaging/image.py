#!/usr/bin/env python3
"""Builds the container image from the commands of the portable wheels and a few files of Debian 12, without a container engine.

image.py CACHE TARGET [ARCHITECTURE...]     TARGET/mooncake-VERSION-ARCHITECTURE.tar, which `docker load`, podman and skopeo read
image.py CACHE --rootfs FOLDER [ARCHITECTURE]    its files alone, into an empty folder (image/Dockerfile)

CACHE is that of portable.py, which has built the wheels there. The same commands and packages give the same bytes: names are sorted, times are
SOURCE_DATE_EPOCH's (else the last commit's), owners are numbers. image/Dockerfile says the same settings once more, and a test compares them.
"""
import datetime
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import portable

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEALTH = ROOT / "packaging/image/health"
USER = 65532
STATE = "var/lib/mooncake"
PACKAGE = "usr/share/mooncake/python"  # for pods of engines, which copy it; the image itself has no Python
PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}  # as Debian and container engines call them
COMMANDS = ("mooncake", "mooncake_master", "mc_store_rest_server", "mooncake_client", "mooncake_http_metadata_server", "mooncake_proxy", "mooncake_doctor", "mooncake_disk", "mooncake_key",
            "mooncake_bench", "transfer_engine_bench", "transfer_engine_topology_dump")
# Of each package what begins so; {lib} is the architecture's folder of libraries.
PACKAGES = {
    "libc6": ("{lib}/ld-linux", "{lib}/libc.so", "{lib}/libm.so", "{lib}/libpthread.so", "{lib}/libdl.so", "{lib}/librt.so", "{lib}/libresolv.so",
              "{lib}/libnss_dns.so", "{lib}/libnss_files.so", "usr/lib64/", "usr/lib/ld-linux"),
    "libibverbs1": ("{lib}/",), "ibverbs-providers": ("{lib}/", "etc/libibverbs.d/"), "librdmacm1": ("{lib}/",), "libnl-3-200": ("{lib}/",),
    "libnl-route-3-200": ("{lib}/",),  # RDMA, where there are devices
    "libssl3": ("{lib}/libssl.so", "{lib}/libcrypto.so"),  # TLS, where it is asked for
    "openssl": ("usr/bin/openssl",),  # for the health check by TLS 1.3, which busybox has not
    "busybox-static": ("usr/bin/busybox",),  # a shell for hooks, and to look around
}
APPLETS = "cat cp date df du env free grep head hostname id ip kill ls mkdir mv nc netstat nslookup ping ps rm sh sleep tail timeout top touch tr uname wc wget".split()
CONFIG = {
    "User": f"{USER}:{USER}", "Env": ["PATH=/usr/bin", f"HOME=/{STATE}"], "Cmd": ["mooncake_master"], "WorkingDir": f"/{STATE}", "StopSignal": "SIGTERM",
    "ExposedPorts": {"50051/tcp": {}, "9003/tcp": {}, "8080/tcp": {}},
    "Healthcheck": {"Test": ["CMD", "/usr/bin/health"], "Interval": 10_000_000_000, "Timeout": 5_000_000_000, "StartPeriod": 60_000_000_000, "Retries": 3},
}


def version():
    return next(line.split("'")[1] for line in (ROOT / "meson.build").read_text(encoding="utf-8").splitlines() if line.startswith("  version:"))


def epoch():
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    done = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False)
    return int(done.stdout or 0)


def wheel_of(cache, architecture):
    found = sorted((cache / architecture / "wheel").glob("*.whl"))
    if len(found) != 1:
        sys.exit(f"no wheel for {architecture} in {cache}: ./dev wheel portable {architecture}")
    return found[0]


def commands_of(wheel):
    """{name: content} of the commands in it."""
    with zipfile.ZipFile(wheel) as archive:
        scripts = {name.rsplit("/", 1)[1]: name for name in archive.namelist() if ".data/scripts/" in name}
        return {name: archive.read(scripts[name]) for name in COMMANDS}


def package_of(wheel):
    """{path: content} of what Python imports from it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".data/" not in name and not name.endswith("/")}


def copyright_text():
    """Ours, and those of what is linked in."""
    return b"\n".join(path.read_bytes() for path in (ROOT / "NOTICE", ROOT / "LICENSE", *sorted((ROOT / "packaging/licenses").glob("*.txt"))))


class Tree:
    """Files by their path without a slash in front. `add` makes the folders above."""

    def __init__(self):
        self.entries = {}

    def add(self, path, content=b"", mode=0o644, kind=tarfile.REGTYPE, target="", owner=0):
        above = pathlib.PurePosixPath(path).parent
        if str(above) != "." and str(above) not in self.entries:
            self.folder(str(above))
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.size, info.linkname, info.uid, info.gid, info.mtime = kind, mode, len(content), target, owner, owner, epoch()
        self.entries[path] = info, content

    def folder(self, path, mode=0o755, owner=0):
        self.add(path, mode=mode, kind=tarfile.DIRTYPE, owner=owner)

    def link(self, path, target):
        self.add(path, mode=0o777, kind=tarfile.SYMTYPE, target=target)

    def tar(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in sorted(self.entries):
                info, content = self.entries[path]
                archive.addfile(info, io.BytesIO(content))
        return out.getvalue()


def need_packages(cache, architecture):
    """{package: its file}, of today. Apt checks signatures and sums."""
    folder, platform = cache / "packages" / architecture, PLATFORMS[architecture]
    stamp, wanted = folder / "stamp", f"{' '.join(PACKAGES)} {datetime.date.today()}"
    if not portable.is_made(stamp, wanted):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.deb"):
            path.unlink()
        options = [*portable.apt_options(folder, "deb"), "-o", f"APT::Architecture={platform}", "-o", f"APT::Architectures={platform}",
                   "-o", "Dir::State::status=/dev/null"]
        portable.run("apt-get", *options, "-q", "update")
        portable.run("apt-get", *options, "-q", "download", *PACKAGES, cwd=folder)
        stamp.write_text(wanted, encoding="utf-8")
    return {name: next(folder.glob(f"{name}_*.deb")) for name in PACKAGES}


def merged(path):
    """Where a file of a package lies: Debian 12 has /bin, /lib and /lib64 in /usr."""
    path = path.removeprefix("./").rstrip("/")
    return f"usr/{path}" if path.split("/")[0] in ("bin", "sbin", "lib", "lib64") else path


def add_package(tree, name, path, library):
    wanted = tuple(prefix.format(lib=library) for prefix in PACKAGES[name])
    content = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for info in archive:
            place = merged(info.name)
            is_copyright = place == f"usr/share/doc/{name}/copyright"
            if not is_copyright and not place.startswith(wanted):
                continue
            if info.issym():
                tree.link(place, info.linkname)
            elif info.isfile():
                tree.add(place, archive.extractfile(info).read(), info.mode & 0o755)
    control = subprocess.run(["dpkg-deb", "--field", str(path)], capture_output=True, check=True).stdout
    tree.add(f"var/lib/dpkg/status.d/{name}", control)  # where scanners of images look


def root_of(cache, architecture):
    tree, library = Tree(), f"usr/lib/{architecture}-linux-gnu"
    for name, path in need_packages(cache, architecture).items():
        add_package(tree, name, path, library)
    for name in ("bin", "lib") + (("lib64",) if architecture == "x86_64" else ()):
        tree.link(name, f"usr/{name}")
    for name in APPLETS:
        tree.link(f"usr/bin/{name}", "busybox")
    for name, content in commands_of(wheel_of(cache, architecture)).items():
        tree.add(f"usr/bin/{name}", content, 0o755)
    for name, content in package_of(wheel_of(cache, architecture)).items():
        tree.add(f"{PACKAGE}/{name}", content)
    tree.add("usr/bin/health", HEALTH.read_bytes(), 0o755)
    tree.add("usr/share/doc/mooncake/copyright", copyright_text())
    tree.add("etc/passwd", f"root:x:0:0:root:/:/bin/sh\nmooncake:x:{USER}:{USER}:Mooncake:/{STATE}:/bin/sh\n".encode())
    tree.add("etc/group", f"root:x:0:\nmooncake:x:{USER}:\n".encode())
    tree.add("etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n")
    tree.add("etc/os-release", b'PRETTY_NAME="Mooncake in C, on files of Debian 12"\nNAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    for name in ("dev", "proc", "sys", "run"):
        tree.folder(name)
    tree.folder("tmp", 0o1777)
    tree.folder(STATE, owner=USER)
    return tree


def archive_of(layer, architecture):
    """The layer as an image that is both an OCI layout and what `docker load` reads."""
    said, created = version(), datetime.datetime.fromtimestamp(epoch(), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    layer_sum = hashlib.sha256(layer).hexdigest()
    labels = {"org.opencontainers.image.title": "mooncake", "org.opencontainers.image.version": said, "org.opencontainers.image.licenses": "Apache-2.0"}
    config = json.dumps({"architecture": PLATFORMS[architecture], "os": "linux", "created": created, "config": {**CONFIG, "Labels": labels},
                         "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_sum}"]},
                         "history": [{"created": created, "created_by": "packaging/image.py"}]}, sort_keys=True).encode()

    def described(kind, content):
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{hashlib.sha256(content).hexdigest()}", "size": len(content)}
    manifest = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": described("config.v1+json", config),
                           "layers": [described("layer.v1.tar", layer)]}, sort_keys=True).encode()
    tag = f"mooncake:{said.replace('+', '-')}"  # a tag has no plus
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
             "manifests": [{**described("manifest.v1+json", manifest), "annotations": {"org.opencontainers.image.ref.name": tag.split(":")[1],
                                                                                         "io.containerd.image.name": f"docker.io/library/{tag}"}}]}
    tree = Tree()
    for content in (layer, config, manifest):
        tree.add(f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", content)
    tree.add("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    tree.add("index.json", json.dumps(index, sort_keys=True).encode())
    tree.add("manifest.json", json.dumps([{"Config": f"blobs/sha256/{hashlib.sha256(config).hexdigest()}", "RepoTags": [tag],
                                           "Layers": [f"blobs/sha256/{layer_sum}"]}]).encode())
    return tree.tar()


def unpack(layer, folder):
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"image.py: {folder} is not empty")
    with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
        archive.extractall(folder, numeric_owner=True)
    folder.chmod(0o755)


def main(cache, *words):
    cache = pathlib.Path(cache).resolve()
    if words[:1] == ("--rootfs",):
        unpack(root_of(cache, (words[2:] or (os.uname().machine,))[0]).tar(), pathlib.Path(words[1]))
        return
    target = pathlib.Path(words[0])
    target.mkdir(parents=True, exist_ok=True)
    for architecture in words[1:] or PLATFORMS:
        layer = root_of(cache, architecture).tar()
        path = target / f"mooncake-{version().replace('+', '-')}-{architecture}.tar"
        path.write_bytes(archive_of(layer, architecture))
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
