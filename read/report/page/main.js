// Assembles the page.
import { counted, duration, element, plural } from "./text.js";
import { again, load } from "./data.js";
import { childrenOf, cpuLabel, neighbour, parentOf } from "./rows.js";
import { Timeline, describe } from "./timeline.js";
import { Panel, leftOut, tabsOf } from "./panel.js";

const part = (id) => document.getElementById(id);

// Maximum number of losses that are listed at the top.
const LOSSES_TOLD = 3;

const KEYS = [
  ["Look around", [["W S", "zoom in, zoom out; so does the wheel"], ["A D ← →", "earlier, later; so does dragging"], ["↑ ↓", "scroll; so does the wheel over the names, or with Shift"], ["Home", "the whole trace"], ["drag the time axis", "zoom to a range; so does dragging with Shift"], ["double click, f", "zoom to a slice"], ["g", "by thread or by CPU"]]],
  ["Go from one to another", [["[ ]", "previous, next of the same name"], ["p c", "what it is nested in, the longest that is nested in it"], ["k", "next with the same key"], ["/", "search; Enter goes to the next match"], ["n N", "next, previous match"], ["Escape", "deselect, end the search"]]],
  ["Page", [["1 to 7", "the views below the timeline"], ["t", "dark or light"], ["?", "this list"]]],
];

const darkness = window.matchMedia("(prefers-color-scheme: dark)");

function paint(theme) {
  document.documentElement.dataset.shown = theme ?? (darkness.matches ? "dark" : "light");
}

// Returns the notes that a reader must know before trusting the picture. `before`: name of the trace, if there are two.
function notesOf({ losses: all, notes }, where, before) {
  const made = [];
  const losses = all.slice().sort((a, b) => b.events - a.events);
  const line = (text, kind) => element("p", { class: kind, text: before + text });
  for (const loss of losses.slice(0, LOSSES_TOLD)) {
    const what = loss.events ? `${plural(loss.events, "event")} lost` : "Events may be lost";
    const why = loss.events ? "" : `: ${loss.text}`;
    made.push(line(`${what} between ${duration(loss.begin)} and ${duration(loss.end)} on ${where(loss)}${why}`, "loss"));
  }
  if (losses.length > LOSSES_TOLD) {
    const rest = losses.slice(LOSSES_TOLD);
    made.push(line(`${plural(rest.reduce((sum, loss) => sum + loss.events, 0), "event")} lost at ${plural(rest.length, "more place")}: see “What is left out”`, "loss"));
  }
  made.push(...notes.map((text) => line(text, "note")));
  return made;
}

function notes(report) {
  const where = (loss) => (loss.cpu === null ? loss.stream : cpuLabel(report, loss.cpu));
  const made = notesOf(report, where, report.diff ? "A: " : "");
  if (report.diff) made.push(...notesOf(report.diff, (loss) => loss.stream, "B: "));
  const left = leftOut(report);
  if (left.length) made.push(element("p", { class: "left", text: `Tables count every event; in the pictures ${left.join("; ")}.` }));
  return made;
}

// Whether two entries are the same item, which can be both in the page and in a response.
const isSame = (report, a, b) => ["begin", "duration", "name"].every((column) => report[column][a] === report[column][b]);

