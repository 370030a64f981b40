"""The types of ``_otelctx.pyi``, which type checkers read instead of the module, compared with the module."""

from __future__ import annotations

import ast
import inspect
import sys
from inspect import Parameter
from pathlib import Path

from otelctx import _otelctx

STUB = ast.parse(Path(_otelctx.__file__).with_name("_otelctx.pyi").read_text())


def declared(body):
    """The functions and classes that are declared there, by name."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name: node for node in body if isinstance(node, kinds)}


def of_declaration(function):
    """Name, kind and whether there is a default value, of each parameter."""
    arguments = function.args
    assert not arguments.kwonlyargs
    positional = [(it.arg, Parameter.POSITIONAL_ONLY) for it in arguments.posonlyargs]
    positional += [(it.arg, Parameter.POSITIONAL_OR_KEYWORD) for it in arguments.args]
    required = len(positional) - len(arguments.defaults)
    parameters = [(*it, index >= required) for index, it in enumerate(positional)]
    if arguments.vararg:
        parameters.append((arguments.vararg.arg, Parameter.VAR_POSITIONAL, False))
    if arguments.kwarg:
        parameters.append((arguments.kwarg.arg, Parameter.VAR_KEYWORD, False))
    return parameters


def of_function(function):
    """The same of a function of the module."""
    parameters = inspect.signature(function).parameters.values()
    return [(it.name, it.kind, it.default is not Parameter.empty) for it in parameters]


def is_function(node):
    return isinstance(node, ast.FunctionDef)


def test_names():
    public = {name for name in dir(_otelctx) if not name.startswith("_")}
    assert set(declared(STUB.body)) == public


def test_functions():
    functions = [node for node in STUB.body if is_function(node)]
    assert len(functions) > 10
    for function in functions:
        found = of_function(getattr(_otelctx, function.name))
        assert found == of_declaration(function), function.name


def test_classes():
    classes = [node for node in STUB.body if isinstance(node, ast.ClassDef)]
    # Up to 3.13, it is that of contextvars.
    names = {node.name for node in classes if node.name != "Token" or sys.version_info >= (3, 14)}
    assert {"Context", "Scope"} <= names
    for node in classes:
        if node.name not in names:
            continue
        cls = getattr(_otelctx, node.name)
        members = declared(node.body)
        public = {name for name in vars(cls) if not name.startswith("_")}
        assert {name for name in members if not name.startswith("_")} == public, node.name
        for name, member in members.items():
            if member.decorator_list:
                assert inspect.isdatadescriptor(vars(cls)[name]), name
            elif name == "__new__":
                # An old Python has none for a class.
                if cls.__text_signature__ or sys.version_info >= (3, 10):
                    assert of_function(cls) == of_declaration(member)[1:], node.name
            elif name.startswith("__"):
                assert name in vars(cls), name
            else:
                assert of_function(getattr(cls, name))[1:] == of_declaration(member)[1:], name
