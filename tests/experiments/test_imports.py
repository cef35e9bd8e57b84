"""Experiments use the public interface of the package, as anybody else would."""

import ast
from pathlib import Path

import pytest

import experiments

FILES = [
    file
    for file in sorted(Path(experiments.__file__).parent.rglob("*.py"))
    if "report" not in file.parts
]
NAMESPACES = {"kasuri", "kasuri.training", "kasuri.diagnostics", "kasuri.vae"}
ROOT = {"kasuri.streams", "kasuri.checks", "kasuri.storage"}  # what every room needs
MODULES = {  # single functions of modules that the documentation lists, or that draw figures
    "kasuri.compression.counting",
    "kasuri.compression.latency",
    "kasuri.diagnostics.reference.wide",
    "kasuri.vae.pictures",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_only_public_names_are_imported(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kasuri":
            assert node.module in NAMESPACES | ROOT | MODULES
            assert not any(alias.name.startswith("_") for alias in node.names)
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("kasuri.") for alias in node.names)
            assert not any(alias.name == "pickle" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (
                node.value.id != "kasuri"
                or not node.attr.startswith("_")
                or node.attr == "__version__"
            )
