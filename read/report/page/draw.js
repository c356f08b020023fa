// Draws one frame of the timeline.
import { counted, duration, marksOf, plural, stepOf } from "./text.js";
import { firstAfter, levelOf, pointAt, pointsOf, whoLabel } from "./rows.js";
import { INK, stripes } from "./colors.js";

export const AXIS = 24;
const FONT = "11px system-ui, sans-serif";
// Slices below this width in pixels are marks without a border.
const WIDE = 3;
// Slices below this width in pixels have no text.
const WIDE_FOR_TEXT = 28;
// Height of the hatched edge of slices that are not certain.
const EDGE = 4;
// Maximum number of texts in a frame. They cost the most to draw, and more cannot be read.
const TEXTS_MAX = 700;

// Merges adjacent rectangles of one colour.
class Brush {
  constructor(pen) {
    this.pen = pen;
    this.color = "";
    this.left = 0;
    this.right = 0;
    this.y = 0;
    this.height = 0;
  }

  column(x, color) {
    if (this.right === x && this.color === color) {
      this.right = x + 1;
      return;
    }
    this.flush();
    this.color = color;
    this.left = x;
    this.right = x + 1;
  }

  flush() {
    if (this.right > this.left) {
      if (this.pen.fillStyle !== this.color) this.pen.fillStyle = this.color;
      this.pen.fillRect(this.left, this.y, this.right - this.left, this.height);
    }
    this.left = this.right = -1;
  }
}

// Approximate width of a letter, from which the width of texts is computed.
let letter = 0;
const fitting = (text, width) => {
  const letters = Math.floor(width / letter);
  return text.length <= letters ? text : letters < 3 ? "" : `${text.slice(0, letters - 1)}…`;
};

// `state`: report, view (begin and span in nanoseconds), bands, top, size, gutter, colours, selection and matches.
export function draw(pen, state) {
  const { report, theme, width, height, gutter, top, bands } = state;
  pen.font = FONT;
  letter ||= pen.measureText("abcdefghij:_0123").width / 16;
  pen.textBaseline = "middle";
  pen.textAlign = "left";
  pen.fillStyle = theme.back;
  pen.fillRect(0, 0, width, height);
  const plot = width - gutter;
  const perPixel = state.span / plot;
  const texts = [];
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS, width, height - AXIS);
  pen.clip();
  const visible = bands.filter((band) => band.y + band.height > top && band.y < top + height - AXIS);
  visible.forEach((band) => {
    const y = band.y - top + AXIS;
    if (band.isProcess || state.by !== "thread") {
      pen.fillStyle = theme.line;
      pen.fillRect(0, y, width, 1);
    }
    if (!band.rows.length && band.counter === undefined) {
      pen.fillStyle = theme.band;
      pen.fillRect(0, y + 1, width, band.height - 1);
    }
  });
  grid(pen, state, plot, perPixel);
  // From the first to the last item of a thread or CPU.
  pen.fillStyle = theme.band;
  for (const band of visible.filter((band) => band.rows.length)) {
    const x = Math.max(gutter, gutter + (band.begin - state.begin) / perPixel);
    const end = Math.min(width, gutter + (band.end - state.begin) / perPixel);
    if (end >= gutter && x <= width) pen.fillRect(x, band.y - top + AXIS + 1, Math.max(2, end - x), band.height - 2);
  }
  pen.save();
  pen.beginPath();
  pen.rect(gutter, AXIS, plot, height - AXIS);
  pen.clip();
  losses(pen, state, visible, perPixel);
  const brush = new Brush(pen);
  for (const band of visible) {
    if (band.counter !== undefined) values(pen, state, band, perPixel);
    for (const { row, y, height: rowHeight } of band.rows) {
      const at = y - top + AXIS;
      if (at + rowHeight < AXIS || at > height) continue;
      brush.y = at;
      brush.height = rowHeight - 1;
      entries(brush, state, row, at, perPixel, texts);
    }
  }
  pen.fillStyle = INK;
  for (const [text, x, y] of texts) pen.fillText(text, x, y);
  marked(pen, state, perPixel);
  if (state.area) area(pen, state, perPixel);
  pen.restore();
  gutterOf(pen, state, visible);
  pen.restore();
  axis(pen, state, plot, perPixel);
}

