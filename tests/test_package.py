"""The package as a whole: what it imports, who imports whom, what is public, how long files are."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kasuri

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "kasuri").rglob("*.py"))
OPTIONAL = (
    "safetensors",
    "sklearn",
    "scipy",
    "transformers",
    "pytest",
    "matplotlib",
    "pandas",
    "torch_pruning",
)

# A module may import modules of earlier layers only. Within numerics and posteriors, which are
# several files each, the order is spelt out as well: a new file needs a place here.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("numerics", "numerics.fused", "numerics.gamma", "numerics.seeds", "errors", "files"),
    ("given",),
    ("numerics.lanczos",),
    ("numerics.precisions", "numerics.kronecker", "numerics.mixture"),
    ("numerics.quadrature", "numerics.vmf_series", "numerics.roots", "numerics.stacked"),
    ("numerics.vmf_exact", "numerics.softplus"),
    ("numerics.von_mises_fisher",),
    ("numerics.vmf_slope",),
    ("numerics.vmf_sampling",),
    ("distributions", "numerics.polar_sampling", "numerics.directional_kl"),
    ("version", "scores", "data.files", "data.dataset", "data.augment", "data.batches"),
    ("metrics", "data.scaling"),
    ("data.bundled", "data.idx", "data.cifar", "data.tables", "data.reviews"),
    ("data.binarised",),
    ("data.catalog",),
    ("data",),
    ("numerics.safe", "numerics.low_rank"),
    ("numerics.noise", "numerics.triangular", "numerics.positive"),
    ("numerics.radial_kl", "numerics.kronecker_draws"),
    ("numerics.local_linear", "numerics.local_kronecker", "numerics.sampling"),
    ("numerics.eigenvalues", "numerics.determinants"),
    ("posteriors.sides",),
    ("posteriors.full_side", "posteriors.low_rank_side"),
    ("posteriors", "posteriors.base", "predictions", "schedules"),
    ("posteriors.mean_field", "posteriors.point", "posteriors.marginal"),
    ("posteriors.k_tied", "posteriors.masked", "posteriors.kronecker"),
    ("posteriors.matrix_normal", "posteriors.matrix_plus_diagonal"),
    ("posteriors.matrix_normal_diagonal",),
    ("posteriors.scaled_matrix_normal", "posteriors.full_normal"),
    ("posteriors.directions", "posteriors.radii"),
    ("posteriors.polar",),
    ("posteriors.radial_start", "posteriors.radial_posterior"),
    ("posteriors.radial",),
    ("likelihoods.base",),
    ("likelihoods.classes", "likelihoods.gaussian"),
    ("likelihoods.gamma_gaussian", "likelihoods.heteroscedastic"),
    ("priors", "likelihoods"),
    ("governing", "vae.normals"),
    ("vae.latents",),
    ("ard", "descriptions", "radius_priors"),
    ("radial_prior",),
    ("estimators", "views"),
    ("scope",),
    ("bayesian",),
    ("select", "contexts"),
    ("balanced",),
    ("tempering",),
    ("summary", "wiring"),
    ("convert",),
    ("objectives",),
    ("trained",),
    ("predict", "relevance", "vae.objective"),
    ("vae.estimates",),
    ("vae.evaluation", "vae.pictures"),
    ("vae",),
    ("moments", "moments.values", "moments.places", "numerics.gaussian_moments"),
    ("moments.pooling", "moments.layers", "moments.graph", "moments.link"),
    ("moments.rules", "moments.taps"),
    ("moments.propagate",),
    ("moments.predictor",),
    ("moments.predict",),
    ("sparsity",),
    ("saving", "columns", "baselines"),
    ("figures",),
    ("evaluation",),
    ("training",),
    ("training.interrupts", "training.progress", "training.distributed", "training.checkpoint"),
    ("training.callbacks", "training.diagnose", "training.defaults"),
    ("training.sources",),
    ("training.validation", "training.preparing"),
    ("training.loop", "training.stacking", "training.gathering", "training.alike"),
    ("training.fitted",),
    ("training.fit", "training.together"),
    ("training.halving",),
    ("exporting", "exporting.outputs"),
    ("exporting.networks", "exporting.options"),
    ("exporting.programs",),
    ("exporting.verify",),
    ("exporting.export",),
    ("sklearn.names", "sklearn.scaling", "sklearn.splitting"),
    ("sklearn.settings", "sklearn.files", "sklearn.choosing"),
    ("sklearn.estimator",),
    ("sklearn.regressor", "sklearn.classifier"),
    ("sklearn",),
    ("reference.wide", "reference.joint"),
    ("reference.conjugate", "reference.nuts", "reference.langevin", "reference.distance"),
    ("reference",),
    ("diagnostics.pareto", "diagnostics.collapse"),
    ("diagnostics.matrices", "diagnostics.ratios", "diagnostics.factors"),
    ("diagnostics.spectra", "diagnostics.truncation", "diagnostics.drift"),
    ("diagnostics.tying", "diagnostics.gradients", "diagnostics.rules"),
    ("diagnostics.findings",),
    ("diagnostics",),
    (
        "compression",
        "compression.running",
        "compression.products",
        "compression.layers",
        "compression.peeling",
        "compression.thresholds",
    ),
    ("compression.concatenations",),
    ("compression.parts",),
    ("compression.radial_parts",),
    ("compression.graph", "compression.criteria", "compression.slicing", "compression.masking"),
    ("compression.statistics", "compression.constants", "compression.plans", "compression.bits"),
    ("compression.latency", "compression.quantising", "compression.slimming", "compression.tuning"),
    ("compression.options",),
    ("compression.cutting", "compression.counting", "compression.decisions"),
    ("compression.inputs", "compression.probing"),
    ("compression.shrinking", "compression.posterior", "compression.searching"),
    ("compression.stepping",),
    ("compression.heads", "compression.report", "compression.task", "compression.checking"),
    ("compression.compress",),
    ("experiments", "experiments.spec", "experiments.networks", "experiments.rdp_audit"),
    ("experiments.lenet5_counts", "experiments.layers_left"),
    ("experiments.supervised", "experiments.k_tied_published", "experiments.generative"),
    ("experiments.compression_published", "experiments.matrix_normal_published"),
    ("experiments.memory",),
    ("experiments.side_by_side",),
    ("experiments.truncation", "experiments.convergence", "experiments.sparse"),
    ("experiments.splits", "experiments.uci_published", "experiments.compressed"),
    ("experiments.tempering_published",),
    ("experiments.tempered", "experiments.tempered_networks"),
    ("experiments.wide",),
    ("experiments.tempering",),
    ("experiments.demo", "experiments.quality", "experiments.k_tied"),
    ("experiments.matrix_normal", "experiments.uci", "experiments.vae"),
    ("experiments.compression",),
    ("experiments.catalog", "experiments.results"),
    ("experiments.running", "experiments.sweeping"),
    ("report.values", "report.markup", "report.columns", "report.pictures"),
    ("report.reading",),
    ("report.scores",),
    ("report.results",),
    ("report.terminal", "report.figures", "report.stored", "report.gains"),
    ("report.calibration", "report.cards", "report.steps", "report.spectra"),
    ("report.heatmaps", "report.gradients", "report.sparsities", "report.sheets"),
    ("report.compressions",),
    ("report.sweeps", "report.findings", "report.frontiers"),
    ("report.layers", "report.sections"),
    ("report.blocks",),
    ("report.page",),
    ("report",),
    ("cli.options",),
    ("cli.commands",),
    ("cli",),
    ("__main__",),
    ("testing.common",),
    ("testing.layer_laws", "testing.posterior_laws"),
    ("testing",),
)
LAYER_OF = {name: depth for depth, layer in enumerate(LAYERS) for name in layer}

IMPORT = """
import importlib.abc, json, sys, time
start = time.perf_counter()
import torch

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"import kasuri must not need {name}")

