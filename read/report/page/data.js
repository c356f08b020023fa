// Unpacks the data in the document.

const text = (id) => document.getElementById(id).textContent;

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const unpack = (base64) => inflate(bytesOf(base64));

const parse = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

// Fills `out` with LEB128 numbers.
function numbers(bytes, from, out) {
  let at = from;
  for (let index = 0; index < out.length; index++) {
    let byte = bytes[at++];
    let value = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = bytes[at++];
      value += (byte & 127) * scale;
    }
    out[index] = value;
  }
}

export const COLUMNS = ["begin", "duration", "name", "count", "key", "fields", "other"];

// Room for requested entries after those of the page. When it is full, entries of earlier requests are dropped.
const ROOM = 1 << 20;

// Returns the report: the head, and the columns of all rows. An entry is a position in the columns. `shown`: the rows
// that are drawn, either those of the page or finer ones of a part of the time (`part`).
export async function load() {
  const head = parse(await unpack(text("head")));
  const bytes = await unpack(text("rows"));
  const total = entriesIn(head);
  const report = { ...head, begin_at: BigInt(head.begin_ns), heat: await heat(head), used: 0, forgotten: 0 };
  COLUMNS.forEach((name, index) => {
    const length = total + (head.is_served ? ROOM : 0);
    report[name] = index < 2 || name === "fields" ? new Float64Array(length) : new Uint32Array(length);
  });
  report.rows = put(report, head, bytes);
  report.own = report.used;
  report.shown = report.rows;
  return report;
}

// Gives the entries of coarser levels in rows of CPUs the thread of the one item that they stand for.
export function spreadThreads(report) {
  if (report.hasThreads) return;
  report.hasThreads = true;
  for (const row of report.rows.filter((row) => row.by === "cpu")) {
    eachMerged(report, row, (entry, from, to) => to - from === 1 && (report.other[entry] = report.other[from]));
  }
}

// Calls `each` for the entries of a row's coarser levels, with the range of the entries of the finest level that each
// stands for.
export function eachMerged(report, row, each) {
  const [base, ...coarser] = row.levels;
  for (const level of coarser) {
    let at = base.from;
    for (let entry = level.from; entry < level.to; entry++) {
      const from = at;
      for (let left = report.count[entry]; left > 0 && at < base.to; at++) left -= report.count[at];
      each(entry, from, at);
    }
  }
}

// Returns the entry with the fields of a number; undefined if it is merged with others, or there is none.
export function entryOf(report, number) {
  if (!report.byNumber) {
    const rows = report.rows.filter((row) => row.by === "thread");
    const size = report.chunks.length * report.chunk_items + 1;
    report.byNumber = { rows, at: new Uint32Array(size), row: new Uint32Array(size) };
    rows.forEach(({ levels: [{ from, to }] }, index) => {
      for (let at = from; at < to; at++) {
        if (report.count[at] > 1 || report.fields[at] === 0) continue;
        report.byNumber.at[report.fields[at]] = at + 1;
        report.byNumber.row[report.fields[at]] = index;
      }
    });
  }
  const { rows, at, row } = report.byNumber;
  return at[number] > 0 ? { at: at[number] - 1, row: rows[row[number]] } : undefined;
}

const entriesIn = (head) => head.rows.reduce((sum, row) => row.levels.reduce((sum, [, length]) => sum + length, sum), 0);

// Appends the columns of rows and returns the rows. If there is no room, it overwrites the entries of earlier requests.
function put(report, head, bytes) {
  const total = entriesIn(head);
  if (report.used + total > report.begin.length) {
    report.used = report.own;
    report.forgotten++;
  }
  let at = report.used;
  report.used += total;
  let from = 0;
  COLUMNS.forEach((name, index) => {
    numbers(bytes, from, report[name].subarray(at, at + total));
    from += head.columns[index];
  });
  return head.rows.map((row, index) => {
    const levels = row.levels.map(([resolution, length]) => {
      const level = { resolution, from: at, to: at + length };
      let begin = 0;
      let number = 0;
      for (; at < level.to; at++) {
        begin += report.begin[at];
        report.begin[at] = begin;
        const zigzag = report.fields[at];
        number += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
        report.fields[at] = number;
      }
      return level;
    });
    return { ...row, by: row.is_cpu ? "cpu" : "thread", index, levels };
  });
}

