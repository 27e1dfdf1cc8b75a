"""packaging/release.py on small repositories with steps of their own, the version's place among others, and the definitions for a public forge."""
import os
import pathlib
import re
import subprocess
import sys
import tarfile

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "packaging"))
import release  # noqa: E402

AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


@pytest.fixture(name="repository")
def make_repository(tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setattr(release, "ROOT", folder)
    for name, value in AUTHOR.items():
        monkeypatch.setenv(name, value)
    release.git("init", "--quiet", folder=folder)
    (folder / "file").write_text("text\n", encoding="ascii")
    release.git("add", "file", folder=folder)
    release.git("commit", "--quiet", "-m", "first", folder=folder)
    old = os.umask(0o022)  # make() sets it
    yield folder
    os.umask(old)


def make(tmp_path, *scripts):
    """make() with a step for each shell script, which leaves a file `made`."""
    steps = [release.Step(f"step{i}", "file", ("sh", "-euc", script), ("made",)) for i, script in enumerate(scripts)]
    return release.make(steps, tmp_path / "cache", tmp_path / "target", {})


@pytest.mark.usefixtures("repository")
def test_what_is_the_same_twice_is_released_with_its_sums(tmp_path, capsys):
    assert make(tmp_path, 'mkdir {out}/below; cp file {out}/below/; echo "$SOURCE_DATE_EPOCH" >{out}/made', "test -s {out}/made") == 0
    assert "2 files, built twice, the same bytes" in capsys.readouterr().out
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=tmp_path / "target", check=True)
    assert {str(path.relative_to(tmp_path / "target")) for path in (tmp_path / "target").rglob("*") if path.is_file()} == {"made", "below/file", "SHA256SUMS"}


@pytest.mark.parametrize("script", ["pwd >{out}/made", "date +%s%N >{out}/made", "date -d @0 >{out}/made",
                                    "date +%s%N >{out}/$(date +%s%N); touch {out}/made"])
@pytest.mark.usefixtures("repository")
def test_a_folder_a_time_a_time_zone_or_a_name_in_the_bytes_is_found(tmp_path, capsys, script):
    (tmp_path / "target").mkdir()
    (tmp_path / "target/old").touch()
    assert make(tmp_path, script) == 1
    assert "is not the same in both builds" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["old"]


@pytest.mark.usefixtures("repository")
def test_a_step_that_leaves_nothing_or_fails_is_no_release(tmp_path):
    with pytest.raises(SystemExit, match="step0 should have left one made, not 0"):
        make(tmp_path, "true")
    with pytest.raises(subprocess.CalledProcessError):
        make(tmp_path, "touch {out}/made; exit 3")
    assert not (tmp_path / "target").exists()


def test_only_what_is_committed_is_released(tmp_path, repository):
    (repository / "other").touch()
    with pytest.raises(SystemExit, match="not committed"):
        make(tmp_path, "touch {out}/made")


def test_the_changelog_groups_by_the_first_word():
    text = release.changelog("1.0", "2026-01-01", ["Disk: one", "Store: two", "plain", "Disk: three: four", "Wheels: five"])
    assert text == "# 1.0, 2026-01-01\n\n## Disk\n- one\n- three: four\n\n## Other\n- plain\n- Store: two\n- Wheels: five\n"


@pytest.mark.usefixtures("repository")
def test_a_step_whose_material_is_not_in_the_tree_is_left_out_and_said(tmp_path, capsys):
    steps = [release.Step("one", "file", ("touch", "{out}/made"), ("made",)), release.Step("two", "other", ("false",), ("more",))]
    assert release.make(steps, tmp_path / "cache", tmp_path / "target", {}) == 0
    assert capsys.readouterr().out.count(": two: left out, other is not in this tree\n") == 2


def test_the_chart_has_the_same_bytes_at_any_time(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    chart = tmp_path / "packaging/kubernetes/mooncake"
    (chart / "templates").mkdir(parents=True)
    (chart / "templates/a.yaml").write_text("a: 1\n", encoding="ascii")
    (chart / "Chart.yaml").write_text("name: mooncake\nversion: 1.2.3\n", encoding="ascii")
    made = []
    for time in (1, 2000000000):
        os.utime(chart / "Chart.yaml", (time, time))
        release.write_chart(tmp_path)
        made.append((tmp_path / "mooncake-1.2.3.tgz").read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "mooncake-1.2.3.tgz") as archive:
        assert archive.getnames() == ["mooncake/Chart.yaml", "mooncake/templates/a.yaml"]


def test_what_prometheus_and_grafana_are_given(tmp_path):
    release.write_monitoring(tmp_path)
    (path,) = tmp_path.glob("monitoring-*.tgz")
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
    assert {"monitoring/alerts.yml", "monitoring/prometheus.yml", "monitoring/dashboards/mooncake-pool.json"} <= names
    assert not any(name.endswith(".py") for name in names)


def test_the_steps_are_there():
    assert {"wheels", "sdist", "parts", "changelog", "toolchain"} <= {step.name for step in release.STEPS if (ROOT / step.made_of).exists()}
    for step in release.STEPS:
        script = next((word for word in step.command if re.fullmatch(r"[\w./-]+\.(py|sh)|\./dev", word)), None)
        assert script is None or (ROOT / script).is_file() == (ROOT / step.made_of).exists() or script == "packaging/release.py", step
        assert step.leaves, step
    assert re.fullmatch(r"[0-9a-f]{7,40}", release.released())


# ---- the version, beside the original's (docs/versions.md) ----

def test_pip_takes_ours_for_newer_than_the_original_that_it_replaces():
    ours = Version(release.version())
    assert ours.local is not None and ours.local.isalnum(), "the label tells it from the original"
    assert ours > Version("0.3.13.post1") and ours in SpecifierSet(">=0.3.6") and ours in SpecifierSet(f"=={ours.public}")
    assert Version(ours.public) < ours < Version(f"{ours.public}.post1"), "the original's own release of that number is older, its next is newer"


def test_labels_are_compared_as_text_so_they_end_at_nine():
    assert Version("1+c9") > Version("1+c10")
    assert re.fullmatch(r"c[1-9]", Version(release.version()).local)


# ---- the definitions for a public forge ----

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PREPARATION = {"apt-get update", "apt-get install -y git", "git config --global --add safe.directory '*'"}


def commands(workflow):
    return re.findall(r"^ *- run: (.*)$", workflow.read_text(encoding="utf-8"), re.M)


def test_a_forge_runs_what_is_here_and_nothing_of_its_own():
    ran = {command for workflow in WORKFLOWS for command in commands(workflow)}
    assert ran - PREPARATION == {".ci/run", "./dev check", "./dev release"}
    for workflow in WORKFLOWS:
        text = workflow.read_text(encoding="utf-8")
        assert len(re.findall(r"\brun:", text)) == len(commands(workflow)), f"{workflow.name}: a command that this test does not read"
    known = re.search(r"^    (demo \|.*)\)$", (ROOT / "dev").read_text(encoding="utf-8"), re.M)[1].split(" | ")
    for command in ran - PREPARATION:
        program, *words = command.split()
        assert os.access(ROOT / program, os.X_OK), command
        assert all(word in known for word in words), command