// Labels of threads, which are drawn often.
const whoOf = (report, thread) => ((report.who ??= [])[thread] ??= whoLabel(report, thread));

function entries(brush, state, row, y, perPixel, texts) {
  const { report, colors, search, labels, theme, gutter, begin: left } = state;
  const { begin, duration: length, name, count } = report;
  const tints = labels?.ofEntry;
  const { from, to } = levelOf(report.shown[row.index], perPixel);
  const right = left + state.span;
  const edge = gutter + state.span / perPixel;
  let free = gutter - 1;
  for (let at = firstAfter(report, from, to, left); at < to && begin[at] <= right; at++) {
    const x = gutter + (begin[at] - left) / perPixel;
    const end = gutter + (begin[at] + length[at] - left) / perPixel;
    const tint = tints ? tints[at] : 0;
    const color = search && !search.hits[at] ? theme.faded : tint ? labels.colors[tint] : colors[name[at]];
    if (end - x < WIDE) {
      const column = Math.floor(x);
      if (column < free) continue;
      brush.column(column, color);
      // A visible mark, if there is room for it.
      free = column + 1;
      continue;
    }
    brush.flush();
    const shown = Math.max(Math.round(x), gutter - 1, free);
    const shownEnd = Math.min(Math.round(end), edge + 1);
    const pen = brush.pen;
    if (pen.fillStyle !== color) pen.fillStyle = color;
    // Neighbours are separated by a pixel of the background.
    pen.fillRect(shown, y, Math.max(1, shownEnd - shown - 1), brush.height);
    if (state.doubtful.has(name[at])) {
      pen.fillStyle = state.hatch ??= stripes(pen, theme.back);
      pen.fillRect(shown, y + brush.height - EDGE, Math.max(1, shownEnd - shown - 1), EDGE);
    }
    free = Math.floor(shownEnd);
    if (row.is_slices && shownEnd - shown > WIDE_FOR_TEXT && texts.length < TEXTS_MAX) {
      const own = tint ? labels.texts[tint] : report.names[name[at]];
      const text = count[at] > 1 ? `${own} and others` : row.by !== "thread" && row.depth === 0 && report.other[at] ? `${own} · ${whoOf(report, report.other[at] - 1)}` : own;
      const cut = fitting(text, shownEnd - shown - 8);
      if (cut) texts.push([cut, shown + 4, y + brush.height / 2 + 0.5]);
    }
  }
  brush.flush();
}

// Draws a counter as steps, from its least value (or 0) up. If a step has several values, the greatest is drawn paler.
function values(pen, state, band, perPixel) {
  const { report, theme, gutter } = state;
  const { least, greatest } = report.counters[band.counter];
  const [low, high] = [Math.min(0, least), Math.max(0, greatest)];
  const top = band.y - state.top + AXIS + 2;
  const tall = band.height - 8;
  const y = (value) => top + tall - (high > low ? ((value - low) / (high - low)) * tall : 0);
  const points = pointsOf(report, band.counter);
  const right = state.begin + state.span;
  pen.fillStyle = theme.accent;
  for (let at = Math.max(0, pointAt(points, state.begin)); at < points.length && points[at][0] <= right; at++) {
    const [time, , most, last] = points[at];
    const x = Math.max(gutter, gutter + (time - state.begin) / perPixel);
    const end = Math.min(state.width, at + 1 < points.length ? gutter + (points[at + 1][0] - state.begin) / perPixel : state.width);
    const wide = Math.max(1, end - x);
    for (const [value, alpha] of most > last ? [[most, 0.3], [last, 0.7]] : [[last, 0.7]]) {
      pen.globalAlpha = alpha;
      pen.fillRect(x, Math.min(y(value), y(0)), wide, Math.max(1, Math.abs(y(value) - y(0))));
    }
  }
  pen.globalAlpha = 1;
  pen.fillStyle = theme.text;
  pen.fillText(counted(high), gutter + 4, top + 5);
}

