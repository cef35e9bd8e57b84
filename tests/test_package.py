"""The house as a whole: who may import whom, what is public, what a name means, what the wheel holds."""

import ast
import json
import re
import subprocess
import sys
import tomllib
import types
import zipfile
from collections import Counter
from pathlib import Path

import pytest

import kasuri

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kasuri"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import from rooms above it in this list, and from itself. The radial stack has a prior of its
# own, so it stands above both posteriors and priors. The root holds only what every room needs.
ROOMS = (
    "root",
    "numerics",
    "posteriors",
    "priors",
    "posteriors.radial",
    "likelihoods",
    "network",
    "objectives",
    "prediction",
    "training",
    "diagnostics",
    "exporting",
    "compression",
    "vae",
    "sklearn",
    "testing",
)


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def room_of(module: str) -> str:
    if module == "posteriors.radial" or module.startswith("posteriors.radial."):
        return "posteriors.radial"
    first, _, rest = module.partition(".")
    return first if rest or (PACKAGE / first).is_dir() else "root"


MODULES = {module_name(file): file for file in FILES}


def imports_of(source: str) -> set[str]:
    """Modules of kasuri that a source imports, relative to the package; "" is kasuri itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if name.removeprefix("kasuri.") in MODULES]
            names = modules if len(modules) == len(inner) else [node.module or "", *modules]
        else:
            continue
        found |= {n.partition(".")[2] for n in names if n.partition(".")[0] == "kasuri"}
    return found


def test_imports_are_seen() -> None:
    source = "from kasuri.network import calls\ndef f():\n  from kasuri.storage import build"
    assert imports_of(source) == {"network.calls", "storage"}
    assert imports_of("from kasuri import bayesianize") == {""}
    assert imports_of("import kasurix, torch") == set()


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_between_rooms_point_one_way(room: str) -> None:
    allowed = {*ROOMS[: ROOMS.index(room)], room}
    files = {name: file for name, file in MODULES.items() if name and room_of(name) == room}
    assert files, f"there is no room {room}"
    for name, file in files.items():
        for other in imports_of(file.read_text()):
            if other == "":  # the version, inside a function
                assert "from kasuri import __version__" in file.read_text(), name
            elif name != "__main__":
                assert room_of(other) in allowed, f"{name} imports {other}"


def test_every_folder_is_a_room_and_the_root_is_small() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders == {room for room in ROOMS if "." not in room} - {"root"}
    assert len([file for file in FILES if file.parent == PACKAGE]) <= 6


def test_names_of_files_and_classes_have_one_meaning() -> None:
    stems = Counter(file.stem for file in FILES if file.stem not in ("__init__", "base"))
    assert not [name for name, count in stems.items() if count > 1]
    classes: Counter[str] = Counter()
    for file in FILES:
        names = {
            n.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ClassDef)
        }
        classes.update(name for name in names if not name.startswith("_"))
    assert not [name for name, count in classes.items() if count > 1]


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").rglob("*.py")), ids=lambda f: f.stem)
def test_experiments_use_the_public_interface(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kasuri"):
            private = [alias.name for alias in node.names if alias.name.startswith("_")]
            assert not [name for name in private if not name.startswith("__")], node.module
            assert not (node.module or "").startswith("kasuri.network"), node.module


IMPORT = """
import importlib.abc, json, sys, time
import torch

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"import kasuri must not need {name}")

BLOCKED = json.loads(sys.argv[1])
sys.meta_path.insert(0, Block())
before = set(sys.modules)
start = time.process_time()
import kasuri
spent = time.process_time() - start
print(json.dumps([sorted(set(sys.modules) - before), spent, kasuri.__file__]))
"""
OPTIONAL = ("safetensors", "sklearn", "scipy", "transformers", "pandas", "onnx")


def imported(code: str = IMPORT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, json.dumps(OPTIONAL)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_import_needs_nothing_but_torch_and_is_quick() -> None:
    done = imported()
    assert done.returncode == 0, done.stderr
    added, seconds, file = json.loads(done.stdout)
    assert Path(file) == PACKAGE / "__init__.py"
    ours = {"kasuri", "torch", *sys.stdlib_module_names}
    assert not [name for name in added if name.partition(".")[0] not in ours]
    assert seconds < 0.6  # at most 0.3 s on a quiet machine
    blocked = imported(IMPORT.replace("import kasuri", "import safetensors"))
    assert "must not need safetensors" in blocked.stderr


@pytest.mark.parametrize("name", kasuri.__all__)
def test_public_name_is_documented(name: str) -> None:
    thing = getattr(kasuri, name)
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__  # not inherited
    assert (own or "").partition("\n")[0].strip(), f"kasuri.{name} has no docstring"
    api, changes = ((ROOT / file).read_text() for file in ("docs/api.md", "CHANGELOG.md"))
    assert re.search(rf"\bkasuri\.{name}\b", api), f"kasuri.{name} is not in docs/api.md"
    assert re.search(rf"\b{name}\b", changes), f"{name} is not in CHANGELOG.md"


def test_about_forty_five_names_are_public() -> None:
    assert {"bayesianize", "ELBO", "predict", "save", "load", "KTied"} <= set(kasuri.__all__)
    names = [n for n in kasuri.__all__ if not isinstance(getattr(kasuri, n), types.ModuleType)]
    assert len(names) <= 46
    shown = {name for name in dir(kasuri) if not name.startswith("_")}
    rooms = {"compression", "exporting", "prediction", "testing"}  # loaded when asked for
    assert shown == {*kasuri.__all__, *rooms}


def test_metadata_is_complete() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (PACKAGE / "py.typed").is_file()
    assert project["name"] == "kasuri"
    assert {"description", "readme", "license", "authors", "keywords", "classifiers"} <= set(
        project
    )
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"version: {kasuri.__version__}" in citation
    assert (ROOT / "SECURITY.md").is_file()
    assert f"[{kasuri.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
def test_wheel_and_sdist_install_and_import_in_a_clean_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")  # it was made from the sdist, not from this folder
    assert list(tmp_path.glob("*.tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    assert all(name.startswith(("kasuri/", "kasuri-")) for name in names)
    # a clean environment: nothing but this wheel, and torch and safetensors from outside
    site = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(site),
    ]
    subprocess.run([*install, str(wheel)], check=True, timeout=300)
    clean = (
        "import os, sys; sys.path = [p for p in sys.path if p and not os.path.isdir(p + '/kasuri')];"
        "sys.path.insert(0, sys.argv[1]);"
    )

    def run_there(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", clean + code, str(site)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)

    done = run_there(
        "import kasuri, torch; assert kasuri.__file__.startswith(sys.argv[1]), kasuri.__file__;"
        "net = kasuri.bayesianize(torch.nn.Linear(2, 1), kasuri.KTied());"
        "print(kasuri.predict(net, torch.ones(3, 2), samples=2).mean.shape)"
    )
    assert "[3, 1]" in done.stdout, done.stderr
    done = run_there("from kasuri.__main__ import main; sys.exit(main())")
    assert done.returncode == 2, done.stderr
    assert "--editable" in done.stderr  # the command needs a clone, and says so
