"""docs/operations.md: its commands are run as they stand there, and its tables are the source's."""
import re
import sys

from cluster import BUILD
from scene import Scene
from test_documents import SOURCE, document, metrics_of, names, of_the_master, rows, section

sys.path.insert(0, str(SOURCE / "packaging"))

import manual  # noqa: E402

PAGE = document("docs/operations.md")


def blocks():
    return [block.strip() for block in re.findall(r"^```\n(.*?)^```$", PAGE, re.M | re.S)]


def test_commands(tmp_path):
    """All of them, in their order, in one shell; each line says what is there."""
    with Scene(tmp_path, ports=[50051, 9003, 8081, 8082]) as scene:
        scene.start(scene.text("mooncake_master"), "HTTP metrics server started")
        node = scene.text("mc_store_rest_server --port 8081 -Dmaster_server_address=127.0.0.1:50051 -Dlocal_hostname=127.0.0.1 -Dglobal_segment_size=64mb -Dlocal_buffer_size=16mb")
        scene.start(node, "REST API started")
        scene.run(scene.text("""curl -sf -X PUT 127.0.0.1:8081/api/put -d '{"key": "a", "value": "b"}'"""))
        scene.start(node.replace(scene.text("8081"), scene.text("8082")), "REST API started")
        lines = [line for block in blocks() for line in block.splitlines()]
        assert len(lines) == 16 and all(re.match(r"curl |mooncake_doctor |mooncake |(NODE|JOB)=\$\(curl ", line) for line in lines)
        script = "\n".join(f"echo; echo '# {i}'; {scene.text(line)} || echo failed" for i, line in enumerate(lines))
        answers = [answer.strip() for answer in re.split(r"^# \d+\n", scene.run(script), flags=re.M)[1:]]
        assert len(answers) == len(lines) and not any(answer.endswith("failed") for answer in answers[1:]), answers
        assert "\n0 broken" in answers[0] and "segments  2; " in answers[1] and len(answers[2].splitlines()) == 3 and "Storage:" in answers[3] and len(answers[4].splitlines()) == 2 and answers[5].splitlines().count("OK") == 2 and answers[6].startswith("found ") and "\nadvice " in answers[6], answers
        assert answers[9].splitlines()[0] in ("RUNNING", "SUCCEEDED") and answers[10] in ("DRAINING", "DRAINED") and answers[11] in ("CANCELED", "null"), answers
        assert answers[12].splitlines() == ["true", scene.text("0.0.0.0:50051")] and answers[13] == "serving", answers
        assert answers[14] == "null" and answers[15].splitlines() == ["ok", "leader", "true"], answers[14:]


def test_every_error_has_a_row():
    table = {names(cells[1])[0]: int(cells[0]) for cells in ([cell.strip() for cell in line.strip("|").split(" | ")] for line in section(PAGE, "By error code").splitlines()
                                                            if re.match(r"\| -\d+ \|", line))}
    known = {name: int(value) for name, value in re.findall(r"^    X\(([A-Z_]+), (-\d+)", document("include/mooncake.h"), re.M)}
    assert len(known) > 40 and table == known


def test_metrics_that_are_named():
    """Those of the alerts, and all others that the page speaks of, are metrics of the master."""
    text = of_the_master(document("docs/metrics.md"))
    known = {name for cells in metrics_of(text.replace(section(text, "Always 0"), "")) for name in names(cells[0])}
    rules = re.sub(r"annotations:\n(?: {10}.*\n)+", "", document("packaging/monitoring/alerts.yml")).replace("mooncake_proxy_instance_up", "")
    alerts = set(re.findall(r"\b((?:mooncake|master)_\w+)", " ".join(re.findall(r"expr: (?:>\n(?: {10}.*\n)+|.*)", rules))))
    spoken = set(re.findall(r"`((?:mooncake_(?!doctor|bench|disk|client|master|proxy|key)|master_)\w+)`", PAGE))
    assert len(alerts) > 15 and alerts | spoken <= known, (alerts | spoken) - known


def test_every_alert_has_a_row():
    table = [names(cells[0])[0] for cells in rows(section(PAGE, "Alerts"))]
    assert len(table) > 10 and table == re.findall(r"- alert: (\w+)", document("packaging/monitoring/alerts.yml"))


def test_flags_and_ports():
    """Each port of the table is the default of the flag beside it."""
    commands = {"master": ["mooncake_master"], "metadata server": ["mooncake_http_metadata_server"], "store service": ["mc_store_rest_server"],
                "store service, mooncake_client": ["mc_store_rest_server", "mooncake_client"], "mooncake_client": ["mooncake_client"], "proxy": ["mooncake_proxy"]}
    looked_at = 0
    for cells in ([cell.strip() for cell in line.strip("|").split(" | ")] for line in section(PAGE, "Ports").splitlines() if line.startswith("| ")):
        for flag, command in zip(re.findall(r"`--(\w+)`", cells[2]), commands.get(cells[0], ())):
            _, sections = manual.parsed(manual.everything(BUILD, [command]))
            [option] = [one for _, options in sections for one in options if one.name == flag]
            assert option.default == cells[1], cells
            looked_at += 1
    assert looked_at == 9
