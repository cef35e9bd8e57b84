"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const probe = document.body.appendChild(document.createElement("i"));
  const drawn = new Set();

  /** The colour that a CSS variable has now, in the light or in the dark. */
  function css(name) {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  }

  /** A copy of a figure with the page's colours: {"color": "--c2"} becomes {"color": "rgb(0, 158, 115)"}. */
  function coloured(value) {
    if (Array.isArray(value)) {
      return typeof value[0] === "object" ? value.map(coloured) : value;
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(
        Object.entries(value).map(([key, entry]) => [
          key,
          key.endsWith("color") && String(entry).startsWith("--") ? css(entry) : coloured(entry),
        ]),
      );
    }
    return value;
  }

  function axis(own) {
    const frame = { gridcolor: css("--grid"), linecolor: css("--rule"), tickcolor: css("--rule") };
    const shape = { zeroline: false, showline: true, ticks: "outside", automargin: true, nticks: 7 };
    const title = { standoff: 8, font: { size: 12, color: css("--muted") }, ...own.title };
    return { zerolinecolor: css("--muted"), ...frame, ...shape, ...own, title };
  }

  function layout(own) {
    const font = { family: css.family, size: 12, color: css("--ink") };
    return {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font,
      showlegend: false,
      hovermode: "closest",
      hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--rule"), font, namelength: -1 },
      dragmode: coarse ? false : "zoom",
      ...own,
      margin: { l: 44, r: 10, t: 8, b: 40, ...own.margin },
      xaxis: axis(own.xaxis),
      yaxis: axis(own.yaxis),
    };
  }
  css.family = getComputedStyle(document.body).fontFamily;

  const scopeOf = (element) => element.closest("[data-scope]");

  function draw(figure) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const scope = scopeOf(figure);
    const off = [...scope.querySelectorAll('.legend [aria-pressed="false"]')]
      .filter((button) => scopeOf(button) === scope)
      .map((button) => Number(button.dataset.series));
    const data = coloured(spec.data).map((trace) => ({
      hovertemplate: "%{y:.4~g} at %{x:.4~g}<extra>%{fullData.name}</extra>",
      ...trace,
      visible: !(trace.meta && off.includes(trace.meta.series)),
    }));
    drawn.add(figure);
    const settings = { displayModeBar: false, responsive: true, showTips: false };
    Plotly.react(figure.querySelector(".plot"), data, layout(coloured(spec.layout)), settings);
  }

  const figures = [...document.querySelectorAll(".figure")];
  const redraw = () => drawn.forEach(draw);
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter(({ isIntersecting }) => isIntersecting)) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "600px" },
  );
  figures.forEach((figure) => watcher.observe(figure));
  dark.addEventListener("change", redraw);

  /* paper is white: print in light colours, and every figure that is not folded away */
  window.addEventListener("beforeprint", () => {
    root.style.colorScheme = "light";
    figures.filter((figure) => figure.getClientRects().length > 0).forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    root.style.colorScheme = "";
    redraw();
  });

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      [...drawn].filter((figure) => scopeOf(figure) === scopeOf(button)).forEach(draw);
    });
  }

  const language = new Intl.Collator("en", { numeric: true });

  /** Sort a table, one body per variant; what has no value comes last in either direction. */
  function sort(header) {
    const next = { ascending: "descending", descending: "ascending" };
    const first = header.dataset.first || "ascending";
    const direction = next[header.getAttribute("aria-sort")] || first;
    for (const other of header.parentElement.children) {
      other.setAttribute("aria-sort", other === header ? direction : "none");
    }
    const sign = direction === "ascending" ? 1 : -1;
    const value = (body) => body.rows[0].cells[header.cellIndex].dataset.value;
    const compare = (a, b) => (a - b) || language.compare(a, b);
    const table = header.closest("table");
    const bodies = [...table.tBodies].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const known = (x === undefined) - (y === undefined);
      return x === undefined || y === undefined ? known : sign * compare(x, y);
    });
    table.append(...bodies);
  }

  for (const button of document.querySelectorAll(".scores thead button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }
})();
