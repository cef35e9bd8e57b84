"""Predictions with uncertainty from an exported network, with numpy and onnxruntime alone.

    python examples/serve_onnx.py model.onnx rows.npy
    python examples/serve_onnx.py model.onnx --port 8000

The first form prints one line per row, the second answers POST requests with {"rows": [[...], ...]}. The
file comes from kasuri.export(..., kind="ensemble") or kind="variance" (others have no uncertainty to tell).
Neither kasuri nor PyTorch is needed here.
"""

import argparse
import json
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}


class Model:
    """An exported network, in an ONNX file."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.input, *others = self.session.get_inputs()
        if others:
            raise ValueError(
                f"{path} wants {1 + len(others)} inputs; this program has one, the rows"
            )
        self.outputs = [one.name for one in self.session.get_outputs()]
        self.about = self.session.get_modelmeta().custom_metadata_map

    def predict(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs by name, for any number of rows."""
        rows = np.asarray(rows, dtype=TYPES[self.input.type])
        wanted = self.input.shape[1:]
        if list(rows.shape[1:]) != wanted:
            raise ValueError(f"rows of shape {list(rows.shape[1:])}; the network wants {wanted}")
        fed = {self.input.name: rows}
        return dict(zip(self.outputs, self.session.run(self.outputs, fed), strict=True))


def told(found: dict[str, np.ndarray], row: int) -> str:
    """One row's prediction in words."""
    if "mean" not in found:  # one network alone: kind="mean" or "draw"
        return ", ".join(f"{name} {value[row].ravel()}" for name, value in found.items())
    mean, std = found["mean"][row], found["std"][row]
    if "mutual_information" in found:
        total, information = found["entropy"][row], found["mutual_information"][row]
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


def handler(model: Model) -> type[BaseHTTPRequestHandler]:
    """What answers requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Predict the rows of the request."""
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = model.predict(np.array(body["rows"]))
                code, answer = 200, {name: value.tolist() for name, value in found.items()}
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                code, answer = 400, {"error": str(error)}
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler


def main() -> None:
    """Print predictions, or serve them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="an ONNX file from kasuri.export")
    parser.add_argument("rows", nargs="?", help="a .npy file with one input per row")
    parser.add_argument("--port", type=int, help="answer requests instead")
    args = parser.parse_args()
    model = Model(args.model)
    if args.port is not None:
        server = HTTPServer(("127.0.0.1", args.port), handler(model))
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
    if args.rows is None:
        parser.error("give rows, or --port to serve")
    print(", ".join(f"{key} {value}" for key, value in sorted(model.about.items())))
    rows = np.load(args.rows)
    found = model.predict(rows)
    for row in range(len(rows)):
        print(f"{row}: {told(found, row)}")


if __name__ == "__main__":
    main()
