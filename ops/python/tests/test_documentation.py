"""Examples in docstrings, in the README and in the book run."""

import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import autobwd

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