function grid(pen, state, plot, perPixel) {
  const step = stepOf(state.span, plot / 110);
  pen.fillStyle = state.theme.line;
  for (const [at] of marksOf(state.begin, state.span, step)) {
    pen.fillRect(Math.round(state.gutter + (at - state.begin) / perPixel), AXIS, 1, state.height);
  }
}

function axis(pen, state, plot, perPixel) {
  const { theme, gutter, width } = state;
  const step = stepOf(state.span, plot / 110);
  pen.fillStyle = theme.band;
  pen.fillRect(0, 0, width, AXIS - 1);
  pen.fillStyle = theme.line;
  pen.fillRect(0, AXIS - 1, width, 1);
  pen.fillStyle = theme.quiet;
  pen.fillText(fitting(`${duration(state.span)} shown`, gutter - 12), 8, AXIS / 2);
  pen.save();
  pen.beginPath();
  pen.rect(gutter, 0, plot, AXIS);
  pen.clip();
  pen.fillStyle = theme.text;
  for (const [at, text] of marksOf(state.begin, state.span, step)) pen.fillText(text, gutter + (at - state.begin) / perPixel + 3, AXIS / 2);
  const selected = state.range ?? state.area?.map((time) => gutter + (time - state.begin) / perPixel);
  if (selected) {
    pen.globalAlpha = 0.35;
    pen.fillStyle = theme.accent;
    pen.fillRect(selected[0], 0, selected[1] - selected[0], AXIS);
    pen.globalAlpha = 1;
  }
  pen.restore();
}

// Draws losses as stripes: on the row of the CPU, if it is known and shown, else over all rows.
function losses(pen, state, visible, perPixel) {
  const { report, theme, gutter, height } = state;
  if (!report.losses.length) return;
  state.stripes ??= stripes(pen, theme.loss);
  let free = -1;
  for (const loss of report.losses) {
    if (loss.end < state.begin || loss.begin > state.begin + state.span) continue;
    const x = Math.max(gutter, gutter + (loss.begin - state.begin) / perPixel);
    const end = Math.min(state.width, gutter + (loss.end - state.begin) / perPixel);
    const shown = Math.max(2, end - x);
    if (state.by !== "cpu" && x + shown <= free) continue;
    free = x + shown;
    pen.fillStyle = state.stripes;
    const band = state.by === "cpu" && loss.cpu !== null ? visible.find((band) => band.cpu === loss.cpu) : undefined;
    if (state.by === "cpu" && loss.cpu !== null) {
      if (band) pen.fillRect(x, band.y - state.top + AXIS + 1, shown, band.height - 2);
    } else {
      pen.globalAlpha = 0.4;
      pen.fillRect(x, AXIS, shown, height);
      pen.globalAlpha = 1;
    }
    if (shown > 90 && loss.events > 0) {
      const text = fitting(`${plural(loss.events, "event")} lost`, shown - 8);
      const y = band ? band.y - state.top + AXIS + band.height - 8 : height - 10;
      pen.fillStyle = theme.back;
      pen.fillRect(x + 2, y - 7, text.length * letter + 8, 14);
      pen.fillStyle = theme.loss;
      pen.fillText(text, x + 5, y);
    }
  }
}

