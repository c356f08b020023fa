"""Draws questions about events, and knows the answers: from the events alone, by Python's numbers, which are exact.

One line of JSON in, one out: events -> queries in SQL, and filters; what was answered -> what of it is wrong.
"""
import json, math, random, struct, sys
from fractions import Fraction

FAMILIES = {"Str": "text", "Bool": "bool", "F32": "float", "F64": "float"}
ENDS = [0, 1, 2, 5, 2**7, 2**8, 2**31, 2**32, 2**53, 2**63, 2**64]
FLOATS = ["0.0", "1.5", "-1.5", "1e300", "-1e300", "9007199254740992.0", "0.1"]


def value_of(kind, value):
    return struct.unpack(">d", bytes.fromhex(value))[0] if kind[0] == "F" else value


class Class:
    """Rows of one class: `fields` as filters see them, `columns` as SQL does. A type that does not fit has a column of its own."""

    def __init__(self, name, told):
        self.name, self.kinds, columns = name, {}, {}
        variants = told["variants"]
        for variant in variants:
            for field, kind in variant["fields"] if variant["class"] == name else []:
                families = columns.setdefault(field, {})
                family = FAMILIES.get(kind, "int")
                first = [field, f"{name}.{field}"] + [f"{name}.{field}" + "_" * n for n in (1, 2, 3)]
                column = families.setdefault(family, first[len(families)])
                self.kinds.setdefault((field, family, column), set()).add(kind)
        self.rows = []
        for at, values in told["events"]:
            if variants[at]["class"] == name:
                row = {}
                for (field, kind), value in zip(variants[at]["fields"], values):
                    family, value = FAMILIES.get(kind, "int"), value_of(kind, value)
                    row[field] = value
                    row[field, family] = value
                self.rows.append(row)
        self.columns = [column for column in self.kinds if column[0] != "n"]

    def families(self, field):
        return {family for name, family, _ in self.kinds if name == field}

    def is_decimal(self, column):
        """Whether SQL computes with decimals: the column has unsigned numbers of 64 bits."""
        return "U64" in self.kinds[column]


def quoted(column):
    return '"' + column[2].replace('"', '""') + '"'


