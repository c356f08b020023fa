"use strict";
/* Draws the plots of the page's data block: anew where the width changes, and all of them when the scheme does. */
(() => {
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "hexagon"];
  const root = document.documentElement, isDark = matchMedia("(prefers-color-scheme: dark)");
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const figures = [...document.querySelectorAll("figure")].map((element, index) => ({
    element, plot: plots[index], box: element.querySelector(".plot"), drawn: "",
  }));
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  /* What is longer is cut off; tables have all of it. The plotting library reads tags and entities in text. */
  const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text)
    .replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  /* Values with their intervals: the points of a line, or one in each row. */
  const values = (rows, index, { axis, isLog }) => {
    const color = colour(`c${index}`), x = rows.map(({ value }) => value), y = rows.map((row, number) => (axis ? row.x : number));
    const bars = {
      type: "data", symmetric: false, color, thickness: 2, width: 4,
      array: rows.map(({ value, ci95 }) => (ci95 ? Math.max(0, ci95[1] - value) : 0)),
      /* On a logarithmic axis it ends before zero. */
      arrayminus: rows.map(({ value, ci95 }) => (ci95 ? Math.max(0, Math.min(value - ci95[0], isLog ? 0.9 * value : Infinity)) : 0)),
    };
    return {
      type: "scatter", line: { color, width: 2 },
      customdata: rows.map(({ name, said }) => `${short(name, 60)}<br>${short(said, 200)}`), hovertemplate: "%{customdata}<extra></extra>",
      /* What has no interval is an empty mark. */
      marker: { color, size: 8, symbol: rows.map(({ ci95 }) => SYMBOLS[index] + (ci95 ? "" : "-open")) },
      ...(axis ? { mode: "lines+markers", x: y, y: x, error_y: bars } : { mode: "markers", x, y, error_x: bars }),
    };
  };
  /* The rounds of each row, spread within it so that few hide others. */
  const rounds = (rows) => ({
    type: "scatter", mode: "markers", hoverinfo: "skip", marker: { color: colour("c1"), size: 4, opacity: 0.5 },
    x: rows.flatMap((row) => row.rounds),
    y: rows.flatMap((row, place) => row.rounds.map((_, round) => place + ((round * 0.618) % 1) * 0.6 - 0.3)),
  });

  const draw = (figure) => {
    const { box, plot } = figure, { rows, reference } = plot;
    const width = box.clientWidth, scheme = isDark.matches ? "dark" : "light", drawn = `${width} ${scheme}`;
    if (!width || figure.drawn === drawn) return;
    figure.drawn = drawn;
    const isNarrow = width < 600, isTouched = isNarrow || matchMedia("(pointer: coarse)").matches;
    const ink = colour("ink"), paper = colour("paper");
    const font = { family: getComputedStyle(document.body).fontFamily, size: isNarrow ? 12 : 13, color: ink };
    const axis = (text, more) => ({
      automargin: true, color: colour("quiet"), gridcolor: colour("grid"), zerolinecolor: colour("axis"), exponentformat: "none",
      fixedrange: isTouched, title: { text }, ...more,
    });
    const valueAxis = axis(short(plot.values, 24), plot.isLog ? { type: "log" } : { rangemode: "tozero" });
    const ticks = (texts, range) => ({ tickmode: "array", tickvals: [...texts.keys()], ticktext: texts, range, zeroline: false });
    /* A finger scrolls the page; a mouse may look closer, and a double click goes back. */
    const layout = {
      width, font, hovermode: "closest", paper_bgcolor: paper, plot_bgcolor: paper, dragmode: isTouched ? false : "zoom",
      hoverlabel: { font, align: "left", bgcolor: paper, bordercolor: colour("axis") }, margin: { l: 12, r: 24, t: 8, b: 48 },
    };
    let traces;
    if (plot.axis) {
      const series = [...new Set(rows.map((row) => row.series))], steps = plot.steps.map((step) => short(step, 12));
      const height = isNarrow ? 260 : 320, below = 86 + series.length * 22;
      const of = (name, index) => values(rows.filter((row) => row.series === name), index, plot);
      traces = series.map((name, index) => ({ ...of(name, index), name: short(name, isNarrow ? 38 : 100) }));
      layout.height = height + 8 + below;
      layout.margin.b = below;
      layout.showlegend = true;
      layout.legend = { x: 0, xanchor: "left", y: -56 / height, yanchor: "top", font, title: { text: "line, by its first case" } };
      layout.xaxis = axis(short(plot.axis, 40), ticks(steps, [-0.3, steps.length - 0.7]));
      layout.yaxis = valueAxis;
    } else {
      const names = rows.map(({ name }) => short(name, isNarrow ? 46 : 56)), top = isNarrow ? 0.85 : 0.6;
      traces = [rounds(rows), values(rows, 0, plot)];
      layout.height = (isNarrow ? 46 : 30) * (names.length - 0.4 + top) + 56;
      layout.showlegend = false;
      layout.xaxis = valueAxis;
      layout.yaxis = axis("", { ...ticks(names, [names.length - 0.4, -top]), showticklabels: !isNarrow, fixedrange: true, color: ink });
      /* On a phone, the name of a row is above it. */
      layout.annotations = isNarrow ? names.map((text, row) => ({
        text, x: 0, xref: "paper", xanchor: "left", y: row - 0.48, yref: "y", showarrow: false, font: { ...font, size: 11 }, bgcolor: paper,
      })) : [];
      const at = { type: "line", yref: "paper", x0: reference, x1: reference, y0: 0, y1: 1, layer: "below", line: { color: ink } };
      layout.shapes = reference ? [at] : [];
    }
    Plotly.react(box, traces, layout, { displayModeBar: false, showTips: false });
    figure.element.dataset.drawn = scheme;
  };

  /* Each by itself, so that the page answers meanwhile; those in closed parts when these are opened. */
  const redraw = (some) => {
    delete root.dataset.plots;
    for (const figure of some) setTimeout(draw, 0, figure);
    setTimeout(() => { root.dataset.plots = "drawn"; });
  };
  const observer = new ResizeObserver((sizes) => redraw(figures.filter(({ box }) => sizes.some(({ target }) => target === box))));
  figures.forEach(({ box }) => observer.observe(box));
  isDark.addEventListener("change", () => redraw(figures));
})();