// Sends a request to the program that served the page.
async function ask(what) {
  const response = await fetch(what, { cache: "no-store", redirect: "error" });
  if (!response.ok) throw new Error(`${response.status} ${(await response.text()).trim()}`);
  return new Uint8Array(await response.arrayBuffer());
}

// Requests rows of a part of the time, or with a key; with the path `find`, of items with a value. The response is the
// length of a head, the head, and columns.
export async function partOf(report, asked, path = "part") {
  const bytes = await ask(`${path}?${new URLSearchParams(asked)}`);
  const length = 4 + new DataView(bytes.buffer).getUint32(0, true);
  const [head, columns] = await Promise.all([inflate(bytes.subarray(4, length)), inflate(bytes.subarray(length))]);
  const parsed = parse(head);
  return { resolution: parsed.resolution, counters: parsed.counters, found: parsed.found, rows: put(report, parsed, columns) };
}

// Asks the program to read what was recorded since.
export const again = () => ask("again");

// Returns the heat map of each row of the summary: bins of time and duration, with counts.
async function heat(head) {
  const bytes = await unpack(text("heat"));
  const sum = head.summary.reduce((sum, row) => sum + row.heat, 0);
  const all = new Float64Array(2 * sum);
  numbers(bytes, 0, all);
  let at = 0;
  return head.summary.map((row) => {
    const cells = [];
    let bin = 0;
    for (let index = 0; index < row.heat; index++, at += 2) {
      bin += all[at];
      cells.push({ time: Math.floor(bin / 256), bin: bin % 256, count: all[at + 1] });
    }
    return cells;
  });
}

const chunks = new Map();
let starts;
let packed;
// Milliseconds of work on fields between two frames.
const PART_MS = 4;
// Number of chunks that are unpacked at the same time.
const AHEAD = 8;

// Returns the fields of an entry: for each of its events a name, and pairs of name and value; nothing if they are left
// out.
export async function fieldsOf(report, { at, row }) {
  const number = report.fields[at];
  if (number === 0) return [];
  if (report.is_served) {
    const thread = row.by === "thread" ? row.of : report.other[at] - 1;
    const asked = { thread, name: report.name[at], slice: Number(row.is_slices), begin: report.begin[at], duration: report.duration[at] };
    return eventsOf(new TextDecoder().decode(await ask(`fields?${new URLSearchParams(asked)}`)));
  }
  const chunk = Math.floor((number - 1) / report.chunk_items);
  return eventsOf((await chunkOf(report, chunk))[(number - 1) % report.chunk_items]);
}

// Returns the fields of the items of a chunk.
function chunkOf(report, chunk) {
  if (!starts) {
    starts = [0];
    for (const length of report.chunks) starts.push(starts[starts.length - 1] + length);
  }
  if (!chunks.has(chunk)) chunks.set(chunk, unpackChunk(report, chunk));
  return chunks.get(chunk);
}

// Calls `visit` with the number and the fields of each item in the page. Frames are drawn in between. Returns false if
// `isStopped` has become true.
export async function eachFields(report, visit, isStopped) {
  let until = performance.now() + PART_MS;
  for (let chunk = 0; chunk < report.chunks.length; chunk++) {
    for (let next = chunk; next < Math.min(chunk + AHEAD, report.chunks.length); next++) chunkOf(report, next);
    const items = await chunkOf(report, chunk);
    if (isStopped()) return false;
    items.forEach((item, index) => visit(chunk * report.chunk_items + index + 1, item));
    if (performance.now() < until) continue;
    await new Promise((done) => setTimeout(done));
    until = performance.now() + PART_MS;
  }
  return !isStopped();
}

export function eventsOf(item) {
  return item.split("\u0001").slice(1).map((event) => {
    const [name, ...parts] = event.split("\0");
    const fields = [];
    for (let at = 0; at + 1 < parts.length; at += 2) fields.push([parts[at], parts[at + 1]]);
    return { name, fields };
  });
}

async function unpackChunk(report, chunk) {
  packed ??= text("fields");
  const bytes = await unpack(packed.substring(starts[chunk], starts[chunk + 1]));
  // All sizes come first, then the fields. The sizes add up to the remaining bytes.
  const view = new DataView(bytes.buffer);
  const sizes = [];
  for (let at = 0, sum = 0; at + sum < bytes.length; at += 4) {
    sizes.push(view.getUint32(at, true));
    sum += sizes[sizes.length - 1];
  }
  let from = 4 * sizes.length;
  const decoder = new TextDecoder();
  return sizes.map((size) => decoder.decode(bytes.subarray(from, (from += size))));
}
