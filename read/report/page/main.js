// Assembles the page.
import { clock, countFrom, counted, duration, element, fromBegin, fromZero, moment, plural, zoneOf } from "./text.js";
import { again, load } from "./data.js";
import { Labels, NO_FIELDS, Search } from "./fields.js";
import { originOf } from "./groups.js";
import { childrenOf, cpuLabel, find, neighbour, parentOf } from "./rows.js";
import { Timeline, describe } from "./timeline.js";
import { FIELDS_CHOSEN, Panel, leftOut, tabsOf } from "./panel.js";

const part = (id) => document.getElementById(id);

// Maximum number of losses that are listed at the top.
const LOSSES_TOLD = 3;
// Milliseconds until the address names what is shown.
const LINK_MS = 400;

const keysOf = (report) => [
  ["Look around", [["W S", "zoom in, zoom out; so does the wheel"], ["A D ← →", "earlier, later; so does dragging"], ["↑ ↓", "scroll; so does the wheel over the names, or with Shift"], ["Home", "the whole trace"], ["drag the time axis", "zoom to a range"], ["double click, f", "zoom to a slice"], ["g", "by thread, by CPU, or by label"], ["o", "processes and threads by work or by begin"], ["drag with Shift, r", "restrict the tables to a range, or to what is shown"]]],
  ["Go from one to another", [["[ ]", "previous, next of the same name"], ["p c", "what it is nested in, the longest that is nested in it"], ["k", "next with the same key"], ["/", "search names, processes, threads and values; Enter goes to the next match"], ["n N", "next, previous match"], ["Escape", "deselect, end the range, end the search"]]],
  ["Page", [[`1 to ${tabsOf(report).length}`, "the views below the timeline"], ["t", "dark or light"], ["?", "this list"]]],
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
    made.push(line(`${what} between ${moment(loss.begin)} and ${moment(loss.end)} on ${where(loss)}${why}`, "loss"));
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
  countFrom(report.since_zero);
  const title = report.diff ? `A: ${report.title}, B: ${report.diff.title}` : report.title;
  document.title = `${title} – Dormouse report`;
  part("title").textContent = part("title").title = title;
  const zeroAt = report.begin_at - BigInt(report.since_zero);
  report.about.unshift(`0 is ${clock(zeroAt, 0)} ${zoneOf(zeroAt)}`);
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
    restricted: (area) => panel.restrict(area),
    drawn: () => link(),
    failed(error) {
      part("failed").hidden = false;
      part("failed").textContent = `What is not in this page yet cannot be had: ${error.message}. Is \`dormouse open\` still there?`;
    },
  });
  const { state } = timeline;
  const select = (found) => {
    if (!found) return;
    // Slices on lanes are on no CPU, and some items have no label.
    const { begin, duration, name } = report;
    if (found.row.by !== state.by && !find(report, state.by, begin[found.at], duration[found.at], name[found.at])) group("thread");
    timeline.select(found, true);
  };
  const step = (forward, is) => {
    const { selected } = state;
    const time = selected ? report.begin[selected.at] : state.begin;
    // The same item can be both in the page and in a response.
    const same = (at) => selected && at !== selected.at && isSame(report, at, selected.at) && (at >= report.own || selected.at >= report.own);
    select(neighbour(report, state.by, time, selected ? selected.at : -1, forward, (at) => !same(at) && is(at)));
  };
  const same = (forward) => state.selected && step(forward, (at) => report.name[at] === report.name[state.selected.at]);
  panel = new Panel(report, { tabs: part("tabs"), view: part("view") }, {
    select,
    same,
    zoomTo: (entry) => timeline.zoomTo(entry),
    show: (begin, span) => timeline.show(begin, span),
    first: (name, begin) => select(neighbour(report, state.by, begin - 1, -1, 1, (at) => report.name[at] === name)),
    restrict: (area) => timeline.restrict(area),
    query: (text) => {
      query.value = text;
      search();
    },
    flow: () => state.flow,
    search: () => state.search,
    asked: (...what) => timeline.asked(...what),
    theme: () => state.theme,
    colors: () => state.colors,
  });

  const groupings = { thread: part("by-thread"), cpu: part("by-cpu"), label: part("by-label") };
  const pressed = () => {
    for (const [by, button] of Object.entries(groupings)) button.setAttribute("aria-pressed", state.by === by);
    groupings.label.disabled = !label.value.trim();
  };
  const group = (by) => {
    timeline.group(by);
    pressed();
    // The program that serves the page finds items of one grouping.
    if (report.is_served && state.search) search();
  };
  const order = (isByBegin) => {
    timeline.order(isByBegin);
    part("order").setAttribute("aria-pressed", !isByBegin);
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
  let running;
  const search = async () => {
    if (running) running.isStopped = true;
    running = query.value.trim() ? new Search(report, query.value) : undefined;
    const made = running;
    const tell = (isOver) => {
      timeline.search(made);
      const count = made?.count(state.by);
      part("matches").textContent = made ? (count ? counted(count) : isOver ? "none" : "…") : "";
      part("matches").setAttribute("aria-busy", !isOver);
    };
    tell(made === undefined);
    if (!made) {
      panel?.searched();
      return;
    }
    try {
      if (await made.run(state.by, (...what) => timeline.asked(...what))) tell(true);
      panel.searched();
    } catch (error) {
      tell(true);
      part("matches").textContent = `not read: ${error.message}`;
    }
  };
  const matching = (forward) => state.search && step(forward, (at) => state.search.hits[at] === 1);

  const label = part("label");
  part("fields-known").append(...report.field_names.map((name) => element("option", { value: `{${name}}` })));
  part("labelling").hidden = report.is_served || !report.chunks.length;
  let labelling;
  // `isGrouped`: whether the rows are then those of labels.
  const relabel = async (isGrouped) => {
    if (labelling) labelling.isStopped = true;
    const text = label.value.trim();
    labelling = text ? new Labels(report, report.field_names.includes(text) ? `{${text}}` : text) : undefined;
    const made = labelling;
    label.setAttribute("aria-busy", made !== undefined);
    if (made && !(await made.run())) return;
    label.setAttribute("aria-busy", false);
    timeline.label(made);
    if (isGrouped && made) timeline.group("label");
    pressed();
  };
  label.addEventListener("change", () => relabel(state.by === "label"));
  label.addEventListener("input", pressed);

  query.addEventListener("input", () => {
    panel.by.isOnly = true;
    search();
  });
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
  for (const [by, button] of Object.entries(groupings)) button.addEventListener("click", () => (by === "label" && !state.labels ? relabel(true) : group(by)));
  part("order").addEventListener("click", () => order(!state.isByBegin));
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
  keys.append(element("h2", { text: "Keys" }), ...keysOf(report).flatMap(([title, list]) => [
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
    Escape: () => (state.selected ? timeline.select(undefined) : state.area ? timeline.restrict(undefined) : ((query.value = ""), search())),
    "/": () => query.focus(),
    "?": () => keys.showModal(),
    n: () => matching(1),
    N: () => matching(-1),
    "[": () => same(-1),
    "]": () => same(1),
    p: () => state.selected && select(parentOf(report, originOf(report, state.selected))),
    c: () => state.selected && select(childrenOf(report, originOf(report, state.selected), 1).children[0]),
    k: sameKey,
    g: () => group({ thread: "cpu", cpu: state.labels ? "label" : "thread", label: "thread" }[state.by]),
    o: () => order(!state.isByBegin),
    r: () => timeline.restrict(state.area ? undefined : [state.begin, state.begin + state.span]),
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

  // The address names what is shown: whoever opens it sees the same.
  let isLinking = false;
  const tabAtFirst = panel.tab;
  const fragment = () => {
    const made = new URLSearchParams();
    const { begin, span, by } = timeline.view;
    const put = (name, value) => value && made.set(name, value);
    if (span < report.span) made.set("from", fromZero(begin));
    if (span < report.span) made.set("for", span);
    put("by", by !== "thread" && by);
    put("order", state.isByBegin && "begin");
    put("tab", panel.tab !== tabAtFirst && panel.tab);
    put("find", query.value.trim());
    put("of", panel.tab === "fields" && panel.by.name >= 0 && report.names[panel.by.name]);
    put("fields", panel.tab === "fields" && panel.by.fields.join());
    if (label.value.trim() !== report.label) made.set("label", label.value.trim());
    put("range", state.area?.map(fromZero).join());
    const at = state.selected?.at;
    if (at !== undefined) made.set("item", [fromZero(report.begin[at]), report.duration[at], report.names[report.name[at]]].join());
    return made.toString();
  };
  const link = () => {
    if (isLinking) return;
    isLinking = true;
    setTimeout(() => {
      isLinking = false;
      const made = fragment();
      if (made !== window.location.hash.slice(1)) window.history.replaceState(null, "", `#${made}`);
    }, LINK_MS);
  };
  // Shows what a fragment of the address names.
  const follow = (hash) => {
    const asked = new URLSearchParams(hash.slice(1));
    const time = (text) => fromBegin(Number(text));
    group(asked.get("by") === "cpu" ? "cpu" : "thread");
    order(asked.get("order") === "begin");
    query.value = asked.get("find") ?? "";
    search();
    label.value = asked.get("label") ?? report.label;
    relabel(asked.get("by") === "label");
    const range = asked.get("range")?.split(",").map(time) ?? [];
    timeline.restrict(range.length === 2 && range.every(Number.isFinite) ? range : undefined);
    const [begin, long, ...name] = (asked.get("item") ?? "").split(",");
    timeline.select(find(report, state.by, time(begin), Number(long), report.names.indexOf(name.join())));
    const of = report.names.indexOf(asked.get("of"));
    Object.assign(panel.by, { name: of >= 0 ? of : undefined, fields: (asked.get("fields") ?? "").split(",").filter((field) => NO_FIELDS.includes(field) || report.field_names.includes(field)).slice(0, FIELDS_CHOSEN) });
    const tab = asked.get("tab") ?? tabAtFirst;
    panel.open(tabsOf(report).some(([name]) => name === tab) ? tab : tabAtFirst);
    const view = [time(asked.get("from") ?? NaN), Number(asked.get("for"))];
    if (view.every(Number.isFinite) && view[1] > 0) timeline.show(...view);
    else timeline.whole();
  };
  follow(window.location.hash);
  // The page can have changed the address since.
  window.addEventListener("hashchange", (event) => follow(new URL(event.newURL).hash));
  for (const kind of ["click", "keyup", "input", "change"]) document.addEventListener(kind, link);

  // Paper is light.
  let shownBefore;
  window.addEventListener("beforeprint", () => {
    shownBefore = document.documentElement.dataset.shown;
    paint("light");
    recolor();
    timeline.frame();
  });
  window.addEventListener("afterprint", () => {
    paint(shownBefore);
    recolor();
  });
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
