// The timeline: the visible part, and the actions of pointer and keys.
import { counted, duration, element, inUnit, plural, since } from "./text.js";
import { HEADER, firstAfter, layout, levelOf, pointAt, pointsOf, sameKey, whoLabel, cpuLabel, find } from "./rows.js";
import { fieldsOf, partOf, spreadThreads } from "./data.js";
import { fieldTable } from "./fields.js";
import { groupByLabel } from "./groups.js";
import { colorsOf, colorsOfLabels, themeOf } from "./colors.js";
import { AXIS, draw, drawOverview } from "./draw.js";

// Least visible span, in nanoseconds.
const SPAN_MIN = 20;
// Steps of zooming and panning, for a key or a turn of the wheel.
const ZOOM = 1.25;
const PAN = 0.12;
// Pixels by which a press may move and still be a click.
const CLICK = 4;
// Maximum number of lines to others with the same key.
const FLOW_MAX = 200;
// Factors for the height of rows, if there is room.
const SCALES = [1.8, 1.4];
// Number of frames whose times are kept.
const FRAMES_KEPT = 4096;
// Maximum number of fields in a tooltip, and milliseconds before those of a served page are requested for it.
const FIELDS_MAX = 14;
const PATIENCE_MS = 150;

export class Timeline {
  constructor(report, parts, listener) {
    this.report = report;
    this.parts = parts;
    this.listener = listener;
    this.frames = [];
    this.closed = new Set();
    this.state = { report, begin: 0, span: report.span, top: 0, by: "thread", isByBegin: false, doubtful: new Set(report.doubtful), flow: [], selected: undefined, search: undefined, labels: undefined, area: undefined };
    this.isRequested = false;
    this.pens = [parts.canvas.getContext("2d", { alpha: false }), parts.overview.getContext("2d", { alpha: false })];
    this.arrange();
    this.recolor();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(parts.scroller);
    parts.scroller.addEventListener("scroll", () => {
      this.state.top = parts.scroller.scrollTop;
      this.request();
    });
    this.listen();
  }

  // The visible part, for tests and for the panel.
  get view() {
    const { begin, span, by } = this.state;
    return { begin, span, by };
  }

  arrange() {
    const of = (scale) => layout(this.report, this.state, this.closed, scale);
    const room = this.parts.scroller.clientHeight - AXIS - 8;
    // If there are few rows, they are drawn taller.
    const { bands, height } = SCALES.map(of).find(({ height }) => height <= room) ?? of(1);
    this.state.bands = bands;
    this.state.placed = new Map(bands.flatMap((band) => band.rows.map((placed) => [placed.row.index, placed])));
    this.parts.spacer.style.height = `${height + AXIS + 8}px`;
  }

  recolor() {
    this.state.theme = themeOf();
    this.state.stripes = this.state.hatch = undefined;
    const isDark = document.documentElement.dataset.shown === "dark";
    this.state.colors = colorsOf(this.report, isDark);
    if (this.state.labels) this.state.labels.colors = colorsOfLabels(this.state.labels.totals, isDark);
    this.request();
  }

  resize() {
    const { scroller, canvas, overview } = this.parts;
    const ratio = window.devicePixelRatio || 1;
    const sizes = [[canvas, scroller.clientWidth, scroller.clientHeight], [overview, overview.clientWidth, overview.clientHeight]];
    sizes.forEach(([of, width, height], index) => {
      const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
      if (of.width !== w || of.height !== h) {
        of.width = w;
        of.height = h;
      }
      if (of === canvas) {
        of.style.width = `${width}px`;
        of.style.height = `${height}px`;
      }
      this.pens[index].setTransform(ratio, 0, 0, ratio, 0, 0);
    });
    if (this.state.height !== scroller.clientHeight) this.arrange();
    this.state.width = scroller.clientWidth;
    this.state.height = scroller.clientHeight;
    this.state.gutter = this.state.width < 700 ? 104 : this.state.width < 1800 ? 190 : 240;
    this.request();
  }

  request() {
    if (this.isRequested) return;
    this.isRequested = true;
    requestAnimationFrame(() => {
      this.isRequested = false;
      this.frame();
    });
  }

