"""Tables and pictures of README and documentation, written from result files: `make tables`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import moments, vmf
from benchmarks import table as speed
from benchmarks.results import stored
from experiments.report import Result, compare, markdown_table, read
from experiments.report.score_tables import GAINS_NOTE, gains
from experiments.report.text_tables import markdown_grid
from tools import training_tables
from tools.charts import frontier_chart, sweep_chart
from tools.paper_tables import compression_tables, sparsity_tables, sweep_tables
from tools.uci_tables import uci_tables

ROOT = Path(__file__).parents[1]


def comparison(results: Sequence[Result]) -> str:
    """The usual tables, and below them differences between variants where these matter."""
    tables = compare(results)
    parts = [markdown_table(tables)]
    for table in tables:
        name, lines = gains(table.rows)
        if lines:
            parts += [f"{table.name}, {name}. {GAINS_NOTE}", markdown_grid(lines, words=4)]
    return "\n\n".join(parts)


Maker = Callable[[Sequence[Result]], str]
PAPERS = "docs/papers/"
TABLES: tuple[tuple[str, str, str, tuple[Maker, ...]], ...] = (
    # page, name between its comments, results, what stands there
    ("README.md", "demo table", "results/demo", (comparison,)),
    ("docs/quality.md", "quality tables", "results/quality", (comparison,)),
    ("docs/training.md", "steps table", "results/natural", (training_tables.steps_table,)),
    ("docs/training.md", "noise table", "results/natural", (training_tables.noise_table,)),
    (
        *("docs/training.md", "temperature table", "results/natural"),
        (training_tables.temperature_table,),
    ),
    (f"{PAPERS}k-tied.md", "k-tied tables", "results/k-tied", (comparison,)),
    (
        *(f"{PAPERS}matrix-normal.md", "matrix-normal tables", "results/matrix-normal"),
        (comparison, sparsity_tables),
    ),
    (f"{PAPERS}matrix-normal.md", "auto-encoder tables", "results/vae", (comparison,)),
    (f"{PAPERS}radial-directional.md", "uci tables", "results/uci", (uci_tables,)),
    (
        *(f"{PAPERS}radial-directional.md", "compression tables", "results/compression"),
        (comparison, compression_tables),
    ),
    (f"{PAPERS}overparameterised.md", "tempering tables", "results/tempering", (sweep_tables,)),
)
PICTURES: tuple[tuple[str, str, Maker], ...] = (
    ("docs/images/natural-steps.svg", "results", training_tables.convergence_chart),
    ("docs/images/natural-temperature.svg", "results/natural", training_tables.temperature_chart),
    ("docs/images/frontier-lenet5.svg", "results/compression/lenet5", frontier_chart),
    ("docs/images/tempering-toy.svg", "results/tempering/toy", sweep_chart),
    ("docs/images/tempering-width.svg", "results/tempering/width", sweep_chart),
    ("docs/images/tempering-mnist.svg", "results/tempering/mnist", sweep_chart),
    ("docs/images/tempering-cifar10.svg", "results/tempering/cifar10-short", sweep_chart),
    ("docs/images/tempering-structure.svg", "results/tempering/structure-mnist-short", sweep_chart),
)


def results_in(folder: str) -> list[Result]:
    """All result files of a folder, which must be usable.

    Raises:
        ValueError: there are none, or one cannot be used.
    """
    results, problems = read(ROOT / folder)
    if problems or not results:
        raise ValueError(f"{folder}: {problems or 'no result files'}")
    return results


def put(page: str, name: str, text: str) -> None:
    """Replace what stands between the comments of a table."""
    path, begin, end = ROOT / page, f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = path.read_text().partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> None:
    """Put every table into its page, and write every picture."""
    for page, name, folder, makers in TABLES:
        results = results_in(folder)
        put(page, name, "\n\n".join(filter(None, (make(results) for make in makers))))
    put("docs/howto/export.md", "moments table", moments.tables(stored(moments.OUT)))
    put("docs/howto/von-mises-fisher.md", "von Mises-Fisher tables", vmf.tables(stored(vmf.OUT)))
    for picture, folder, draw in PICTURES:
        (ROOT / picture).write_text(draw(results_in(folder)))
    speed.main()


if __name__ == "__main__":
    main()
