// Charts of distributions and of call trees, on canvases.
import { counted, duration, mark, marksOf, moment, plural, stepOf } from "./text.js";
import { INK, heatColor } from "./colors.js";

const SMALL = "11px system-ui, sans-serif";
const BIN_OF_INSTANTS = 255;

// Returns a canvas of this size in CSS pixels, with a description for screen readers.
export function canvas(width, height, label) {
  const made = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  made.width = Math.round(width * ratio);
  made.height = Math.round(height * ratio);
  made.style.width = `${width}px`;
  made.style.height = `${height}px`;
  made.className = "chart";
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  const pen = made.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = SMALL;
  pen.textBaseline = "middle";
  return [made, pen];
}

const durationOf = (report, bin) => 2 ** (bin / report.bins_an_octave);

function binsOf(cells) {
  const bins = cells.map((cell) => cell.bin).filter((bin) => bin !== BIN_OF_INSTANTS);
  return [Math.min(...bins), Math.max(...bins) + 1];
}

// Marks at the powers of ten of a scale of durations, from one bin to another.
function* powers(report, low, high) {
  const [least, most] = [durationOf(report, low), durationOf(report, high)];
  for (let value = 10 ** Math.ceil(Math.log10(least)); value <= most; value *= 10) {
    yield [value, (Math.log2(value) * report.bins_an_octave - low) / (high - low)];
  }
}

// Draws a histogram of durations.
export function histogram(report, cells, [width, height], theme, color) {
  const [low, high] = binsOf(cells);
  const counts = new Array(high - low).fill(0);
  for (const { bin, count } of cells) if (bin !== BIN_OF_INSTANTS) counts[bin - low] += count;
  const most = Math.max(...counts);
  const [made, pen] = canvas(width, height, `Histogram of durations, from ${duration(durationOf(report, low))} to ${duration(durationOf(report, high))}`);
  const [left, bottom, top] = [46, height - 22, 8];
  const wide = (width - left - 6) / counts.length;
  // Logarithmic, so that small counts are visible beside large ones.
  const tall = (count) => (count === 0 ? 0 : ((Math.log10(count) + 0.3) / (Math.log10(most) + 0.3)) * (bottom - top));
  pen.fillStyle = theme.quiet;
  for (let count = 1; count <= most; count *= 10) {
    const y = bottom - tall(count);
    pen.globalAlpha = 0.25;
    pen.fillRect(left, y, width - left, 1);
    pen.globalAlpha = 1;
    pen.textAlign = "right";
    pen.fillText(counted(count), left - 5, Math.max(top, y));
  }
  pen.fillStyle = color;
  counts.forEach((count, index) => pen.fillRect(left + index * wide, bottom - tall(count), Math.max(1, wide - 1), tall(count)));
  scale(pen, [...powers(report, low, high)].map(([value, share]) => [mark(value, value), left + share * (width - left - 6)]), bottom, width, theme);
  made.dataset.count = counts.reduce((sum, count) => sum + count, 0);
  const binAt = (x) => Math.floor((x - left) / wide);
  const said = (x) => {
    const bin = binAt(x);
    return counts[bin] === undefined ? "" : `${counted(counts[bin])} of ${duration(durationOf(report, low + bin))} to ${duration(durationOf(report, low + bin + 1))}`;
  };
  return { made, said };
}

