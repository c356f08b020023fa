// Numbers, durations and times as text, and elements that hold text. Text is never parsed as HTML.

export const counted = (number) => number.toLocaleString("en-US");

export const plural = (number, one, many = `${one}s`) => `${counted(number)} ${number === 1 ? one : many}`;

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

const unitOf = (ns) => UNITS.find(([, size]) => Math.abs(ns) >= size) ?? UNITS[3];

// Returns a duration in a readable unit: 1.234 ms.
export function duration(ns) {
  if (ns >= 60e9) {
    const minutes = Math.floor(ns / 60e9);
    return `${counted(minutes)} min ${((ns - minutes * 60e9) / 1e9).toFixed(1)} s`;
  }
  const [name, size] = unitOf(ns);
  const value = ns / size;
  const digits = size === 1 || value >= 100 ? (size === 1 ? 0 : 1) : value >= 10 ? 2 : 3;
  return `${value.toFixed(digits)} ${name}`;
}

// Ends of the names of fields that have a unit: nanoseconds, or bytes.
const UNITS_OF_FIELDS = new Map([["ns", 1], ["us", 1e3], ["ms", 1e6], ["bytes", 0]]);

// Returns bytes in a readable unit: 12.3 MiB.
export function size(bytes) {
  const power = Math.min(6, Math.floor(Math.log2(Math.max(1, Math.abs(bytes))) / 10));
  const value = bytes / 1024 ** power;
  return power === 0 ? `${counted(value)} B` : `${value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2)} ${"KMGTPE"[power - 1]}iB`;
}

// Returns a value of a field in a readable unit, which the field's name ends in; undefined without one, and for less than
// a thousand.
export function inUnit(field, value) {
  const unit = UNITS_OF_FIELDS.get(field.split(/[._ ]/).pop());
  const number = Number(value);
  if (unit === undefined || value === "" || !Number.isFinite(number) || Math.abs(number) < 1000) return undefined;
  return unit === 0 ? size(number) : `${number < 0 ? "-" : ""}${duration(Math.abs(number) * unit)}`;
}

// Returns the distance of about this many marks on an axis: 1, 2 or 5 times a power of ten.
export function stepOf(span, marks) {
  const rough = span / Math.max(1, marks);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return Math.max(1, step);
}

// Returns the label of a mark, with enough digits to distinguish it from its neighbours.
export function mark(ns, step) {
  if (ns === 0) return "0";
  const [name, size] = UNITS.find(([, unit]) => Math.abs(ns) >= unit && step * 1e4 >= unit) ?? unitOf(ns);
  const digits = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  return `${(ns / size).toFixed(digits)} ${name}`;
}

// Nanoseconds from the zero of the times that are shown to the begin of the report.
let zero = 0;

export const countFrom = (sinceZero) => (zero = sinceZero);

// Returns a time as nanoseconds since the zero, and back.
export const fromZero = (ns) => ns + zero;
export const fromBegin = (ns) => ns - zero;

// Returns a time since the zero, in the form that --since and --until of all commands accept.
export function since(ns) {
  const at = Math.round(fromZero(ns));
  const seconds = Math.floor(Math.abs(at) / 1e9);
  return `${at < 0 ? "-" : "+"}${seconds}.${String(Math.abs(at) - seconds * 1e9).padStart(9, "0")}s`;
}

// Returns a time since the zero in a readable unit.
export const moment = (ns) => duration(fromZero(ns));

// Returns the times of the marks of an axis, since the report's begin, each with its label.
export function marksOf(begin, span, step) {
  const marks = [];
  for (let at = Math.ceil(fromZero(begin) / step) * step; at <= fromZero(begin + span); at += step) marks.push([fromBegin(at), mark(Math.round(at), step)]);
  return marks;
}

// Returns the reader's offset from UTC at a time in nanoseconds since the epoch, a BigInt: +02:00.
export function zoneOf(at) {
  const minutes = -new Date(Number(at / 1000000n)).getTimezoneOffset();
  const two = (number) => String(Math.floor(Math.abs(number))).padStart(2, "0");
  return Number.isNaN(minutes) ? "" : `${minutes < 0 ? "-" : "+"}${two(minutes / 60)}:${two(minutes % 60)}`;
}

// Returns the wall-clock time. `begin`: nanoseconds since the epoch, a BigInt.
export function clock(begin, ns) {
  const at = begin + BigInt(Math.round(ns));
  const second = 1000000000n;
  const rest = ((at % second) + second) % second;
  const date = new Date(Number((at - rest) / 1000000n));
  if (Number.isNaN(date.getTime())) return `${at} ns since 1970`;
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${String(rest).padStart(9, "0")}`;
}

// Creates an element. Properties: `class`, `text`, `on…` handlers; all others are attributes. Children: elements and
// texts.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export const button = (text, onclick, properties = {}) => element("button", { type: "button", text, onclick, ...properties });