  // Chooses rows that are fine enough: those of the page, or those of a part of the time, which are requested.
  refine() {
    const { report, state } = this;
    const step = state.span / this.plot;
    const end = state.begin + state.span;
    const isCoarse = report.is_served && step < report.left_out.resolution_ns;
    const part = isCoarse && this.fetched;
    const fits = part && part.by === state.by && part.begin <= state.begin && part.end >= end && (part.resolution === 0 || part.step <= step);
    report.part = fits ? part : undefined;
    report.shown = fits ? part.rows : report.rows;
    if (isCoarse && !fits && !this.isAsking) this.fetch({ begin: Math.max(0, state.begin - state.span), end: end + state.span, step: step / 2, by: state.by });
  }

  async fetch({ begin, end, step, by }) {
    this.isAsking = true;
    try {
      const asked = { begin: Math.floor(begin), end: Math.ceil(end), step: Math.max(1, Math.floor(step)), cpu: Number(by === "cpu") };
      const part = await this.asked(asked);
      this.state.search?.mark(part.rows);
      this.fetched = { ...part, begin, end, step: Math.max(1, step), by };
      this.isAsking = false;
      this.request();
    } catch (error) {
      // The request is not repeated until the view moves: the program may be back by then.
      this.listener.failed(error);
      setTimeout(() => (this.isAsking = false), 1000);
    }
  }

  // Requests a part. The selected entry may be among those that are dropped for it.
  async asked(what, path) {
    const { report, state } = this;
    const { forgotten } = report;
    const { selected } = state;
    const facts = selected && [report.begin[selected.at], report.duration[selected.at], report.name[selected.at]];
    const part = await partOf(report, what, path);
    if (report.forgotten === forgotten) return part;
    this.fetched = undefined;
    [report.part, report.shown] = [undefined, report.rows];
    [state.hovered, state.flow] = [undefined, []];
    if (selected && selected === state.selected) state.selected = sameRow(part.rows, report, facts) ?? find(report, state.by, ...facts);
    else if (state.selected && state.selected.at >= report.own) state.selected = undefined;
    return part;
  }

  frame() {
    const begin = performance.now();
    this.refine();
    draw(this.pens[0], this.state);
    drawOverview(this.pens[1], this.state, this.parts.overview.clientWidth, this.parts.overview.clientHeight);
    this.frames.push(performance.now() - begin);
    if (this.frames.length > FRAMES_KEPT) this.frames.shift();
    this.listener.drawn();
  }

  get plot() {
    return this.state.width - this.state.gutter;
  }

  timeAt(x) {
    return this.state.begin + ((x - this.state.gutter) / this.plot) * this.state.span;
  }

  show(begin, span) {
    const whole = this.report.span;
    this.state.span = Math.min(Math.max(span, Math.min(SPAN_MIN, whole)), whole);
    this.state.begin = Math.min(Math.max(begin, 0), whole - this.state.span);
    this.request();
  }

  whole() {
    this.show(0, this.report.span);
  }

  zoom(factor, at) {
    const time = at ?? this.state.begin + this.state.span / 2;
    const span = Math.min(Math.max(this.state.span * factor, SPAN_MIN), this.report.span);
    this.show(time - ((time - this.state.begin) / this.state.span) * span, span);
  }

  pan(share) {
    this.show(this.state.begin + share * this.state.span, this.state.span);
  }

  scroll(pixels) {
    this.parts.scroller.scrollTop += pixels;
  }

  group(by) {
    const { report, state } = this;
    if (state.by === by || (by === "label" && !state.labels)) return;
    const { selected } = state;
    state.by = by;
    if (by === "label") this.label(state.labels);
    if (by === "cpu") spreadThreads(report);
    this.arrange();
    this.parts.scroller.scrollTop = 0;
    state.hovered = undefined;
    state.flow = [];
    if (selected) this.select(find(report, by, report.begin[selected.at], report.duration[selected.at], report.name[selected.at]));
    this.request();
  }

  // Shows what a search finds, or everything.
  search(search) {
    this.state.search = search;
    search?.mark(this.report.rows);
    if (this.fetched) search?.mark(this.fetched.rows);
    this.request();
  }

