"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const settings = { displayModeBar: false, responsive: true, showTips: false };
  const drawn = new Set();

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  /** A copy of a figure with the page's colours: {"color": "--c2"} becomes {"color": "#009e73"}. */
  function coloured(value, key = "") {
    if (Array.isArray(value)) {
      return typeof value[0] === "object" ? value.map((one) => coloured(one)) : value;
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
    }
    return key.endsWith("color") && String(value).startsWith("--") ? css(value) : value;
  }

  function axis(own) {
    return {
      gridcolor: css("--grid"),
      linecolor: css("--rule"),
      tickcolor: css("--rule"),
      zerolinecolor: css("--muted"),
      zeroline: false,
      showline: true,
      ticks: "outside",
      ticklen: 4,
      automargin: true,
      nticks: 7,
      ...own,
      title: { standoff: 8, font: { size: 12, color: css("--muted") }, ...own.title },
    };
  }

  function arranged(own) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css("--sans"), size: 12, color: css("--ink") },
      margin: { l: 44, r: 10, t: 8, b: 40 },
      showlegend: false,
      hovermode: "closest",
      hoverlabel: {
        bgcolor: css("--surface"),
        bordercolor: css("--rule"),
        font: { family: css("--sans"), size: 12, color: css("--ink") },
        namelength: -1,
      },
      dragmode: coarse ? false : "zoom",
      ...own,
      xaxis: axis(own.xaxis || {}),
      yaxis: axis(own.yaxis || {}),
    };
  }

  const scopeOf = (element) => element.closest("[data-scope]");
  const own = (scope, selector) =>
    [...scope.querySelectorAll(selector)].filter((one) => scopeOf(one) === scope);

  function hidden(scope) {
    const buttons = own(scope, '.legend button[aria-pressed="false"]');
    return new Set(buttons.map((button) => Number(button.dataset.series)));
  }

  function draw(figure) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const off = hidden(scopeOf(figure));
    const data = coloured(spec.data).map((trace) => ({
      hovertemplate: "%{y:.4~g} at %{x:.4~g}<extra>%{fullData.name}</extra>",
      ...trace,
      visible: !(trace.meta && off.has(trace.meta.series)),
    }));
    drawn.add(figure);
    return Plotly.react(figure.querySelector(".plot"), data, arranged(coloured(spec.layout)), settings);
  }

  const redraw = () => drawn.forEach(draw);
  const figures = [...document.querySelectorAll(".figure")];

  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          watcher.unobserve(entry.target);
          draw(entry.target);
        }
      }
    },
    { rootMargin: "600px" },
  );
  figures.forEach((figure) => watcher.observe(figure));
  dark.addEventListener("change", redraw);

  /* paper is white: print in light colours, and every figure that is not folded away */
  window.addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    figures.filter((figure) => figure.getClientRects().length > 0).forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.theme;
    redraw();
  });

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!shown));
      own(scopeOf(button), ".figure")
        .filter((figure) => drawn.has(figure))
        .forEach(draw);
    });
  }

  const language = new Intl.Collator("en", { numeric: true });

  function order(a, b) {
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? language.compare(a, b) : x - y;
  }

  /** Sort a table, one body per variant; what has no value comes last in either direction. */
  function sort(header) {
    const next = { ascending: "descending", descending: "ascending" };
    const direction = next[header.getAttribute("aria-sort")] || header.dataset.first;
    const sign = direction === "ascending" ? 1 : -1;
    for (const other of header.parentElement.children) {
      other.setAttribute("aria-sort", other === header ? direction : "none");
    }
    const table = header.closest("table");
    const value = (body) => body.rows[0].cells[header.cellIndex].dataset.value;
    const keyed = [...table.tBodies].map((body) => [value(body), body]);
    keyed.sort(([a], [b]) => {
      if (a === undefined || b === undefined) {
        return (a === undefined) - (b === undefined);
      }
      return sign * order(a, b);
    });
    table.append(...keyed.map(([, body]) => body));
  }

  for (const button of document.querySelectorAll("thead button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }
})();