// Draws the histograms of two traces over each other, as shares of their slices. `bins`: for each trace, bins with
// counts.
export function histogramOfTwo(report, bins, [width, height], theme, colors) {
  const all = bins.flat().map(([bin]) => bin);
  const [low, high] = [Math.min(...all), Math.max(...all) + 1];
  const shares = bins.map((of) => {
    const total = of.reduce((sum, [, count]) => sum + count, 0);
    const made = new Array(high - low).fill(0);
    for (const [bin, count] of of) made[bin - low] = count / total;
    return made;
  });
  const [made, pen] = canvas(width, height, `Histogram of durations in A and B, from ${duration(durationOf(report, low))} to ${duration(durationOf(report, high))}`);
  const [left, bottom, top] = [46, height - 22, 8];
  const wide = (width - left - 6) / (high - low);
  // Logarithmic, from a third of the least share on, so that small shares are visible beside large ones.
  const most = Math.max(...shares.flat());
  const least = Math.min(...shares.flat().filter((share) => share > 0)) / 3;
  const tall = (share) => (share === 0 ? 0 : (Math.log(share / least) / Math.log(most / least)) * (bottom - top));
  pen.fillStyle = theme.quiet;
  pen.textAlign = "right";
  for (let power = 10 ** Math.ceil(Math.log10(least)); power <= most / 1.5; power *= 10) {
    const y = bottom - tall(power);
    pen.globalAlpha = 0.25;
    pen.fillRect(left, y, width - left, 1);
    pen.globalAlpha = 1;
    pen.fillText(`${Number((100 * power).toPrecision(3))} %`, left - 5, Math.max(top, y));
  }
  pen.fillText(`${Number((100 * most).toPrecision(2))} %`, left - 5, top + 2);
  pen.fillStyle = colors[0];
  shares[0].forEach((share, index) => pen.fillRect(left + index * wide, bottom - tall(share), Math.max(1, wide - 1), tall(share)));
  // The second trace is drawn as a line of steps, which hides nothing.
  pen.fillStyle = pen.strokeStyle = colors[1];
  pen.globalAlpha = 0.3;
  shares[1].forEach((share, index) => pen.fillRect(left + index * wide, bottom - tall(share), Math.max(1, wide - 1), tall(share)));
  pen.globalAlpha = 1;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(left, bottom);
  shares[1].forEach((share, index) => {
    pen.lineTo(left + index * wide, bottom - tall(share));
    pen.lineTo(left + (index + 1) * wide, bottom - tall(share));
  });
  pen.lineTo(left + shares[1].length * wide, bottom);
  pen.stroke();
  scale(pen, [...powers(report, low, high)].map(([value, share]) => [mark(value, value), left + share * (width - left - 6)]), bottom, width, theme);
  made.dataset.bins = JSON.stringify(bins);
  const said = (x) => {
    const bin = Math.floor((x - left) / wide);
    if (shares[0][bin] === undefined) return "";
    const [a, b] = shares.map((of) => `${(100 * of[bin]).toPrecision(3)} %`);
    return `${duration(durationOf(report, low + bin))} to ${duration(durationOf(report, low + bin + 1))}: ${a} of A, ${b} of B`;
  };
  return { made, said };
}

// Draws the marks of an axis that ends at `right`. Texts that would overlap others are left out.
function scale(pen, marks, y, right, theme) {
  pen.fillStyle = theme.quiet;
  pen.textAlign = "center";
  let free = -Infinity;
  for (const [text, x] of marks) {
    const half = pen.measureText(text).width / 2;
    const middle = Math.min(x, right - half);
    pen.fillRect(x, y, 1, 4);
    if (middle - half < free) continue;
    pen.fillText(text, middle, y + 13);
    free = middle + half + 8;
  }
}

// Draws durations over a part of the time.
export function heatMap(report, { begin, span }, cells, [width, height], theme) {
  const isInstants = cells.every((cell) => cell.bin === BIN_OF_INSTANTS);
  const [low, high] = isInstants ? [0, 1] : binsOf(cells);
  const [made, pen] = canvas(width, height, isInstants ? "How many over time" : "Heat map of durations over time");
  const [left, bottom, top] = [62, height - 22, 8];
  const wide = (width - left - 6) / report.time_bins;
  const most = Math.max(...cells.map((cell) => cell.count));
  pen.fillStyle = theme.band;
  pen.fillRect(left, top, width - left - 6, bottom - top);
  const tall = (bottom - top) / (high - low);
  for (const { time, bin, count } of cells) {
    if (isInstants) {
      const share = count / most;
      pen.fillStyle = theme.accent;
      pen.fillRect(left + time * wide, bottom - share * (bottom - top), Math.max(1, wide), share * (bottom - top));
    } else if (bin !== BIN_OF_INSTANTS) {
      pen.fillStyle = heatColor(most === 1 ? 0.99 : 0.15 + 0.84 * (Math.log(count) / Math.log(most)));
      pen.fillRect(left + time * wide, bottom - (bin - low + 1) * tall, Math.ceil(wide), Math.ceil(tall));
    }
  }
  pen.fillStyle = theme.quiet;
  pen.textAlign = "right";
  if (isInstants) pen.fillText(counted(most), left - 5, top + 6);
  else for (const [value, share] of powers(report, low, high)) pen.fillText(mark(value, value), left - 5, bottom - share * (bottom - top));
  const marks = marksOf(begin, span, stepOf(span, (width - left) / 110));
  scale(pen, marks.map(([time, text]) => [text, left + ((time - begin) / span) * (width - left - 6)]), bottom, width, theme);
  const timeAt = (x) => Math.floor((x - left) / wide);
  const said = (x, y) => {
    const time = timeAt(x);
    if (time < 0 || time >= report.time_bins) return "";
    const bin = isInstants ? BIN_OF_INSTANTS : low + Math.floor((bottom - y) / tall);
    const count = cells.find((cell) => cell.time === time && cell.bin === bin)?.count ?? 0;
    const from = begin + (time / report.time_bins) * span;
    const of = isInstants ? "" : ` of ${duration(durationOf(report, bin))} to ${duration(durationOf(report, bin + 1))}`;
    return `${counted(count)}${of}, from ${moment(from)} on`;
  };
  return { made, said, timeAt };
}

