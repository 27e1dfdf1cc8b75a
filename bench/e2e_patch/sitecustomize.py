"""Patches one module of an engine right after it was imported. Python imports this by itself in a server that has this folder on its PYTHONPATH;
E2E_PATCH names the file beside it that holds MODULE, the module's name, and patch(module).
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys

PATCH = importlib.import_module(os.environ["E2E_PATCH"])


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != PATCH.MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            PATCH.patch(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
