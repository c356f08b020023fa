// Tables of a part of the time, made from the items that began in it, and tables by the value of a field.
import { firstFrom } from "./rows.js";

const SLOWEST = 20;

// Returns the least value that `percent` % of the sorted values do not exceed.
const percentile = (sorted, percent) => sorted[Math.max(1, Math.ceil((sorted.length * percent) / 100)) - 1];

// Returns count, sum and percentiles of durations.
export function figuresOf(durations) {
  const sorted = Float64Array.from(durations).sort();
  const total = sorted.reduce((sum, one) => sum + one, 0);
  return { count: sorted.length, total, p50: percentile(sorted, 50), p90: percentile(sorted, 90), p99: percentile(sorted, 99), max: sorted[sorted.length - 1] };
}

// Calls `each` with the entries of rows of threads that began in a part of the time.
export function eachWithin(report, rows, [begin, end], each) {
  for (const row of rows) {
    if (row.by !== "thread") continue;
    const level = row.levels[0];
    for (let at = firstFrom(report, level, begin); at < level.to && report.begin[at] <= end; at++) each(at, row);
  }
}

// The tables of the whole report.
export const figuresOfAll = (report) => ({ summary: report.summary, heat: report.heat, nodes: report.nodes, begin: 0, span: report.span, merged: 0 });

// Returns the tables of a part of the time, in the form of those of the whole report. `merged`: number of items that are
// merged with neighbours, and not in the tables.
export function figuresWithin(report, rows, [begin, end]) {
  const span = Math.max(1, end - begin);
  const names = new Map();
  const trees = { nodes: [], numbers: new Map() };
  let merged = 0;
  const above = { key: "", entries: [], nodes: [], own: [] };
  // Rows of a thread or lane follow each other, the outermost first.
  const inOrder = rows.filter((row) => row.by === "thread").sort((a, b) => a.of - b.of || a.lane - b.lane || a.is_slices - b.is_slices || a.depth - b.depth);
  const owns = [];
  let before = { entries: [], nodes: [] };
  let key;
  for (const row of inOrder) {
    const own = `${row.of} ${row.lane}`;
    if (!row.is_slices || own !== key || row.depth === 0) before = { entries: [], nodes: [] };
    key = own;
    const current = { entries: [], nodes: [] };
    let parent = 0;
    eachWithin(report, [row], [begin, end], (at) => {
      if (report.count[at] > 1) {
        merged += report.count[at];
        return;
      }
      const [name, from, long] = [report.name[at], report.begin[at], report.duration[at]];
      const id = name * 2 + Number(row.is_slices);
      if (!names.has(id)) names.set(id, { name, is_slice: row.is_slices, durations: [], own: 0, slowest: [], cells: new Map() });
      const of = names.get(id);
      of.durations.push(long);
      const time = Math.min(report.time_bins - 1, Math.floor(((from - begin) * report.time_bins) / span));
      const bin = row.is_slices ? Math.floor(Math.log2(Math.max(1, long)) * report.bins_an_octave) : 255;
      of.cells.set(time * 256 + bin, (of.cells.get(time * 256 + bin) ?? 0) + 1);
      if (!row.is_slices) return;
      slow(of.slowest, [from, long, row.of]);
      of.own += long;
      while (parent < before.entries.length && report.begin[before.entries[parent]] + report.duration[before.entries[parent]] < from + long) parent++;
      const around = parent < before.entries.length && report.begin[before.entries[parent]] <= from ? parent : -1;
      if (around >= 0) owns.push([report.name[before.entries[around]], before.nodes[around], long]);
      current.entries.push(at);
      current.nodes.push(nodeOf(trees, around >= 0 ? before.nodes[around] + 1 : 0, name, long));
    });
    if (row.is_slices) before = current;
  }
  for (const [name, node, long] of owns) {
    names.get(name * 2 + 1).own -= long;
    trees.nodes[node][4] -= long;
  }
  const made = [...names.values()].map(({ durations, cells, ...of }) => ({ ...of, ...figuresOf(durations), cells }));
  made.sort((a, b) => b.total - a.total || b.count - a.count || a.name - b.name);
  const heat = made.map(({ cells }) => [...cells].sort(([a], [b]) => a - b).map(([bin, count]) => ({ time: Math.floor(bin / 256), bin: bin % 256, count })));
  return { summary: made, heat, nodes: trees.nodes, begin, span, merged };
}

function nodeOf({ nodes, numbers }, parent, name, long) {
  const key = `${parent} ${name}`;
  if (!numbers.has(key)) {
    numbers.set(key, nodes.length);
    nodes.push([parent, name, 0, 0, 0]);
  }
  const number = numbers.get(key);
  const node = nodes[number];
  node[2]++;
  node[3] += long;
  node[4] += long;
  return number;
}

// Adds a slice to the slowest ones, which are sorted by duration.
function slow(slowest, one) {
  if (slowest.length === SLOWEST && slowest[SLOWEST - 1][1] >= one[1]) return;
  let at = slowest.length;
  while (at > 0 && slowest[at - 1][1] < one[1]) at--;
  slowest.splice(at, 0, one);
  slowest.length = Math.min(slowest.length, SLOWEST);
}

// Returns figures of slices of a name, or of all names, by their label, and those of all of them. `is`: whether an entry is counted.
// `left`: number of slices without a label, because they lack the field, or because the page lacks their fields.
export function figuresByLabel(report, labels, name, range, is) {
  const durations = new Map();
  let left = 0;
  eachWithin(report, report.rows, range, (at, row) => {
    if (!row.is_slices || (name !== undefined && report.name[at] !== name) || !is(at)) return;
    const label = report.count[at] === 1 ? labels.ofItem[report.fields[at]] : 0;
    if (label === 0) left += report.count[at];
    else if (durations.has(label)) durations.get(label).push(report.duration[at]);
    else durations.set(label, [report.duration[at]]);
  });
  const rows = [...durations].map(([label, all]) => ({ text: labels.texts[label], ...figuresOf(all) }));
  return { rows, all: figuresOf([...durations.values()].flat()), left };
}