// Call trees: the width of a name is its time, and nested names are below it.
export class Flame {
  constructor(report) {
    this.report = report;
    this.nodes = report.nodes.map(([parent, name, count, total, own]) => ({ parent, name, count, total, own, children: [] }));
    this.root = { name: -1, count: 0, total: 0, own: 0, children: [], parent: -1 };
    for (const node of this.nodes) (node.parent === 0 ? this.root : this.nodes[node.parent - 1]).children.push(node);
    for (const node of [this.root, ...this.nodes]) node.children.sort((a, b) => b.total - a.total);
    this.root.total = this.root.children.reduce((sum, node) => sum + node.total, 0);
    this.top = this.root;
    this.boxes = [];
  }

  depth(node = this.top) {
    let depth = 0;
    for (let level = node.children; level.length; depth++) level = level.flatMap((child) => child.children);
    return depth;
  }

  // Returns the names from the top to a node.
  path(node) {
    const names = [];
    for (let at = node; at && at !== this.root; at = at.parent === 0 ? this.root : this.nodes[at.parent - 1]) names.unshift(at);
    return names;
  }

  color(node, colors) {
    return colors[node.name];
  }

  whole() {
    return `all slices, ${duration(this.root.total)}`;
  }

  // A click zooms in or out. `say` receives the node under the pointer, or undefined.
  listen(made, say, shown) {
    const nodeAt = (event) => {
      const box = made.getBoundingClientRect();
      return this.at(event.clientX - box.left, event.clientY - box.top);
    };
    made.addEventListener("pointermove", (event) => say(nodeAt(event)));
    made.addEventListener("pointerleave", () => say(undefined));
    made.addEventListener("click", (event) => {
      const node = nodeAt(event);
      if (!node) return;
      this.top = node;
      shown();
    });
  }

  draw(width, theme, colors) {
    const way = this.path(this.top);
    const height = (way.length + 1 + Math.min(60, this.depth())) * 19 + 4;
    const [made, pen] = canvas(width, height, `Call trees of ${plural(this.nodes.length, "node")}`);
    this.boxes = [];
    const box = (node, x, y, wide) => {
      const color = node === this.root ? theme.band : this.color(node, colors);
      pen.fillStyle = color;
      pen.fillRect(x, y, Math.max(0.5, wide - 1), 18);
      this.boxes.push({ node, x, y, wide });
      if (wide < 34) return;
      const name = node === this.root ? this.whole() : this.report.names[node.name];
      const letters = Math.floor((wide - 8) / 6.2);
      pen.fillStyle = node === this.root ? theme.text : INK;
      pen.fillText(name.length <= letters ? name : `${name.slice(0, Math.max(1, letters - 1))}…`, x + 4, y + 9.5);
    };
    box(this.root, 0, 0, width);
    way.forEach((node, index) => box(node, 0, (index + 1) * 19, width));
    const below = (node, x, y, scale) => {
      let at = x;
      for (const child of node.children) {
        const wide = child.total * scale;
        if (wide < 0.4 || y > height) break;
        box(child, at, y, wide);
        below(child, at, y + 19, scale);
        at += wide;
      }
    };
    below(this.top, 0, (way.length + 1) * 19, width / Math.max(1, this.top.total));
    return made;
  }

  at(x, y) {
    return this.boxes.find((box) => x >= box.x && x < box.x + box.wide && y >= box.y && y < box.y + 18)?.node;
  }

  said(node) {
    if (!node || node === this.root) return "";
    const share = (100 * node.total) / Math.max(1, this.root.total);
    return `${this.report.names[node.name]}: ${duration(node.total)} (${share.toFixed(1)} %), of this its own ${duration(node.own)}, ${plural(node.count, "slice")}`;
  }
}