async function start() {
  paint();
  const begun = performance.now();
  const report = await load();
  const title = report.diff ? `A: ${report.title}, B: ${report.diff.title}` : report.title;
  document.title = `${title} – Dormouse report`;
  part("title").textContent = part("title").title = title;
  part("about").textContent = [`${plural(report.events, "event")} in ${duration(report.span)}`, ...report.about].join(" · ");
  part("about").title = part("about").textContent;
  const said = notes(report);
  part("notes").replaceChildren(...said);
  part("notes").hidden = said.length === 0;

  let panel;
  const timeline = new Timeline(report, { canvas: part("timeline"), overview: part("overview"), scroller: part("scroller"), spacer: part("spacer"), tooltip: part("tooltip") }, {
    selected(entry) {
      panel?.select(entry);
      part("said").textContent = entry ? describe(report, entry).join(", ") : "Nothing is selected";
    },
    // Other items with its key have arrived.
    linked: () => panel?.tab === "item" && panel.show(),
    failed(error) {
      part("failed").hidden = false;
      part("failed").textContent = `What is not in this page yet cannot be had: ${error.message}. Is \`dormouse open\` still there?`;
    },
  });
  const { state } = timeline;
  const select = (found) => found && timeline.select(found, true);
  const step = (forward, is) => {
    const { selected } = state;
    const time = selected ? report.begin[selected.at] : state.begin;
    // The same item can be both in the page and in a response.
    const same = (at) => selected && at !== selected.at && isSame(report, at, selected.at) && (at >= report.own || selected.at >= report.own);
    select(neighbour(report, state.isByCpu, time, selected ? selected.at : -1, forward, (at) => !same(at) && is(at)));
  };
  const same = (forward) => state.selected && step(forward, (at) => report.name[at] === report.name[state.selected.at]);
  panel = new Panel(report, { tabs: part("tabs"), view: part("view") }, {
    select,
    same,
    zoomTo: (entry) => timeline.zoomTo(entry),
    show: (begin, span) => timeline.show(begin, span),
    first: (name) => select(neighbour(report, state.isByCpu, -1, -1, 1, (at) => report.name[at] === name)),
    flow: () => state.flow,
    isByCpu: () => state.isByCpu,
    theme: () => state.theme,
    colors: () => state.colors,
  });

  const group = (isByCpu) => {
    timeline.group(isByCpu);
    part("by-cpu").setAttribute("aria-pressed", isByCpu);
    part("by-thread").setAttribute("aria-pressed", !isByCpu);
  };
  const theme = () => {
    paint(document.documentElement.dataset.shown === "dark" ? "light" : "dark");
    recolor();
  };
  const recolor = () => {
    timeline.recolor();
    panel.show();
  };
  darkness.addEventListener("change", () => {
    paint();
    recolor();
  });

  const query = part("query");
  const search = () => {
    const wanted = query.value.trim().toLowerCase();
    if (!wanted) {
      timeline.match(undefined);
      part("matches").textContent = "";
      return;
    }
    const matches = Uint8Array.from(report.names, (name) => name.toLowerCase().includes(wanted));
    timeline.match(matches);
    const count = report.summary.reduce((sum, row) => sum + (matches[row.name] ? row.count : 0), 0);
    part("matches").textContent = count ? counted(count) : "none";
  };
  const matching = (forward) => state.matches && step(forward, (at) => state.matches[report.name[at]] === 1);
  query.addEventListener("input", search);
  query.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter") matching(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") {
      query.value = "";
      search();
      part("scroller").focus();
    }
  });
  part("next").addEventListener("click", () => matching(1));
  part("previous").addEventListener("click", () => matching(-1));
  part("by-thread").addEventListener("click", () => group(false));
  part("by-cpu").addEventListener("click", () => group(true));
  part("whole").addEventListener("click", () => timeline.whole());
  part("theme").addEventListener("click", theme);
  part("again").hidden = !report.is_growing;
  part("again").addEventListener("click", async () => {
    part("again").disabled = true;
    try {
      await again();
      window.location.reload();
    } catch (error) {
      part("again").disabled = false;
      part("failed").hidden = false;
      part("failed").textContent = `What was recorded since cannot be read: ${error.message}`;
    }
  });

  const keys = part("keys");
  keys.append(element("h2", { text: "Keys" }), ...KEYS.flatMap(([title, list]) => [
    element("h3", { text: title }),
    element("dl", {}, ...list.flatMap(([key, text]) => [element("dt", {}, element("kbd", { text: key })), element("dd", { text })])),
  ]), element("form", { method: "dialog" }, element("button", { text: "Close" })));
  part("help").addEventListener("click", () => keys.showModal());

  const sameKey = () => {
    const { flow, selected } = state;
    const index = flow.findIndex((one) => selected && isSame(report, one.at, selected.at));
    select(flow[(index + 1) % Math.max(1, flow.length)]);
  };
  const acts = {
    Home: () => timeline.whole(),
    Escape: () => (state.selected ? timeline.select(undefined) : ((query.value = ""), search())),
    "/": () => query.focus(),
    "?": () => keys.showModal(),
    n: () => matching(1),
    N: () => matching(-1),
    "[": () => same(-1),
    "]": () => same(1),
    p: () => state.selected && select(parentOf(report, state.selected)),
    c: () => state.selected && select(childrenOf(report, state.selected, 1).children[0]),
    k: sameKey,
    g: () => group(!state.isByCpu),
    t: theme,
    ...Object.fromEntries(tabsOf(report).map(([tab], index) => [String(index + 1), () => panel.open(tab)])),
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target instanceof HTMLSelectElement || event.target instanceof HTMLInputElement;
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping || keys.open) return;
    // In a panel that scrolls, the arrow keys scroll.
    if (part("view").contains(event.target) && event.key.startsWith("Arrow")) return;
    const act = acts[event.key];
    if (act) act();
    else if (!timeline.key(event)) return;
    event.preventDefault();
  });

  divide();
  // For tests: the current state, and the time of each frame's script in milliseconds.
  window.dormouseReport = { report, timeline, panel, ready_ms: performance.now() - begun };
  document.documentElement.dataset.ready = "";
}

// Lets the line between timeline and panel be moved by pointer and keys.
function divide() {
  const [divider, panel] = [part("divider"), part("panel")];
  const set = (height) => (panel.style.flexBasis = `${Math.max(60, Math.min(height, window.innerHeight - 220))}px`);
  divider.addEventListener("pointerdown", (event) => {
    divider.setPointerCapture(event.pointerId);
    const move = (event) => set(window.innerHeight - event.clientY - 4);
    divider.addEventListener("pointermove", move);
    divider.addEventListener("pointerup", () => divider.removeEventListener("pointermove", move), { once: true });
  });
  divider.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 30, ArrowDown: -30 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    set(panel.clientHeight + step);
  });
}

start().catch((error) => {
  part("about").textContent = `This report cannot be shown: ${error}. It needs a browser of 2023 or later.`;
  throw error;
});
