"""Parts of libraries whose whole cannot be imported with today's transformers: their packages as plain folders, without __init__.py."""
import importlib.machinery
import sys
import types


def leave_bare(*names):
    """The folders of these packages, outer ones first."""
    for name in names:
        outer, _, inner = name.rpartition(".")
        spec = importlib.machinery.PathFinder.find_spec(inner, sys.modules[outer].__path__ if outer else None)
        if spec is None:
            raise ModuleNotFoundError(f"no package {name}")
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = list(spec.submodule_search_locations)