BLOCKED = json.loads(sys.argv[1])
already = {name.partition(".")[0] for name in sys.modules} & set(BLOCKED)
sys.meta_path.insert(0, Block())
before = set(sys.modules)
middle = time.perf_counter()
import kasuri
spent = (time.perf_counter() - middle) / (middle - start)
print(json.dumps([sorted(set(sys.modules) - before), spent, sorted(already), kasuri.__file__]))
"""


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], float, list[str], str]:
    """(modules `import kasuri` adds to torch's, time in units of torch's, blocked ones torch has, file)."""
    command = [sys.executable, "-c", IMPORT, json.dumps(OPTIONAL)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


def test_import_needs_nothing_but_torch(imported: tuple[list[str], float, list[str], str]) -> None:
    added, _, already, file = imported
    assert Path(file) == ROOT / "kasuri" / "__init__.py"
    assert not already, "the block came too late to say anything about these"
    assert "kasuri.objectives" in added
    ours = {"kasuri", "torch", *sys.stdlib_module_names}
    assert not [name for name in added if name.partition(".")[0] not in ours]


def test_import_is_quick(imported: tuple[list[str], float, list[str], str]) -> None:
    assert imported[1] < 0.5, (
        "in units of the time that torch takes, so that a busy machine is no excuse"
    )


def test_the_blocking_hook_blocks() -> None:
    code = IMPORT.replace("import kasuri\n", "import safetensors\n")
    command = [sys.executable, "-c", code, json.dumps(OPTIONAL)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode != 0
    assert "must not need safetensors" in done.stderr


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT / "kasuri").with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(file): file for file in FILES}


def imports_of(tree: ast.AST) -> set[str]:
    """Modules of kasuri that a source imports anywhere, relative to the package; "" is kasuri itself."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in inner if name.removeprefix("kasuri.") in MODULES]
            names = modules if len(modules) == len(inner) else [node.module or "", *modules]
        else:
            continue
        found |= {n.partition(".")[2] for n in names if n.partition(".")[0] == "kasuri"}
    return found


