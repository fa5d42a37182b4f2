"""Import stubs for two packages that SGLang needs a GPU for: `sgl_kernel` and `torchvision`.

`install_sglang.py` copies this file into the engine's site-packages and loads it from a `.pth` line, so that every
process of the engine has it. SGLang's HTTP server, tokenizer manager, scheduler and detokenizer are then the real ones,
and its torch-native attention computes on the CPU; only what would call a CUDA kernel gets an inert object.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

STUBBED = ("sgl_kernel", "torchvision")


class Inert(type):
    """A class whose attributes, calls and subscripts are inert too, so that it stands for any function or constant."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return make(name)


def make(name: str) -> Any:
    members: dict[str, Any] = {
        "__init__": lambda self, *args, **more: None,
        "__class_getitem__": lambda cls, item: make(name),
    }
    return Inert(name, (), members)


class StubModule(ModuleType):
    """A module that has every attribute, except those that tell what kind of module it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = make(name)
        setattr(self, name, value)
        return value


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers every import of the stubbed packages and of anything below them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in STUBBED:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to execute."""


if not any(type(finder).__name__ == "Stubs" for finder in sys.meta_path):
    sys.meta_path.insert(0, Stubs())
