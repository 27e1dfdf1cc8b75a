"""Pages of the site that no file is: the C interfaces of the headers, the Python package of its stubs, the HTTP interfaces of the OpenAPI documents."""
import ast
import json
import re
import subprocess
import sys

HEADERS = ("mooncake.h", "mooncake_engine.h", "store_c.h", "transfer_engine_c.h")
STUBS = ("store", "engine")
DECLARED = re.compile(r"API [^;{]*?\b([a-zA-Z]\w+)\(|^(?:struct|enum) (\w+) \{|^typedef [^;{]*?\b(\w+)(?:\(|;)", re.M)


def pages(source, python_path):
    sys.path.insert(0, str(source / "bench"))
    import report  # noqa: PLC0415: what it reads lies in that checkout
    return {"reference/figures.md": report.markdown(source / "bench"), "reference/c.md": c_page(source), "reference/python.md": python_page(source, python_path), "reference/master.md": http_page(source / "docs/openapi-master.json"),
            "reference/store.md": http_page(source / "docs/openapi-store.json")}


# ---- C ----

def blocks(text):
    """A header in pieces: a comment and what it is about, or what stands together between empty lines."""
    found, now, depth, is_comment, has_code = [], [], 0, False, False
    for line in text.splitlines():
        starts = line.startswith("/*")
        if depth == 0 and not is_comment and now and (not line.strip() or (starts and has_code)):
            found.append("\n".join(now))
            now, has_code = [], False
        if not line.strip() and not now:
            continue
        now.append(line)
        if starts or is_comment:
            is_comment = "*/" not in line
            continue
        has_code = True
        if not line.startswith("#"):
            code = re.sub(r"/\*.*?(\*/|$)|extern \"C\" \{", "", line)
            depth = max(0, depth + code.count("{") - code.count("}"))
    return found + ["\n".join(now)] * bool(now)


def c_page(source):
    """Each header: what it says of itself, then what it declares, with a heading for each piece."""
    parts = ["# C API\n\nThe public headers, whole. How to compile and link: [bindings.md](../docs/bindings.md).\n"]
    for name in HEADERS:
        pieces = blocks((source / "include" / name).read_text())
        about = "\n".join(re.sub(r"^( ?\*/?|/\*)", "", line) for line in pieces[0].split("*/")[0].splitlines()[1:])
        parts.append(f"## {name}\n\n```\n{about.strip(chr(10))}\n```\n")
        for piece in pieces[1:]:
            names = [next(filter(None, found)) for found in DECLARED.findall(piece)]
            if names or "#define MC_ERROR_MAP" in piece:
                parts.append(f"### {', '.join(names) or 'enum mc_error'}\n\n```c\n{piece}\n```\n")
    return "\n".join(parts)


# ---- Python ----

# Printed by a Python that has the package: what its own docstrings say, as JSON. The first paragraph of an extension's is its signature.
ASK = """
import importlib, inspect, json, sys
found = {}
for name in sys.argv[1:]:
    module = importlib.import_module("mooncake." + name)
    found[name] = inspect.getdoc(module)
    for outer, one in vars(module).items():
        if callable(one):
            found[f"{name}.{outer}"] = inspect.getdoc(one)
        if inspect.isclass(one):
            for inner in dir(one):
                found[f"{name}.{outer}.{inner}"] = inspect.getdoc(getattr(one, inner))
print(json.dumps({name: text for name, text in found.items() if text}))
"""


def signature(node, overloads):
    lines = []
    for one in overloads:
        bare = ast.unparse(ast.FunctionDef(name=one.name, args=one.args, body=[ast.Expr(ast.Constant(...))], decorator_list=[], returns=one.returns, lineno=0))
        lines.append(re.sub(r":\s*\.\.\.$", "", bare))
    is_property = any(isinstance(name, ast.Name) and name.id == "property" for name in node.decorator_list)
    return "\n".join(("@property\n" if is_property else "") + line for line in lines)


def members(body):
    """[(name, [definitions])] of what is public, in the order of the stub."""
    found = {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (not node.name.startswith("_") or node.name == "__init__"):
            found.setdefault(node.name, []).append(node)
    return found.items()


def quoted(text):
    """A docstring, as it is written."""
    return f"```text\n{text}\n```\n" if text else ""


def python_page(source, python_path):
    said = json.loads(subprocess.run([sys.executable, "-B", "-c", ASK, *STUBS], env={"PYTHONPATH": str(python_path)}, check=True, capture_output=True, text=True).stdout)
    parts = ["# Python API\n\nNames and types of the stubs in `python/mooncake`, and what the docstrings of the package say. The same with examples: "
             "[python.md](../docs/python.md).\n"]
    for stub in STUBS:
        module = ast.parse((source / "python" / "mooncake" / f"{stub}.pyi").read_text())
        parts += [f"## mooncake.{stub}\n", quoted(said.get(stub))]
        for name, nodes in members(module.body):
            parts += [f"### {stub}.{name}\n", f"```python\n{signature(nodes[0], nodes)}\n```\n", quoted(said.get(f"{stub}.{name}"))]
        for node in (one for one in module.body if isinstance(one, ast.ClassDef) and not one.name.startswith("_")):
            parts += [f"### {stub}.{node.name}\n", quoted(ast.get_docstring(node) or said.get(f"{stub}.{node.name}"))]
            values = [ast.unparse(one) for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign))]
            parts += ["```python\n" + "\n".join(values) + "\n```\n"] * bool(values)
            for name, nodes in members(node.body):
                parts += [f"#### {stub}.{node.name}.{name}\n", f"```python\n{signature(nodes[0], nodes)}\n```\n", quoted(said.get(f"{stub}.{node.name}.{name}"))]
    return "\n".join(parts)


# ---- HTTP ----

def http_page(path):
    document = json.loads(path.read_text())
    parts = [f"# {document['info']['title']}\n\n{document['info']['description']}\n\nAs OpenAPI 3.1: [{path.name}](../docs/{path.name})\n"]
    for route, calls in document["paths"].items():
        for method, call in calls.items():
            parts.append(f"## {method.upper()} {route}\n\n{call['summary']}.\n")
            if "x-right" in call:
                parts.append(f"Right: `{call['x-right']}`\n")
            rows = [f"| `{one['name']}` | {one['in']} | {one['description']} |" for one in call.get("parameters", ())]
            for name, schema in body_of(document, call).get("properties", {}).items():
                rows.append(f"| `{name}` | body | {schema['description']} |")
            parts += ["| parameter | in | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"] * bool(rows)
            parts.append("| status | answer |\n|---|---|\n" + "\n".join(f"| {code} | {answer['description']} |" for code, answer in call["responses"].items()) + "\n")
    return "\n".join(parts)


def body_of(document, call):
    """The schema of a call's body, {} without one."""
    schema = next(iter(call.get("requestBody", {}).get("content", {}).values()), {}).get("schema", {})
    return document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
