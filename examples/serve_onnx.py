"""Predictions with uncertainty from an exported network, with numpy and onnxruntime alone.

    python examples/serve_onnx.py model.onnx rows.npy

It prints one line per row. The file comes from kasuri.export(..., kind="ensemble") or kind="variance" (others
have no uncertainty to tell). Neither kasuri nor PyTorch is needed here.
"""

import argparse

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


def in_words(outputs: dict[str, np.ndarray], row: int) -> str:
    """One row's prediction in words."""
    if "mean" not in outputs:  # one network alone: kind="mean"
        return ", ".join(f"{name} {value[row].ravel()}" for name, value in outputs.items())
    mean, std = outputs["mean"][row], outputs["std"][row]
    if "mutual_information" in outputs:
        total, information = outputs["entropy"][row], outputs["mutual_information"][row]
        if mean.size > 1 and np.size(total) == 1:
            best = int(mean.argmax())
            what = f"class {best} with probability {mean.flat[best]:.3f} ± {std.flat[best]:.3f}"
        else:  # one probability, or several that have nothing to do with each other
            pairs = zip(mean.ravel(), std.ravel(), strict=True)
            what = ", ".join(f"probability {m:.3f} ± {s:.3f}" for m, s in pairs)
        return (
            f"{what}, entropy {np.sum(total):.3f}, of which {np.sum(information):.3f} because the weights "
            "are not known"
        )
    return ", ".join(f"{m:.4g} ± {s:.2g}" for m, s in zip(mean.ravel(), std.ravel(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="an ONNX file from kasuri.export, with one input")
    parser.add_argument("rows", help="a .npy file with one input per row")
    args = parser.parse_args()
    session = onnxruntime.InferenceSession(args.model, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    print(", ".join(f"{key} {value}" for key, value in sorted(about.items())))
    (wanted,) = session.get_inputs()
    rows = np.load(args.rows).astype(TYPES[wanted.type])
    names = [output.name for output in session.get_outputs()]
    outputs = dict(zip(names, session.run(names, {wanted.name: rows}), strict=True))
    for row in range(len(rows)):
        print(f"{row}: {in_words(outputs, row)}")


if __name__ == "__main__":
    main()
