"use strict";
/* Draws the figures that stand in the page's data blocks, anew when the scheme or the width changes. */
(() => {
  const root = document.documentElement;
  const NARROW = 600;
  const figures = [...document.querySelectorAll("figure")].map((element) => ({
    element,
    box: element.querySelector(".plot"),
    data: JSON.parse(element.querySelector("script").textContent),
    view: 0,
    hidden: new Set(),
    width: 0,
  }));

  /* A copy for plotly.js, which keeps what it is given; colours are names of variables until here. */
  const resolved = (value, style, key) => {
    if (Array.isArray(value)) return value.map((item) => resolved(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolved(item, style, key)]));
    }
    const isName = key === "color" && typeof value === "string" && value.startsWith("--");
    return isName ? style.getPropertyValue(value).trim() : value;
  };

  const axis = (style) => ({
    automargin: true,
    color: style.getPropertyValue("--quiet").trim(),
    gridcolor: style.getPropertyValue("--grid").trim(),
    zerolinecolor: style.getPropertyValue("--axis").trim(),
    linecolor: style.getPropertyValue("--axis").trim(),
    ticks: "",
    exponentformat: "none",
  });

  const titled = (axis = {}, { size }) => (axis.title ? { ...axis, title: { ...axis.title, font: { size } } } : axis);

  const draw = (figure) => {
    const width = figure.box.clientWidth;
    if (!width) return false;
    const style = getComputedStyle(root);
    const { rows, views } = figure.data;
    const view = views[figure.view];
    const isNarrow = width < NARROW;
    const isTouched = isNarrow || matchMedia("(pointer: coarse)").matches;
    const own = resolved(view.layout, style);
    const source = typeof view.traces === "number" ? views[view.traces].traces : view.traces;
    const traces = resolved(source, style).map((trace, index) => ({ ...trace, visible: !figure.hidden.has(index) }));
    const colour = (name) => style.getPropertyValue(name).trim();
    const family = getComputedStyle(document.body).fontFamily;
    const font = { family, size: isNarrow ? 12 : 13, color: colour("--ink") };
    const layout = {
      ...own,
      width,
      font,
      paper_bgcolor: colour("--paper"),
      plot_bgcolor: colour("--paper"),
      showlegend: false,
      hovermode: "closest",
      hoverlabel: { font, align: "left", bgcolor: colour("--raised"), bordercolor: colour("--axis") },
      violinmode: "overlay",
      /* A finger scrolls the page; a mouse may look closer, and a double click goes back. */
      dragmode: isTouched ? false : "zoom",
      margin: { l: isNarrow ? 8 : 56, r: isNarrow ? 10 : 20, t: 8, b: 48 },
      xaxis: { ...axis(style), ...titled(own.xaxis, font), fixedrange: isTouched },
      yaxis: { ...axis(style), ...titled(own.yaxis, font), fixedrange: isTouched },
    };
    if (rows.length) {
      const pitch = isNarrow ? 60 : rows.length < 4 ? 52 : 42;
      const top = isNarrow ? 0.68 : 0.55;
      layout.height = pitch * (rows.length - 0.5 + top) + 56;
      layout.yaxis = {
        ...layout.yaxis,
        range: [rows.length - 0.5, -top],
        tickmode: "array",
        tickvals: rows.map((_, row) => row),
        ticktext: rows,
        showticklabels: !isNarrow,
        zeroline: false,
        fixedrange: true,
        color: font.color,
      };
      if (isNarrow) {
        layout.annotations = rows.map((text, row) => ({
          text, x: 0, xref: "paper", xanchor: "left", y: row - 0.49, yref: "y", yanchor: "middle",
          showarrow: false, font, align: "left", xshift: -2, bgcolor: layout.plot_bgcolor, borderpad: 1,
        }));
      }
    } else {
      layout.height = isNarrow ? 320 : 400;
      layout.margin.l = 48;
      if (isNarrow) layout.xaxis.tickangle = "auto";
    }
    figure.width = width;
    const config = { displayModeBar: false, showTips: false, responsive: false, doubleClick: "reset" };
    Plotly.react(figure.box, traces, layout, config);
    figure.element.dataset.drawn = root.dataset.scheme;
    return true;
  };

  /* One at a time, so that the page answers while they are drawn; closed ones when they are opened. */
  let turn = 0;
  const drawAll = () => {
    const mine = ++turn;
    const queue = [...figures];
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
    figure.element.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (!button) return;
      if (button.dataset.view) {
        figure.view = Number(button.dataset.view);
        for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
      } else {
        const isShown = button.getAttribute("aria-pressed") === "true";
        for (const trace of button.dataset.traces.split(" ").map(Number)) figure.hidden[isShown ? "add" : "delete"](trace);
        button.setAttribute("aria-pressed", String(!isShown));
      }
      draw(figure);
    });
  }
  for (const details of document.querySelectorAll("details")) {
    details.addEventListener("toggle", () => {
      if (details.open && figures.some(({ box }) => details.contains(box))) drawAll();
    });
  }
  let pause;
  addEventListener("resize", () => {
    clearTimeout(pause);
    const isOther = ({ box, width }) => width && box.clientWidth !== width;
    pause = setTimeout(() => { if (figures.some(isOther)) drawAll(); }, 100);
  });

  const { now, apply, choose, system } = dormouseScheme;
  const button = document.getElementById("scheme");
  const show = (scheme) => {
    apply(scheme);
    button.textContent = scheme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Show the page ${scheme === "dark" ? "light" : "dark"}`);
    drawAll();
  };
  button.hidden = false;
  button.addEventListener("click", () => { choose(now() === "dark" ? "light" : "dark"); show(now()); });
  system.addEventListener("change", () => show(now()));
  /* Paper is light. */
  addEventListener("beforeprint", () => { turn++; apply("light"); figures.forEach(draw); });
  addEventListener("afterprint", () => show(now()));
  show(now());
})();
