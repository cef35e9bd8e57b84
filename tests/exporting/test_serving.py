"""The serving example needs numpy and onnxruntime alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kasuri
from tests.prediction.moments.nets import make

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "serve_onnx.py"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    net, x = make("mlp")
    bnn = kasuri.bayesianize(net, kasuri.MeanField(scale=0.1))
    path = tmp_path_factory.mktemp("served") / "net.onnx"
    kasuri.export(bnn, x, path, kind="ensemble", members=3, likelihood=kasuri.Categorical())
    return path, kasuri.predict(bnn, x, samples=3, seed=0, likelihood=kasuri.Categorical()), x


def test_predictions_without_torch(file, tmp_path):
    path, pred, x = file
    np.save(tmp_path / "rows.npy", x.numpy())
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['serve', r'{path}', r'{tmp_path / 'rows.npy'}']\n"
        f"runpy.run_path(r'{EXAMPLE}', run_name='__main__')\n"
        "assert not {'torch', 'kasuri', 'onnx', 'sklearn'} & set(sys.modules), 'imports too much'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    about, *lines = done.stdout.splitlines()
    assert "kasuri.kind ensemble" in about
    assert len(lines) == len(x)
    best = int(pred.mean[0].argmax())
    assert f"class {best} with probability {pred.mean[0, best]:.3f}" in lines[0]


def test_binary_models_are_told_in_words():
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        import serve_onnx
    finally:
        sys.path.pop(0)
    one = np.array([[0.25]])
    found = {"mean": one, "std": one / 5, "entropy": one * 2, "mutual_information": one / 10}
    said = "probability 0.250 ± 0.050, entropy 0.500, of which 0.025 because"
    assert said in serve_onnx.in_words(found, 0)
