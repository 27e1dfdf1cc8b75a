#!/usr/bin/env python3
"""The stub of mooncake.async_store out of that of mooncake.store: async_stub.py writes python/mooncake/async_store.pyi anew.

The module makes its methods when they are asked for, so no type checker can see them. A test compares the file with what this makes now.
"""
import ast
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "python" / "mooncake"
TARGET = PACKAGE / "async_store.pyi"
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Types of mooncake.async_store. Made by packaging/async_stub.py of store.pyi."""

{imports}

class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """MooncakeDistributedStore with an ``async_`` form of each of its methods."""

    async def __aenter__(self) -> "MooncakeDistributedStoreAsync": ...
    async def __aexit__(self, *exception: object) -> None: ...
'''


def made():
    stub = ast.parse((PACKAGE / "store.pyi").read_text())
    [store] = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "MooncakeDistributedStore"]
    methods = [node for node in store.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    used = {name.id for method in methods for name in ast.walk(method) if isinstance(name, ast.Name)}
    ours = {node.name for node in stub.body if isinstance(node, ast.ClassDef)} | {target.id for node in stub.body if isinstance(node, ast.Assign) for target in node.targets}
    imports = []
    for node in (one for one in stub.body if isinstance(one, ast.ImportFrom)):
        names = sorted(alias.name for alias in node.names if alias.name in used)
        imports += [f"from {node.module} import {', '.join(names)}"] * bool(names)
    imports.append(f"from mooncake.store import {', '.join(sorted(used & ours | {'MooncakeDistributedStore'}))}")
    lines = []
    for method in methods:
        lines += ["    @overload"] * any(ast.unparse(one) == "overload" for one in method.decorator_list)
        lines.append(f"    async def async_{method.name}({ast.unparse(method.args)}) -> {ast.unparse(method.returns)}: ...")
    return HEAD.format(imports="\n".join(imports)) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(made())