  // Shows labels, or names.
  label(labels) {
    const { report, state } = this;
    if (state.selected?.row.by === "label") this.select(undefined);
    state.labels = labels;
    if (!labels && state.by === "label") state.by = "thread";
    if (!report.is_served) groupByLabel(report, state.by === "label" ? labels : undefined);
    labels?.spread();
    state.search?.mark(report.rows);
    this.arrange();
    this.recolor();
  }

  // Restricts the tables to a part of the time, from one time to another.
  restrict(area) {
    this.state.area = area;
    this.listener.restricted(area);
    this.request();
  }

  // Changes the order of processes and threads.
  order(isByBegin) {
    this.state.isByBegin = isByBegin;
    this.arrange();
    this.request();
  }

  // Selects an entry. `reveals`: moves the timeline to make it visible.
  select(wanted, reveals = false) {
    const { report, state } = this;
    const isShown = !wanted || wanted.row.by === state.by;
    const entry = isShown ? wanted : find(report, state.by, report.begin[wanted.at], report.duration[wanted.at], report.name[wanted.at]);
    state.selected = entry;
    this.link(entry);
    if (entry && reveals) this.reveal(entry);
    this.listener.selected(entry);
    this.request();
  }

  // Finds others with the key of an entry. Those that the page lacks are requested.
  async link(entry) {
    const { report, state } = this;
    const key = entry ? report.key[entry.at] : 0;
    state.flow = sameKey(report.shown, report, state.by, key, FLOW_MAX);
    if (!key || !report.is_served || report.left_out.resolution_ns === 0) return;
    try {
      const { rows } = await this.asked({ key, begin: report.begin[entry.at], end: report.begin[entry.at] + report.duration[entry.at], cpu: Number(state.by === "cpu") });
      if (state.selected !== entry) return;
      state.flow = sameKey(rows, report, state.by, key, FLOW_MAX);
      this.listener.linked();
      this.request();
    } catch (error) {
      this.listener.failed(error);
    }
  }

  reveal({ at, row }) {
    const { begin, duration } = this.report;
    if (!this.state.placed.has(row.index)) {
      this.closed.clear();
      this.arrange();
    }
    const [from, to] = [begin[at], begin[at] + duration[at]];
    const isSeen = from >= this.state.begin && to <= this.state.begin + this.state.span && duration[at] > this.state.span / this.plot;
    if (!isSeen) {
      const span = duration[at] > 0 ? Math.max(duration[at] * 5, SPAN_MIN) : Math.min(this.state.span, this.report.span / 50);
      this.show((from + to) / 2 - span / 2, Math.max(span, this.plot / 4));
    }
    const placed = this.state.placed.get(row.index);
    const { scroller } = this.parts;
    const isInSight = placed && placed.y >= scroller.scrollTop && placed.y + placed.height < scroller.scrollTop + this.state.height - AXIS;
    if (placed && !isInSight) scroller.scrollTop = placed.y - this.state.height / 3;
  }

  zoomTo({ at }) {
    const span = Math.max(this.report.duration[at] * 1.2, SPAN_MIN);
    this.show(this.report.begin[at] + this.report.duration[at] / 2 - span / 2, span);
  }

  // Returns the entry at a position on the canvas.
  hit(x, y) {
    const { state, report } = this;
    if (x < state.gutter || y < AXIS) return undefined;
    const at = y - AXIS + state.top;
    const band = state.bands.find((band) => at >= band.y && at < band.y + band.height);
    const placed = band?.rows.find((placed) => at >= placed.y && at < placed.y + placed.height);
    if (!placed) return undefined;
    const perPixel = state.span / this.plot;
    const time = this.timeAt(x);
    const near = (level, slack) => {
      let best;
      const from = firstAfter(report, level.from, level.to, time - slack);
      for (let found = from; found < level.to && report.begin[found] <= time + slack && found < from + 64; found++) {
        const away = Math.max(report.begin[found] - time, time - report.begin[found] - report.duration[found], 0);
        if (!best || away < best.away) best = { at: found, row: placed.row, away };
      }
      return best;
    };
    const slack = 3 * perPixel;
    const row = report.shown[placed.row.index];
    const found = near(row.levels[0], slack) ?? near(levelOf(row, perPixel), slack);
    return found && { at: found.at, row: found.row };
  }

