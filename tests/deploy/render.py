"""The chart as Helm renders it (its own library, from PyPI: no command of Helm's is in Debian).

render.py    writes packaging/kubernetes/plain/, which is what the chart says without values
"""
import pathlib

CHART = pathlib.Path(__file__).resolve().parent.parent.parent / "packaging/kubernetes/mooncake"
PLAIN = CHART.parent / "plain"
HEAD = "# What the chart mooncake says by default, for those who use no Helm: kubectl apply -f plain/    (written by ./dev manifests)\n"


def parts(values):
    """{etcd.yaml: text, ...}"""
    import helm_python
    with helm_python.Chart.load(str(CHART)) as chart:
        found = chart.render(values, name="mooncake", namespace="default")
    return {pathlib.Path(name).name: text.lstrip("\n") for name, text in sorted(found.items()) if name.endswith(".yaml") and text.strip()}


def manifest(values):
    return "---\n".join(parts(values).values())


def plain():
    return {name: HEAD + text for name, text in parts({}).items()}


if __name__ == "__main__":
    for place, content in plain().items():
        (PLAIN / place).write_text(content, encoding="utf-8")
