"use strict";
/* Draws the tables of the page's data block, anew when the scheme or the width changes. */
(() => {
  const NARROW = 600, SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "hexagon"];
  const root = document.documentElement, isDark = matchMedia("(prefers-color-scheme: dark)");
  const tables = JSON.parse(document.getElementById("plots").textContent);
  const figures = [...document.querySelectorAll("figure")].map((element, index) => ({
    element, table: tables[index], box: element.querySelector(".plot"), isInOrder: false, width: 0,
  }));
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  /* The plotting library reads tags and entities in text. */
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  /* What is longer is cut off; tables have all of it. */
  const short = (text, length) => plain(text.length > length ? `${text.slice(0, length - 1)}…` : text);
  const rounded = (value) => Number(value.toPrecision(3));

  /* Ticks of a logarithmic axis: equal steps within a narrow range, else 1, 2, 5 of each decade, or powers of ten alone. */
  const logTicks = (low, high) => {
    const ticks = [];
    if (high / low < 6) {
      const rough = (high - low) / 5, decade = 10 ** Math.floor(Math.log10(rough));
      const step = decade * ([1, 2, 5].find((step) => step * decade >= rough) ?? 10);
      for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(rounded(tick));
    } else {
      const apart = Math.ceil(Math.log10(high / low) / 6);
      for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade += apart) {
        for (const step of high / low > 1e3 ? [1] : [1, 2, 5]) ticks.push(rounded(step * 10 ** decade));
      }
    }
    return { type: "log", tickmode: "array", tickvals: ticks, ticktext: ticks.map(String), range: [Math.log10(low), Math.log10(high)] };
  };

  /* The axis of values, and where values stand on it: on a logarithmic one, what is not above its end stands at its end. */
  const valueAxis = ({ rows, isLog, reference, values }) => {
    const title = { text: short(values, 24) };
    if (!isLog) return { axis: { type: "linear", rangemode: "tozero", title }, place: (value) => value };
    const above = rows.map(({ value }) => value).concat(reference ?? []).filter((value) => value > 0);
    const high = Math.max(...rows.flatMap(({ value, ci95 }) => ci95 ?? [value]), ...above) * 1.3;
    const low = Math.max(Math.min(...above) / 2, high / 1e9);
    return { axis: { ...logTicks(low, high), title }, place: (value) => Math.max(value, low) };
  };
  const bars = (rows, place, color) => ({
    type: "data", symmetric: false, color, thickness: 2, width: 4,
    array: rows.map(({ value, ci95 }) => (ci95 ? Math.max(0, place(ci95[1]) - place(value)) : 0)),
    arrayminus: rows.map(({ value, ci95 }) => (ci95 ? Math.max(0, place(value) - place(ci95[0])) : 0)),
  });
  const marks = { type: "scatter", hovertemplate: "%{customdata}<extra></extra>" };
  const hover = ({ name, said }) => `${short(name, 60)}<br>${plain(said)}`;

  /* A figure by kind: traces, and the two axes. */
  const kinds = {
    intervals: (table) => {
      const { rows } = table, { axis, place } = valueAxis(table), color = colour("c0");
      /* What has no interval is an empty mark. */
      const symbol = rows.map(({ ci95 }) => (ci95 ? "circle" : "circle-open"));
      const trace = {
        ...marks, mode: "markers", x: rows.map(({ value }) => place(value)), y: rows.map((_, row) => row), customdata: rows.map(hover),
        error_x: bars(rows, place, color), marker: { color, symbol, size: 9 },
      };
      return { traces: [trace], xaxis: axis, names: rows.map(({ name }) => name) };
    },
    lines: (table, isNarrow) => {
      const { rows, steps } = table, { axis: yaxis, place } = valueAxis(table);
      const series = [...new Set(rows.map(({ series }) => series))];
      const traces = series.map((name, index) => {
        const own = rows.filter((row) => row.series === name), color = colour(`c${index % SYMBOLS.length}`);
        return {
          ...marks, mode: "lines+markers", x: own.map(({ x }) => x), y: own.map(({ value }) => place(value)), customdata: own.map(hover),
          name: short(name, isNarrow ? 38 : 100), error_y: bars(own, place, color), line: { color, width: 2 },
          marker: { color, symbol: SYMBOLS[index % SYMBOLS.length], size: 8 },
        };
      });
      const ticks = { tickmode: "array", tickvals: steps.map((_, x) => x), ticktext: steps.map((step) => short(step, 12)), zeroline: false };
      const xaxis = { ...ticks, title: { text: short(table.axis, 40) }, range: [-0.3, steps.length - 0.7] };
      return { traces, xaxis, yaxis, series };
    },
    rounds: ({ rows, values, axis, reference }, _, isInOrder) => {
      const inside = (round) => Math.max(-reference, Math.min(reference, round));
      const traces = rows.map(({ name, said, rounds }, row) => {
        const color = colour(`c${row % 2 ? 1 : 0}`), order = rounds.map((_, index) => index + 1);
        /* By size, points are spread within their row so that few hide others. */
        const places = rounds.map((round, index) =>
          row + (isInOrder ? (-inside(round) / reference) * 0.4 : (((index * 0.618) % 1) - 0.5) * 0.5));
        return {
          ...marks, mode: isInOrder ? "lines+markers" : "markers", x: isInOrder ? order : rounds.map(inside), y: places,
          customdata: rounds.map((round, index) => `${hover({ name, said })}<br>round ${index + 1}: ${round} %`),
          line: { color, width: 1 },
          marker: {
            color, opacity: isInOrder ? 1 : 0.6, size: isInOrder ? 3 : 5,
            symbol: rounds.map((round) => (Math.abs(round) > reference ? "x" : "circle")),
          },
        };
      });
      const byOrder = { title: { text: short(axis, 40) }, rangemode: "tozero" };
      const bySize = { title: { text: short(values, 40) }, range: [-reference * 1.04, reference * 1.04], zeroline: true };
      return { traces, xaxis: isInOrder ? byOrder : bySize, names: rows.map(({ name }) => name) };
    },
  };

  const draw = (figure) => {
    const width = figure.box.clientWidth;
    if (!width) return false;
    const { table } = figure, isNarrow = width < NARROW;
    const isTouched = isNarrow || matchMedia("(pointer: coarse)").matches;
    const { traces, xaxis, yaxis, names, series } = kinds[table.kind](table, isNarrow, figure.isInOrder);
    const font = { family: getComputedStyle(document.body).fontFamily, size: isNarrow ? 12 : 13, color: colour("ink") };
    const base = {
      automargin: true, color: colour("quiet"), gridcolor: colour("grid"), zerolinecolor: colour("axis"), ticks: "",
      exponentformat: "none", fixedrange: isTouched,
    };
    const layout = {
      width, font, showlegend: Boolean(series), hovermode: "closest", paper_bgcolor: colour("paper"), plot_bgcolor: colour("paper"),
      hoverlabel: { font, align: "left", bgcolor: colour("paper"), bordercolor: colour("axis") },
      /* A finger scrolls the page; a mouse may look closer, and a double click goes back. */
      dragmode: isTouched ? false : "zoom", margin: { l: 12, r: 24, t: 8, b: 48 }, xaxis: { ...base, ...xaxis },
    };
    if (names) {
      const pitch = isNarrow ? 46 : 30, top = isNarrow ? 0.85 : 0.6;
      layout.height = pitch * (names.length - 0.4 + top) + 56;
      layout.yaxis = {
        ...base, range: [names.length - 0.4, -top], tickmode: "array", tickvals: names.map((_, row) => row), zeroline: false,
        ticktext: names.map((name) => short(name, 56)), showticklabels: !isNarrow, fixedrange: true, color: font.color,
      };
      /* On a phone, the name of a row is above it. */
      layout.annotations = isNarrow ? names.map((name, row) => ({
        text: short(name, 46), x: 0, xref: "paper", xanchor: "left", y: row - 0.48, yref: "y",
        yanchor: "middle", showarrow: false, font: { ...font, size: 11 }, bgcolor: colour("paper"), borderpad: 0,
      })) : [];
      if (table.kind === "intervals" && table.reference) {
        const line = { color: colour("ink"), width: 1.5 };
        layout.shapes = [{ type: "line", yref: "paper", x0: table.reference, x1: table.reference, y0: 0, y1: 1, layer: "below", line }];
      }
    } else {
      const legend = series.length * 22 + 8, plot = isNarrow ? 260 : 320;
      layout.height = 8 + plot + 56 + legend;
      layout.margin.b = 56 + legend;
      layout.legend = { x: 0, xanchor: "left", y: -56 / plot, yanchor: "top", font, itemwidth: 30 };
      layout.yaxis = { ...base, ...yaxis };
    }
    figure.width = width;
    Plotly.react(figure.box, traces, layout, { displayModeBar: false, showTips: false, doubleClick: "reset" });
    figure.element.dataset.drawn = isDark.matches ? "dark" : "light";
    return true;
  };

  /* One at a time, so that the page answers while they are drawn; closed ones when they are opened. */
  let turn = 0;
  const drawAll = () => {
    const mine = ++turn, queue = [...figures];
    delete root.dataset.plots;
    const next = () => {
      if (mine !== turn) return;
      while (queue.length && !draw(queue.shift()));
      if (queue.length) setTimeout(next);
      else root.dataset.plots = "drawn";
    };
    next();
  };

  for (const figure of figures) {
    const button = figure.element.querySelector("button");
    button?.addEventListener("click", () => {
      figure.isInOrder = !figure.isInOrder;
      button.setAttribute("aria-pressed", String(figure.isInOrder));
      draw(figure);
    });
  }
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", drawAll);
  let pause;
  addEventListener("resize", () => {
    clearTimeout(pause);
    pause = setTimeout(() => { if (figures.some(({ box, width }) => width && box.clientWidth !== width)) drawAll(); }, 100);
  });
  isDark.addEventListener("change", drawAll);
  /* Paper is light. */
  addEventListener("beforeprint", () => { turn++; root.classList.add("light"); figures.forEach(draw); });
  addEventListener("afterprint", () => { root.classList.remove("light"); drawAll(); });
  drawAll();
})();