  listen() {
    const { canvas, overview, scroller } = this.parts;
    let press;
    const place = (event, of) => {
      const box = of.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x, y] = place(event, canvas);
      press = { x, y, begin: this.state.begin, top: scroller.scrollTop, isZoom: y < AXIS, isArea: event.shiftKey, hasMoved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event, canvas);
      this.pointer = x;
      if (!press) {
        this.hover(x, y, event);
        return;
      }
      press.hasMoved ||= Math.hypot(x - press.x, y - press.y) > CLICK;
      if (!press.hasMoved) return;
      this.hide();
      const range = [Math.min(press.x, x), Math.max(press.x, x)];
      if (press.isArea) {
        this.state.area = range.map((x) => this.timeAt(x));
        this.request();
      } else if (press.isZoom) {
        this.state.range = range;
        this.request();
      } else {
        scroller.scrollTop = press.top + press.y - y;
        this.show(press.begin - ((x - press.x) / this.plot) * this.state.span, this.state.span);
      }
    });
    canvas.addEventListener("pointerup", (event) => {
      if (!press) return;
      const [x, y] = place(event, canvas);
      const { hasMoved, isZoom, isArea } = press;
      press = undefined;
      const { range } = this.state;
      this.state.range = undefined;
      if (!hasMoved) this.click(x, y);
      else if (isArea) this.restrict(this.state.area);
      else if (isZoom && range) this.show(this.timeAt(range[0]), this.timeAt(range[1]) - this.timeAt(range[0]));
      this.request();
    });
    canvas.addEventListener("pointercancel", () => {
      if (press?.isArea) this.restrict(this.state.area);
      press = undefined;
      this.state.range = undefined;
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = undefined;
      this.hide();
    });
    canvas.addEventListener("dblclick", (event) => {
      const found = this.hit(...place(event, canvas));
      if (found) this.zoomTo(found);
    });
    scroller.addEventListener("wheel", (event) => this.wheel(event, place(event, canvas)[0]), { passive: false });
    let isBrushing = false;
    const center = (event) => {
      const [x] = place(event, overview);
      this.show((x / overview.clientWidth) * this.report.span - this.state.span / 2, this.state.span);
    };
    overview.addEventListener("pointerdown", (event) => {
      isBrushing = true;
      overview.setPointerCapture(event.pointerId);
      center(event);
    });
    overview.addEventListener("pointermove", (event) => isBrushing && center(event));
    overview.addEventListener("pointerup", () => (isBrushing = false));
    overview.addEventListener("wheel", (event) => {
      event.preventDefault();
      const [x] = place(event, overview);
      this.zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, (x / overview.clientWidth) * this.report.span);
    }, { passive: false });
  }

  // The wheel zooms over the time; it scrolls over the names and with Shift; sideways it pans.
  wheel(event, x) {
    this.hide();
    if (x < this.state.gutter || (event.shiftKey && !event.deltaX)) return;
    event.preventDefault();
    const sideways = event.shiftKey ? 0 : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.deltaY)) this.pan((sideways / this.plot) * 1.5);
    else if (event.deltaY !== 0) this.zoom(ZOOM ** Math.max(-3, Math.min(3, event.deltaY / 100)), this.timeAt(x));
  }

  click(x, y) {
    const at = y - AXIS + this.state.top;
    const header = this.state.bands.find((band) => band.process !== undefined && at >= band.y && at < band.y + HEADER);
    if (header && y >= AXIS) {
      if (!this.closed.delete(header.process)) this.closed.add(header.process);
      this.arrange();
      return;
    }
    this.select(this.hit(x, y));
  }

  hover(x, y, event) {
    const found = this.hit(x, y);
    const isSame = found !== undefined && found.at === this.state.hovered?.at;
    if (found?.at !== this.state.hovered?.at) {
      this.state.hovered = found;
      this.request();
    }
    const { tooltip } = this.parts;
    const lines = found ? describe(this.report, found, this.state.labels) : this.counterAt(x, y);
    if (!lines) {
      tooltip.hidden = true;
      return;
    }
    this.mouse = event;
    if (!isSame) {
      tooltip.replaceChildren(...lines.map((line, index) => element(index ? "div" : "strong", { text: line })));
      if (found && this.report.fields[found.at]) this.tell(found);
    }
    this.place();
  }

  // Places the tooltip beside the pointer.
  place() {
    const { tooltip } = this.parts;
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    tooltip.style.left = `${Math.max(4, Math.min(this.mouse.clientX + 14, window.innerWidth - box.width - 8))}px`;
    const below = this.mouse.clientY + 18;
    tooltip.style.top = `${below + box.height > window.innerHeight ? Math.max(4, this.mouse.clientY - box.height - 10) : below}px`;
  }

  // Adds the fields of an entry to its tooltip.
  async tell(found) {
    const isHovered = () => this.state.hovered?.at === found.at;
    if (this.report.is_served) await new Promise((done) => setTimeout(done, PATIENCE_MS));
    if (!isHovered()) return;
    // Without fields the tooltip is still right; a click says why there are none.
    const events = await fieldsOf(this.report, found).catch(() => []);
    if (!events.length || !isHovered()) return;
    this.parts.tooltip.append(fieldTable(this.report, events, FIELDS_MAX));
    this.place();
  }

  // Returns the tooltip of a counter.
  counterAt(x, y) {
    const { report, state } = this;
    const at = y - AXIS + state.top;
    const band = state.bands.find((band) => band.counter !== undefined && at >= band.y && at < band.y + band.height);
    if (!band || x < state.gutter || y < AXIS) return undefined;
    const point = pointsOf(report, band.counter)[pointAt(pointsOf(report, band.counter), this.timeAt(x))];
    if (!point) return undefined;
    const [time, least, most, last] = point;
    const text = (value) => inUnit(band.label, value) ?? counted(value);
    return [`${band.label}: ${text(last)}`, ...(least < most ? [`between ${text(least)} and ${text(most)}`] : []), `since ${since(time)}`];
  }

  hide() {
    this.parts.tooltip.hidden = true;
    if (this.state.hovered) {
      this.state.hovered = undefined;
      this.request();
    }
  }

  // Whether the timeline has handled the key.
  key(event) {
    const at = this.pointer !== undefined && this.pointer > this.state.gutter ? this.timeAt(this.pointer) : undefined;
    const keys = {
      w: () => this.zoom(1 / ZOOM ** 2, at),
      s: () => this.zoom(ZOOM ** 2, at),
      a: () => this.pan(-PAN),
      d: () => this.pan(PAN),
      "+": () => this.zoom(1 / ZOOM ** 2),
      "=": () => this.zoom(1 / ZOOM ** 2),
      "-": () => this.zoom(ZOOM ** 2),
      ArrowLeft: () => this.pan(-PAN),
      ArrowRight: () => this.pan(PAN),
      ArrowUp: () => this.scroll(-60),
      ArrowDown: () => this.scroll(60),
      PageUp: () => this.scroll(-this.state.height * 0.8),
      PageDown: () => this.scroll(this.state.height * 0.8),
      Home: () => this.whole(),
      f: () => this.state.selected && this.zoomTo(this.state.selected),
    };
    const act = keys[event.key];
    act?.();
    return act !== undefined;
  }
}