def test_every_module_has_a_layer() -> None:
    assert sorted(LAYER_OF) == sorted(name for name in MODULES if name)
    assert sum(map(len, LAYERS)) == len(LAYER_OF), "one layer each"


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_go_one_way(name: str) -> None:
    for other in imports_of(ast.parse(MODULES[name].read_text())):
        assert other, f"{name} imports the package itself, which imports everything"
        assert LAYER_OF[other] < LAYER_OF[name], f"{name} imports {other}, which is not below it"


def test_imports_are_seen() -> None:
    source = "import kasuri.scope\nfrom kasuri import schedules\ndef f():\n  from kasuri.saving import save"
    assert imports_of(ast.parse(source)) == {"scope", "schedules", "saving"}
    assert imports_of(ast.parse("import kasuri")) == {""}
    assert imports_of(ast.parse("from kasuri import bayesianize")) == {""}
    assert imports_of(ast.parse("from kasuri.numerics import low_rank")) == {"numerics.low_rank"}
    assert imports_of(ast.parse("import wefty, torch")) == set()


@pytest.mark.parametrize("name", kasuri.__all__)
def test_public_name_is_documented(name: str) -> None:
    thing = getattr(kasuri, name)
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__  # not inherited
    documentation = own or ""
    assert documentation.partition("\n")[0].strip(), f"kasuri.{name} has no docstring"
    api, changes = ((ROOT / file).read_text() for file in ("docs/api.md", "CHANGELOG.md"))
    assert re.search(rf"\bweft\.{name}\b", api), f"kasuri.{name} is not in docs/api.md"
    assert re.search(rf"\b{name}\b", changes), f"{name} is not in CHANGELOG.md"


def test_public_names_are_what_they_should_be() -> None:
    assert {"bayesianize", "ELBO", "predict", "save", "load", "KTied"} <= set(kasuri.__all__)
    internal = {"bayesian", "numerics", "posteriors", "scope", "wiring", "views", "errors"}
    assert not internal & set(kasuri.__all__), "modules that users have no use for"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_package_files_are_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 300


@pytest.mark.parametrize("file", sorted((ROOT / "tests").rglob("*.py")), ids=lambda f: f.stem)
def test_test_files_are_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 410


def test_package_is_typed_and_has_one_version() -> None:
    assert (ROOT / "kasuri" / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == kasuri.__version__
