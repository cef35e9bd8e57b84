"""The most uncertain test inputs of a variant as cards."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.report.markup import Html, el, join
from experiments.report.pictures import Pictures
from experiments.report.results import Result
from experiments.report.values import finite, fixed, records, short

SHOWN = 12


def uncertain_block(results: Sequence[Result], pictures: Pictures) -> Html | None:
    """Cards of the first seed that has uncertain inputs; None if none has."""
    found = ((r, records(r.figures.get("uncertain"))) for r in results)
    result, inputs = next(((r, one) for r, one in found if one), (None, []))
    if result is None:
        return None
    shown = inputs[:SHOWN]
    told = result.settings.get("data")
    data = told if isinstance(told, str) else ""
    top = max((finite(one.get("entropy")) or 0.0 for one in shown), default=0.0)
    names = pictures.names(data)
    images = [_image(one, data, pictures) for one in shown]
    reasons = list(dict.fromkeys(reason for image, reason in images if image is None))
    cards = [_card(one, image, names, top) for one, (image, _) in zip(shown, images, strict=True)]
    return el(
        "div",
        el("h4", f"Most uncertain test inputs (seed {result.seed})"),
        el("p", f"No picture: {'; '.join(reasons)}.", class_="note") if reasons else None,
        el("ul", join(cards), class_="cards"),
        el("p", _EXPLANATION, class_="note"),
    )


_EXPLANATION = (
    "The bar is the entropy of the prediction in nats, relative to the largest shown; its solid part "
    "is epistemic: what more data could remove."
)


def _image(one: Mapping[str, Any], data: str, pictures: Pictures) -> tuple[str | None, str]:
    index = one.get("index")
    if isinstance(index, bool) or not isinstance(index, int):
        return None, "the file does not say which input"
    return pictures.encoded(data, index)


def _card(one: Mapping[str, Any], image: str | None, names: Sequence[str], top: float) -> Html:
    label, guess = (_class(one.get(key), names) for key in ("label", "guess"))
    right = label == guess
    probability = finite(one.get("probability"))
    chance = "" if probability is None else f" {100 * probability:.0f}\N{NO-BREAK SPACE}%"
    alternative = f"test input {one.get('index')}: {label}, guessed {guess}"
    return el(
        "li",
        el("img", src=image, alt=alternative, width=84, height=84) if image else None,
        el(
            "div",
            el("p", label, class_="label"),
            el(
                "p",
                el("span", "✓ " if right else "✗ ", aria_hidden="true"),
                el("span", "right: " if right else "guessed ", class_="unseen" if right else None),
                f"{guess}{chance}",
                class_="guess right" if right else "guess wrong",
            ),
            _bar(finite(one.get("entropy")), finite(one.get("epistemic")), top),
        ),
    )


def _bar(entropy: float | None, epistemic: float | None, top: float) -> Html | None:
    if entropy is None:
        return None
    part = "" if epistemic is None else f", epistemic {fixed(epistemic, 2)}"
    width = _percent(entropy, top)
    inner = None if epistemic is None else el("span", style=f"width:{_percent(epistemic, entropy)}")
    return join(
        [
            el("div", el("div", inner, style=f"width:{width}"), class_="bar", aria_hidden="true"),
            el("p", f"entropy {fixed(entropy, 2)}{part}", class_="small"),
        ]
    )


def _percent(part: float, whole: float) -> str:
    share = part / whole if whole > 0 else 0.0
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"


def _class(value: object, names: Sequence[str]) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return str(names[value])
    found = finite(value)
    return short(found) if found is not None else str(value)
