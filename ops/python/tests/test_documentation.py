"""Examples in docstrings, in the README and in the book run; the stubs have the names and parameters of the module."""

import ast
import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import autobwd
from autobwd import _autobwd

PACKAGE = Path(__file__).parents[1]


def public():
    """All documented objects by name."""
    yield "autobwd", autobwd
    for name in autobwd.__all__:
        item = getattr(autobwd, name)
        if name.startswith("__"):
            continue
        yield name, item
        if inspect.isclass(item) and item is not autobwd.Error:
            yield from ((f"{name}.{member}", value) for member, value in vars(item).items() if member[0] != "_")


@pytest.mark.parametrize("name, item", list(public()))
def test_docstrings_say_something_and_their_examples_run(name, item):
    assert item.__doc__, name
    names = {"np": np, "autobwd": autobwd}
    example = doctest.DocTestParser().get_doctest(item.__doc__, names, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(example).failed == 0


@pytest.mark.parametrize("page", ["README.md", "../../autobwd/book/src/from-python.md"])
def test_listings_run(page):
    blocks = re.findall(r"```python\n(.*?)```", (PACKAGE / page).read_text(), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        exec(block, names)


def parameters(function):
    """The names of a stub's parameters."""
    arguments = function.args
    every = arguments.posonlyargs + arguments.args + [arguments.vararg] + arguments.kwonlyargs + [arguments.kwarg]
    return [argument.arg for argument in every if argument and argument.arg not in ("self", "cls")]


def test_stubs_have_the_names_and_parameters_of_the_module():
    def compare(stub, owner, name):
        if isinstance(stub, ast.ClassDef):
            members = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
            own = {member for member in vars(owner) if member[0] != "_"}
            assert {node.name for node in members if node.name[0] != "_"} == own, name
            for node in members:
                compare(node, getattr(owner, node.name), f"{name}.{node.name}")
        elif not stub.decorator_list and not name.endswith("__call__"):
            callable_ = owner if not name.endswith("__new__") else getattr(autobwd, name.split(".")[0])
            found = [p for p in inspect.signature(callable_).parameters if p != "self"]
            assert parameters(stub) == found, name

    stubs = ast.parse((Path(autobwd.__file__).parent / "_autobwd.pyi").read_text()).body
    described = {node.name: node for node in stubs if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    for name in [name for name in described if not name.startswith("_")]:
        compare(described[name], getattr(_autobwd, name), name)
    assert set(autobwd.__all__) - {"__version__"} <= set(described)
