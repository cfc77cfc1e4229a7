"""Drawn tables and drawn queries over them, whose plans `models.data.record_plans` records."""

from __future__ import annotations

import numpy as np

RUNS = 3  # runs of each query
# Rows of each table at --scale 1, and its columns next to `id`: foreign keys by the name of their
# table, and numbers below a limit, of which a "skewed" one prefers small numbers.
TABLES = {
    "region": (25, {"zone": 5}),
    "customer": (4000, {"region": "region", "age": 90, "score": 1000}),
    "product": (1500, {"price": 500, "stock": 2000, "colour": 12}),
    "purchase": (15000, {"customer": "customer", "day": 1500, "status": 6}),
    "item": (40000, {"purchase": "purchase", "product": "product", "amount": 30}),
    "visit": (25000, {"customer": "customer", "day": 1500, "pages": 60}),
}
SKEWED = {"score", "stock", "status", "amount", "pages", "customer", "product"}
INDEXED = ("customer.region", "product.price", "purchase.customer", "purchase.day")
INDEXED += ("item.purchase", "item.product", "visit.customer")
LINKS = [
    (table, column)
    for table, (_, columns) in TABLES.items()
    for column, of in columns.items()
    if isinstance(of, str)
]
SETTINGS = ("hashjoin", "mergejoin", "nestloop", "seqscan", "indexscan", "hashagg", "bitmapscan")
SETTINGS += ("material", "memoize")


def limit_of(column: str) -> int:
    """Return the number below which the values of a column are, at --scale 1."""
    table, _, name = column.partition(".")
    rows, columns = TABLES[table]
    of = columns.get(name, rows)
    return TABLES[of][0] if isinstance(of, str) else of


def schema(scale: float) -> str:
    """Return the statements that create the tables, their rows and their indexes."""
    lines = ["SELECT setseed(0.5);"]
    for table, (rows, columns) in TABLES.items():
        count, values = max(int(rows * scale), 5), ["n"]
        for name, of in columns.items():
            most = max(int(TABLES[of][0] * scale), 5) if isinstance(of, str) else of
            draw = "random() * random() * random()" if name in SKEWED else "random()"
            values.append(f"floor({draw} * {most})::int")
        own = "".join(f", {name} int NOT NULL" for name in columns)
        lines += [
            f"CREATE TABLE {table} (id int PRIMARY KEY{own}, note text);",
            f"INSERT INTO {table} SELECT {', '.join(values)}, repeat('x', (random() * 60)::int) "
            f"FROM generate_series(0, {count - 1}) AS n;",
        ]
    for column in INDEXED:
        table, name = column.split(".")
        lines.append(f"CREATE INDEX ON {table} ({name});")
    return "\n".join([*lines, "VACUUM ANALYZE;"])