def ranked(value):
    """As SQL compares: NaN is greater than all else, and equal to itself."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value.encode() if isinstance(value, str) else value


HOLDS = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
         "=": lambda a, b: a == b, "<>": lambda a, b: a != b}


class Compare:
    """A column and a value."""

    def __init__(self, of, column, rng):
        self.of, self.column, (self.field, self.family, _) = of, column, column
        there = [row[self.field, self.family] for row in of.rows if (self.field, self.family) in row]
        self.operator = rng.choice(list(HOLDS))
        if self.family == "int":
            self.value = rng.choice(there) if there and rng.random() < 0.5 else rng.choice(ENDS) * rng.choice([1, -1])
            self.value += rng.choice([-1, 0, 0, 1])
            self.text = str(self.value)
        elif self.family == "float":
            self.text = rng.choice(FLOATS)
            self.value = float(self.text)
        elif self.family == "text":
            self.value = rng.choice(there) if there and rng.random() < 0.8 else rng.choice(["", "a", "0", "zz"])
            self.text = "'" + self.value.replace("'", "''") + "'"
        else:
            self.operator, self.value, self.text = rng.choice(["=", "<>"]), rng.random() < 0.5, None
            self.text = str(self.value).lower()

    def sql(self):
        return f"{quoted(self.column)} {self.operator} {self.text}"

    def holds_sql(self, row):
        value = row.get((self.field, self.family))
        return None if value is None else HOLDS[self.operator](ranked(value), ranked(self.value))

    def filter(self):
        # A Boolean is a number to filters, but not to SQL.
        if "bool" in self.of.families(self.field) and self.family != "bool":
            return None
        text = self.text
        if self.family == "text":
            text = '"' + self.value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return f"{self.field} {({'=': '==', '<>': '!='}).get(self.operator, self.operator)} {text}"

    def holds_filter(self, row):
        value = row.get(self.field)
        if value is None or isinstance(value, str) != (self.family == "text"):
            return None
        if self.family == "text":
            return HOLDS[self.operator](value.encode(), self.value.encode())
        return HOLDS[self.operator](bool(value), self.value) if self.family == "bool" else HOLDS[self.operator](value, self.value)


class IsNull:
    def __init__(self, of, column, rng):
        self.column, self.is_not = column, rng.random() < 0.5

    def sql(self):
        return f"{quoted(self.column)} is {'not ' if self.is_not else ''}null"

    def holds_sql(self, row):
        return (self.column[0], self.column[1]) not in row if not self.is_not else (self.column[0], self.column[1]) in row

    def filter(self):
        return None


class Among(IsNull):
    """`in` and `between`, which filters write otherwise."""

    def __init__(self, of, column, rng):
        self.parts = [Compare(of, column, rng) for _ in range(2)]
        self.is_list = column[1] not in ("int", "float") or rng.random() < 0.5
        for part, operator in zip(self.parts, ["=", "="] if self.is_list else [">=", "<="]):
            part.operator = operator
        self.whole = (Both if not self.is_list else Either)(*self.parts)
        self.column = column

    def sql(self):
        a, b = (part.text for part in self.parts)
        return f"{quoted(self.column)} " + (f"in ({a}, {b})" if self.is_list else f"between {a} and {b}")

    def holds_sql(self, row):
        return self.whole.holds_sql(row)

    def filter(self):
        return self.whole.filter()

    def holds_filter(self, row):
        return self.whole.holds_filter(row)


class Both:
    word, decisive = "and", False

    def __init__(self, *parts):
        self.parts = parts

    def sql(self):
        return f" {self.word} ".join(f"({part.sql()})" for part in self.parts)

    def filter(self):
        texts = [part.filter() for part in self.parts]
        return None if None in texts else f" {self.word} ".join(f"({text})" for text in texts)

    def decide(self, answers):
        return self.decisive if self.decisive in answers else None if None in answers else not self.decisive

    def holds_sql(self, row):
        return self.decide([part.holds_sql(row) for part in self.parts])

    def holds_filter(self, row):
        return self.decide([part.holds_filter(row) for part in self.parts])


class Either(Both):
    word, decisive = "or", True


class Not(Both):
    def sql(self):
        return f"not ({self.parts[0].sql()})"

    def filter(self):
        text = self.parts[0].filter()
        return None if text is None else f"not ({text})"

    def decide(self, answers):
        return None if answers[0] is None else not answers[0]


def condition(of, rng, depth=2):
    kind = rng.random()
    if depth and kind < 0.4:
        return rng.choice([Both, Either])(condition(of, rng, depth - 1), condition(of, rng, depth - 1))
    if depth and kind < 0.5:
        return Not(condition(of, rng, depth - 1))
    return rng.choice([Compare, Compare, Compare, IsNull, Among])(of, rng.choice(of.columns), rng)


class Figure:
    """What is made of the values of rows: a text of SQL, and a function of values."""

    def __init__(self, sql, values, make, is_near=False):
        self.sql, self.values, self.make, self.is_near = sql, values, make, is_near

    def of(self, rows):
        return self.make([value for value in map(self.values, rows) if value is not None])


def or_null(make):
    return lambda values: make(values) if values else None


def mean(values):
    return float(Fraction(sum(values), len(values)))


def figures(of, rng):
    """Some of those that can be asked of a class."""
    all_of = [Figure("count(*)", lambda row: 1, len)]
    for column in of.columns:
        key, name, family = (column[0], column[1]), quoted(column), column[1]
        get = lambda row, key=key: row.get(key)
        all_of.append(Figure(f"count({name})", get, len))
        if family != "float":
            all_of.append(Figure(f"count(distinct {name})", get, lambda values: len(set(values))))
        if family == "int":
            all_of += [Figure(f"sum({name})", get, or_null(sum)), Figure(f"avg({name})", get, or_null(mean), True),
                       Figure(f"min({name})", get, or_null(min)), Figure(f"max({name})", get, or_null(max)),
                       Figure(f"sum(distinct {name})", get, or_null(lambda values: sum(set(values)))),
                       Figure(f"avg(distinct {name})", get, or_null(lambda values: mean(set(values))), True)]
            all_of += computed(of, column, rng)
        elif family in ("text", "float"):
            cast = "::double::varchar" if family == "float" else ""
            all_of += [Figure(f"min({name}){cast}", get, or_null(lambda values: min(values, key=ranked))),
                       Figure(f"max({name}){cast}", get, or_null(lambda values: max(values, key=ranked)))]
    return all_of[:1] + rng.sample(all_of[1:], min(16, len(all_of) - 1))


def computed(of, column, rng):
    """Sums of differences, products and others of two columns, or of one and a number; where one is beyond what its type has, the query is to fail."""
    other = rng.choice([other for other in of.columns if other[1] == "int"])
    operator = rng.choice("+-*")
    number = rng.choice(ENDS[:10])
    is_literal = rng.random() < 0.3
    right = str(number) if is_literal else quoted(other)
    compute = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}[operator]

    def values(row):
        a, b = row.get((column[0], "int")), number if is_literal else row.get((other[0], "int"))
        return None if a is None or b is None else compute(a, b)

    is_decimal = of.is_decimal(column) or (number >= 2**63 if is_literal else of.is_decimal(other))
    results = [value for value in map(values, of.rows) if value is not None]
    limit = 10**37 if is_decimal else 2**63
    if any(not -limit <= value < limit for value in results) or sum(map(abs, results)) >= 10**38:
        return []
    text = f"{quoted(column)} {operator} {right}"
    return [Figure(f"{of_all}({text})", values, or_null(make)) for of_all, make in [("sum", sum), ("min", min), ("max", max)]]


def same(expected, found, is_near=False):
    if expected is None or found is None:
        return expected is found
    if isinstance(expected, float) or is_near:
        found = float(found)
        if isinstance(expected, float) and math.isnan(expected):
            return math.isnan(found)
        return expected == found or is_near and abs(expected - found) <= 1e-14 * abs(expected)
    if isinstance(expected, str) or isinstance(expected, bool):
        return type(found) is type(expected) and expected == found
    return not isinstance(found, float) and expected == int(found)


class Questions:
    def __init__(self, told):
        rng = random.Random(told["seed"])
        classes = [Class(name, told["events"]) for name in ("p:c0", "p:c1")]
        self.queries, self.filters = [], []
        for _ in range(told["conditions"]):
            of = rng.choice(classes)
            where = condition(of, rng)
            kept = [row for row in of.rows if where.holds_sql(row) is True]
            asked = figures(of, rng)
            self.query(of, where, asked, None, kept)
            self.query(of, where, asked[:9], rng.choice(of.columns), kept)
            self.order(of, where, rng, kept)
            text = where.filter()
            if text is not None:
                numeric = sorted({field for field, _, _ in of.columns if of.families(field) <= {"int", "float"}})
                self.filters.append((text, of, numeric, [row for row in of.rows if where.holds_filter(row) is True]))

    def query(self, of, where, asked, by, kept):
        group = [f"{quoted(by)}{'::double::varchar' if by[1] == 'float' else ''} as g"] if by else []
        what = group + [f"{figure.sql} as r{at}" for at, figure in enumerate(asked)]
        text = f"select {len(self.queries)} as q, {', '.join(what)} from \"{of.name}\" where {where.sql()}"
        groups = {}
        for row in kept:
            value = row.get((by[0], by[1])) if by else None
            groups.setdefault(repr(value) if isinstance(value, float) else value, []).append(row)
        if not by:
            groups.setdefault(None, [])
        expected = [{"g": key} | {f"r{at}": figure.of(rows) for at, figure in enumerate(asked)} for key, rows in groups.items()]
        near = {f"r{at}" for at, figure in enumerate(asked) if figure.is_near}
        self.queries.append((text + (" group by g" if by else ""), expected, near, len(asked), by and by[1]))

    def order(self, of, where, rng, kept):
        """The first rows in an order, each with a sum over the rows before it."""
        by, limit, is_descending = rng.choice(of.columns), rng.choice([3, 1000]), rng.random() < 0.5
        key = (by[0], by[1])
        ordered = sorted(kept, key=lambda row: row["n"])
        there, absent = [row for row in ordered if key in row], [row for row in ordered if key not in row]
        there.sort(key=lambda row: ranked(row[key]), reverse=is_descending)
        what, sums = "n", {}
        integers = [column for column in of.columns if column[1] == "int"]
        if integers:
            of_sum = rng.choice(integers)
            before = rng.choice([1, 2, None])
            what += f", sum({quoted(of_sum)}) over (order by n rows between {before or 'unbounded'} preceding and current row) as s"
            for at, row in enumerate(ordered):
                values = [one[of_sum[0], "int"] for one in ordered[0 if before is None else max(0, at - before):at + 1] if (of_sum[0], "int") in one]
                sums[row["n"]] = sum(values) if values else None
        text = (f"select {len(self.queries)} as q, {what} from \"{of.name}\" where {where.sql()} "
                f"order by {quoted(by)}{' + 0.0' if by[1] == 'float' else ''} {'desc' if is_descending else 'asc'} nulls last, n limit {limit}")
        rows = [{"n": row["n"]} | ({"s": sums[row["n"]]} if integers else {}) for row in (there + absent)[:limit]]
        self.queries.append((text, rows, set(), 1 + bool(integers), "n"))

    def asked(self):
        return {"sql": ";\n".join(text for text, *_ in self.queries),
                "filters": [[text, of.name, numeric] for text, of, numeric, _ in self.filters]}

    def check(self, told):
        faults, count, answers = [], 0, {}
        if told["error"]:
            faults.append(f"SQL says: {told['error']}")
        for line in told["rows"].splitlines():
            row = json.loads(line)
            answers.setdefault(row.pop("q"), []).append(row)
        for at, (text, expected, near, asked, by) in enumerate(self.queries):
            count += asked
            found = answers.get(at, [])
            if by != "n":
                for row in found:
                    # Floating-point numbers in Python's notation.
                    row["g"] = repr(float(row["g"])) if by == "float" and row["g"] is not None else row.get("g")
                order = lambda row: (row["g"] is not None, str(row["g"]))
                expected, found = sorted(expected, key=order), sorted(found, key=order)
            if len(found) != len(expected) or not all(
                    same(value, one.get(name), name in near) for row, one in zip(expected, found) for name, value in row.items()):
                faults.append(f"{text}\n  gives {found}\n  right {expected}")
        for (text, of, numeric, kept), (matched, reports) in zip(self.filters, json.loads(told["found"])):
            count += 1 + 5 * len(numeric)
            if matched != [row["n"] for row in kept]:
                faults.append(f"--where '{text}' of {of.name} finds {matched}, right {[row['n'] for row in kept]}")
            for field, rows in zip(numeric, reports):
                fault = measured(rows, [row[field] for row in kept if field in row])
                if fault:
                    faults.append(f"stats --field {field} --where '{text}' of {of.name}: {fault}")
        return {"asked": count, "faults": faults}


def measured(rows, values):
    """What is wrong with what `stats` tells of values."""
    finite = [value for value in values if not isinstance(value, float) or math.isfinite(value)]
    told = rows[0]["values"] if rows else {"count": 0, "sum": None, "min": None, "max": None, "mean": None}
    expected = {"count": len(finite)}
    if finite and all(isinstance(value, int) for value in finite):
        expected |= {"sum": sum(finite), "min": min(finite), "max": max(finite)}
        if not same(mean(finite), told["mean"], True):
            expected["mean"] = mean(finite)
    elif not finite:
        expected |= {"sum": None, "min": None, "max": None, "mean": None}
    wrong = {name: (value, told[name]) for name, value in expected.items() if not same(value, told[name])}
    return f"right and told {wrong}" if wrong else None


questions = None
for line in sys.stdin:
    told = json.loads(line)
    if "seed" in told:
        questions = Questions(told)
        answer = questions.asked()
    else:
        answer = questions.check(told)
    print(json.dumps(answer), flush=True)