// Draws the hovered and the selected item, and lines to others with its key.
function marked(pen, state, perPixel) {
  const { report, theme, gutter } = state;
  const place = ({ at, row }) => {
    const placed = state.placed.get(row.index);
    if (!placed) return undefined;
    const x = gutter + (report.begin[at] - state.begin) / perPixel;
    const width = Math.max(row.is_slices ? 2 : 3, report.duration[at] / perPixel);
    return { x, width, y: placed.y - state.top + AXIS, height: placed.height - 1 };
  };
  const around = (entry, color, line) => {
    const at = place(entry);
    if (!at) return;
    const left = Math.max(at.x, gutter - 4);
    const right = Math.min(at.x + at.width, state.width + 4);
    if (right < gutter || left > state.width) return;
    pen.strokeStyle = color;
    pen.lineWidth = line;
    pen.strokeRect(left - line / 2, at.y - line / 2, right - left + line, at.height + line);
  };
  pen.strokeStyle = theme.accent;
  pen.lineWidth = 1.5;
  state.flow.slice(1).forEach((to, index) => {
    const [a, b] = [place(state.flow[index]), place(to)];
    if (!a || !b) return;
    const y = [a.y + a.height / 2, b.y + b.height / 2];
    const bend = Math.max(20, Math.min(120, Math.abs(b.x - a.x) / 2));
    pen.beginPath();
    pen.moveTo(a.x + 1, y[0]);
    pen.bezierCurveTo(a.x + bend, y[0], b.x - bend, y[1], b.x + 1, y[1]);
    pen.stroke();
  });
  if (state.hovered) around(state.hovered, theme.text, 1);
  if (state.selected) {
    const x = gutter + (report.begin[state.selected.at] - state.begin) / perPixel;
    if (x >= gutter && x <= state.width) {
      pen.globalAlpha = 0.5;
      pen.fillStyle = theme.accent;
      pen.fillRect(Math.round(x), AXIS, 1, state.height);
      pen.globalAlpha = 1;
    }
    around(state.selected, theme.text, 2.5);
  }
}

// Draws the part of the time that restricts the tables.
function area(pen, { theme, area, begin, gutter, width, height }, perPixel) {
  const [x, end] = area.map((time) => Math.min(Math.max(gutter + (time - begin) / perPixel, gutter - 2), width + 2));
  pen.fillStyle = theme.back;
  pen.globalAlpha = 0.5;
  pen.fillRect(gutter, AXIS, x - gutter, height);
  pen.fillRect(end, AXIS, width - end, height);
  pen.globalAlpha = 1;
  pen.fillStyle = theme.accent;
  for (const edge of [x, end - 1]) pen.fillRect(edge, AXIS, 2, height);
}

function gutterOf(pen, state, visible) {
  const { theme, gutter, top } = state;
  pen.fillStyle = theme.back;
  pen.fillRect(0, AXIS, gutter, state.height);
  pen.fillStyle = theme.line;
  pen.fillRect(gutter - 1, AXIS, 1, state.height);
  for (const band of visible) {
    const y = band.y - top + AXIS;
    const isHeader = !band.rows.length && band.counter === undefined;
    if (isHeader) {
      pen.fillStyle = theme.band;
      pen.fillRect(0, y + 1, gutter - 1, band.height - 1);
    } else if (band.isProcess || state.by !== "thread") {
      pen.fillStyle = theme.line;
      pen.fillRect(0, y, gutter, 1);
    }
    const sign = isHeader ? (band.isClosed ? "▸ " : "▾ ") : band.isNested ? "   " : "";
    pen.fillStyle = band.isNested ? theme.quiet : theme.text;
    pen.fillText(fitting(sign + band.label, gutter - 14), 8, y + (isHeader ? band.height / 2 : 2 + 9));
  }
}

// Draws the whole time in one strip: number of events, losses, and the visible part.
export function drawOverview(pen, state, width, height) {
  const { report, theme } = state;
  pen.fillStyle = theme.back;
  pen.fillRect(0, 0, width, height);
  const most = Math.max(1, ...report.density);
  pen.fillStyle = theme.quiet;
  const bin = width / report.density.length;
  report.density.forEach((count, index) => {
    if (count === 0) return;
    // By the square root, so that small counts are visible beside large ones.
    const tall = Math.max(1, Math.sqrt(count / most) * (height - 8));
    pen.fillRect(index * bin, height - tall, Math.max(1, bin - 0.4), tall);
  });
  pen.fillStyle = theme.loss;
  for (const loss of report.losses) {
    pen.fillRect((loss.begin / report.span) * width, 0, Math.max(2, ((loss.end - loss.begin) / report.span) * width), 4);
  }
  const left = (state.begin / report.span) * width;
  const shown = Math.max(3, (state.span / report.span) * width);
  pen.fillStyle = theme.back;
  pen.globalAlpha = 0.6;
  pen.fillRect(0, 0, left, height);
  pen.fillRect(left + shown, 0, width, height);
  pen.globalAlpha = 1;
  pen.strokeStyle = theme.accent;
  pen.lineWidth = 2;
  pen.strokeRect(left + 1, 1, shown - 2, height - 2);
}
