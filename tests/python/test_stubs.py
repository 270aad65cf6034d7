"""_C.pyi, from which type checkers know the extension, has the names that the extension has."""

import ast
import pathlib

import headlab
from headlab import _C


def public(names):
    return {name for name in names if not name.startswith("_") and name != "pybind11_builtins"}


def test_the_stub_of_the_extension_names_what_it_has():
    package = pathlib.Path(headlab.__file__).parent
    tree = ast.parse((package / "_C.pyi").read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    numbers = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert functions | numbers | set(classes) == public(vars(_C))
    for name, node in classes.items():
        assert public(part.name for part in node.body if isinstance(part, ast.FunctionDef)) == \
            public(vars(getattr(_C, name))), name
    assert (package / "py.typed").is_file()