// Returns the entry of rows with this begin, duration and name.
function sameRow(rows, report, [begin, length, name]) {
  for (const row of rows) {
    const { from, to } = row.levels[0];
    for (let at = from; at < to; at++) {
      if (report.begin[at] === begin && report.duration[at] === length && report.name[at] === name) return { at, row };
    }
  }
  return undefined;
}

// Returns the tooltip of an entry.
export function describe(report, { at, row }, labels) {
  const label = labels?.texts[labels.ofEntry[at]];
  const name = `${label === undefined ? "" : `${label} · `}${report.names[report.name[at]]}`;
  const many = report.count[at];
  const other = report.other[at] - 1;
  const thread = row.by === "thread" ? row.of : other;
  const cpu = row.by === "cpu" ? row.of : row.by === "thread" ? other : -1;
  const where = [...(thread >= 0 ? [whoLabel(report, thread)] : []), ...(cpu >= 0 ? [cpuLabel(report, cpu)] : [])];
  if (row.by === "cpu") where.reverse();
  if (many > 1) return [`${plural(many, "item")} merged, most time: ${name}`, `within ${duration(report.duration[at])}`, `from ${since(report.begin[at])}`, ...where.slice(0, 1)];
  const long = row.is_slices ? [duration(report.duration[at])] : [];
  return [name, ...long, `at ${since(report.begin[at])}`, ...where];
}