class Queries:
    """Drawn queries over the tables."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, values):
        return values[int(self.rng.integers(len(values)))]

    def condition(self, table: str, alias: str) -> str:
        """Return a filter of one column of a table."""
        name = self.pick([*TABLES[table][1], "id"])
        most = limit_of(f"{table}.{name}")
        a, b = sorted(int(x) for x in self.rng.integers(0, most, 2))
        few = ", ".join(str(int(x)) for x in self.rng.integers(0, most, 4))
        shapes = ["{0} < {1}", "{0} >= {2}", "{0} = {1}", "{0} BETWEEN {1} AND {2}"]
        shapes += ["{0} IN ({3})", "({0} < {1} OR {0} > {2})", "{0} % 7 = 3"]
        return self.pick(shapes).format(f"{alias}.{name}", a, b, few)

    def joined(self) -> tuple[list[tuple[str, str]], str]:
        """Return tables with their aliases, and the text from FROM to the end of WHERE."""
        tables = [(self.pick(list(TABLES)), "t0")]
        text, where = f"FROM {tables[0][0]} t0", []
        for i in range(1, 1 + self.pick([0, 0, 1, 1, 1, 2, 2, 3, 4])):
            table, alias = self.pick(tables)
            ends = [(c, TABLES[t][1][c], "id") for t, c in LINKS if t == table]
            ends += [("id", t, c) for t, c in LINKS if TABLES[t][1][c] == table]
            used = {other for other, _ in tables}
            ends = [end for end in ends if end[1] not in used]  # rows multiply at repeated tables
            if not ends:
                continue
            own, other, key = self.pick(ends)
            join = "LEFT JOIN" if self.chance(0.2) else "JOIN"
            text += f" {join} {other} t{i} ON t{i}.{key} = {alias}.{own}"
            tables.append((other, f"t{i}"))
        for table, alias in tables:
            where += [self.condition(table, alias) for _ in range(self.pick([0, 0, 1, 1, 2]))]
        table, alias = tables[0]
        inward = [(t, c) for t, c in LINKS if TABLES[t][1][c] == table]
        if inward and self.chance(0.2):
            t, c = self.pick(inward)
            no = "NOT " if self.chance(0.4) else ""
            some = self.condition(t, "s")
            where.append(f"{no}EXISTS (SELECT 1 FROM {t} s WHERE s.{c} = {alias}.id AND {some})")
        return tables, text + (" WHERE " + " AND ".join(where) if where else "")

    def column(self, tables: list[tuple[str, str]]) -> str:
        table, alias = self.pick(tables)
        return f"{alias}.{self.pick([*TABLES[table][1], 'id'])}"

    def select(self) -> str:
        """Return a query of joined tables."""
        tables, rest = self.joined()
        a, b, c = (self.column(tables) for _ in range(3))
        limit = f" LIMIT {self.pick([1, 10, 100, 1000])}" if self.chance(0.3) else ""
        order = f" ORDER BY {b}, {c}" if self.chance(0.5) else ""
        shape = int(self.rng.integers(6))
        if shape == 0:
            return f"SELECT count(*), max({a}) {rest}"
        if shape == 1:
            return f"SELECT {a} AS g, count(*), avg({b}) {rest} GROUP BY {a}" + (
                f" ORDER BY 2 DESC{limit}" if order else ""
            )
        if shape == 2:
            order = " ORDER BY 1, 2" if order else ""
            if self.chance(0.5):
                return f"SELECT {a} AS p, {b} AS q {rest} GROUP BY {a}, {b}{order}"
            return f"SELECT DISTINCT {a} AS p, {b} AS q {rest}{order}"
        if shape == 3:
            window = f"rank() OVER (PARTITION BY {a} ORDER BY {b})"
            return f"SELECT {c}, {window} {rest}{limit}"
        return f"SELECT {a}, {b}, {tables[0][1]}.note {rest}{order}{limit}"

    def query(self) -> str:
        """Return a query, sometimes of several selects."""
        if self.chance(0.85):
            return self.select()
        parts = []
        if self.chance(0.2):  # merged in the order of an index
            for table in self.rng.permutation(list(TABLES))[:3]:
                parts.append(f"SELECT id AS p FROM {table} t WHERE {self.condition(table, 't')}")
            union, limit = " UNION ALL ".join(parts), self.pick([10, 100, 1000])
            return f"SELECT p FROM ({union}) u ORDER BY p LIMIT {limit}"
        for _ in range(self.pick([2, 2, 3, 4])):
            tables, rest = self.joined()
            parts.append(f"SELECT {self.column(tables)} AS p, {self.column(tables)} AS q {rest}")
        operation = self.pick([" UNION ALL ", " UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT "])
        order = " ORDER BY p" if self.chance(0.4) else ""
        if self.chance(0.3):
            return f"SELECT p, count(*) FROM ({operation.join(parts)}) u GROUP BY p{order}"
        return operation.join(parts) + order

    def script(self) -> str:
        """Return the statements that explain one query, sometimes without a sort of operator."""
        query, text = self.query(), ""
        if self.chance(0.4):
            text = f"SET enable_{self.pick(SETTINGS)} = off;\n"
        explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {query};\n"
        return f"{text}\\echo query\n{explain * RUNS}RESET ALL;\n"
