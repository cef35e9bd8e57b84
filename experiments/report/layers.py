"""What the posterior of a variant looks like, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.calibration import histogram
from experiments.report.figures import Figure, axis, legend, look, trace
from experiments.report.markup import Html, el, join, plot_text, scrolling
from experiments.report.results import Result
from experiments.report.values import finite, mapping, records, shape_text, short

SHOWN = 7  # layers whose histograms are drawn at first: the largest
_COLUMNS = (
    ("parameters", "parameters"),
    ("kl", "KL (nats)"),
    ("snr", "signal to noise"),
    ("mean_abs", "mean |μ|"),
    ("mean_std", "mean σ"),
)


def stored_layers(results: Sequence[Result]) -> tuple[Result, list[Mapping[str, Any]]] | None:
    """The first seed that has layers, and the layers; None if there is none."""
    for result in results:
        layers = records(result.figures.get("layers"))
        if layers:
            return result, layers
    return None


def layers_block(result: Result, layers: Sequence[Mapping[str, Any]]) -> Html:
    """A table of layers and two figures: histograms of the means and of the scales."""
    names = [_name(layer, i) for i, layer in enumerate(layers)]
    order = sorted(range(len(layers)), key=lambda i: -(finite(layers[i].get("parameters")) or 0))
    figures = [
        _histograms(names, layers, "mean", "Posterior means", "μ"),
        _histograms(names, layers, "scale", "Posterior standard deviations", "log₁₀ σ"),
    ]
    drawn = [figure.html() for figure in figures if figure is not None]
    seed = f" (seed {result.seed})" if len(drawn) else ""
    return el(
        "div",
        el("h4", f"Posterior per layer{seed}"),
        _table(names, layers),
        legend(names, "Layers shown in the figures", order[:SHOWN]) if drawn else None,
        el("div", join(drawn), class_="figures") if drawn else None,
        None if drawn else el("p", "The file holds no histograms of the layers.", class_="note"),
        data_scope=True,
    )


def _table(names: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> Html:
    used = [(key, label) for key, label in _COLUMNS if any(_has(layer, key) for layer in layers)]
    head = [el("th", "layer", scope="col"), el("th", "shape", scope="col")]
    head += [el("th", label, scope="col", class_="number") for _, label in used]
    body = [
        el(
            "tr",
            el("th", name, scope="row"),
            el("td", shape_text(layer.get("shape"))),
            *(el("td", _number(layer.get(key)), class_="number") for key, _ in used),
        )
        for name, layer in zip(names, layers, strict=True)
    ]
    table = el("table", el("thead", el("tr", *head)), el("tbody", *body))
    return scrolling(table, "Layers", "scroll tall")


def _histograms(
    names: Sequence[str], layers: Sequence[Mapping[str, Any]], key: str, title: str, symbol: str
) -> Figure | None:
    data = []
    told = []
    for index, (name, layer) in enumerate(zip(names, layers, strict=True)):
        edges, counts = histogram(mapping(layer.get(key)), "counts")
        if not edges:
            continue
        top = max(counts)
        line = {**look(index), "width": 1.8, "shape": "hv"}
        heights = [count / top for count in [*counts, counts[-1]]]
        data.append(trace(edges, heights, name=plot_text(name), line=line, meta={"series": index}))
        told.append(f"{name} peaks near {short(edges[counts.index(top)], 2)}")
    if not data:
        return None
    layout = {
        "xaxis": axis(symbol),
        "yaxis": axis("relative to the peak", range=[0, 1.05]),
    }
    return Figure(title, data, layout, f"Histograms of {symbol} per layer: {'; '.join(told)}.")


def _name(layer: Mapping[str, Any], index: int) -> str:
    name = layer.get("name")
    return name if isinstance(name, str) and name else f"layer {index}"


def _has(layer: Mapping[str, Any], key: str) -> bool:
    return finite(layer.get(key)) is not None


def _number(value: object) -> str:
    found = finite(value)
    return "–" if found is None else short(found)
