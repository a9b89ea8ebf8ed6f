"""PromQL read back: a parser of what our files hold, and the expressions of the catalog that it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from servescope.contract.expressions import (
    COLLECTOR_LABELS,
    Difference,
    Expression,
    FractionAbove,
    Increase,
    Level,
    Matchers,
    Quantile,
    Rate,
    Ratio,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"(?:[^\"\\]|\\.)*\")|(?P<number>-?(?:\d+\.?\d*(?:e[-+]?\d+)?|Inf)\b(?![smhdwy]))"
    r"|(?P<duration>\d+[smhdwy](?::\d+[smhdwy])?|\$__rate_interval)|(?P<variable>\$\w+)|(?P<name>[a-zA-Z_:][\w:]*)"
    r"|(?P<sign>@|=~|!~|!=|==|<=|>=|[-+*/^<>=(){}\[\],]))"
)
_AGGREGATIONS = ("sum", "avg", "max", "min", "count", "group", "topk", "bottomk")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_PRECEDENCE = (("or",), ("and", "unless"), _COMPARISONS, ("+", "-"), ("*", "/"), ("^",))


class NotReadError(Exception):
    """A text that is no PromQL of ours; says where it stops to be."""


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: float


@dataclass(frozen=True, slots=True)
class Selector:
    """Series by name and matchers, over `window` where it is a range, `offset` into the past."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()
    window: str = ""
    offset: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or an aggregation by labels."""

    name: str
    arguments: tuple[Node, ...]
    by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """An operator between two; `matching` are the labels that one side finds the other by, None for all."""

    operator: str
    left: Node
    right: Node
    matching: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Subquery:
    """What an expression was over `window`, at every step of it: `1h:15s`; `offset` is into the past.

    `at_end` is one whose past is that of the end of the range, whichever moment is asked for.
    """

    inner: Node
    window: str
    offset: str = ""
    at_end: bool = False


Node = Number | Selector | Call | Binary | Subquery


def parse(text: str) -> Node:
    """The expression; raises NotReadError."""
    reader = _Reader(text)
    node = reader.binary(0)
    reader.end()
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            found = _TOKEN.match(text, position)
            if found is None:
                raise NotReadError(f"{text!r} at {position}: {text[position : position + 20]!r}")
            self._tokens.append((str(found.lastgroup), str(found[str(found.lastgroup)])))
            position = found.end()
        self._at = 0

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise NotReadError(f"{self._text!r}: {self._tokens[self._at][1]!r} comes after its end")

    def binary(self, level: int) -> Node:
        """Operators of a level and those that bind more tightly."""
        if level == len(_PRECEDENCE):
            return self._ranged(self._operand())
        left = self.binary(level + 1)
        while self._peek() in _PRECEDENCE[level] or (level == 3 and self._is_negative()):
            if self._is_negative():
                # A minus before digits is read as theirs; between two operands it is an operator.
                kind, text = self._tokens[self._at]
                self._tokens[self._at : self._at + 1] = [("sign", "-"), (kind, text[1:])]
            operator = self._next()
            if self._peek() == "bool":
                operator += f" {self._next()}"
            matching = self._matching()
            right = self.binary(level + 1)
            if operator != "and" or right != left:
                left = Binary(operator, left, right, matching)
        return left

    def _is_negative(self) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][0] == "number" and self._peek().startswith("-")

    def _matching(self) -> tuple[str, ...] | None:
        if self._peek() != "on":
            return None
        self._next()
        labels = self._labels()
        if self._peek() == "group_left":
            self._next()
            self._labels()
        return labels

    def _ranged(self, node: Node) -> Node:
        """The operand, over a stretch of its past where one follows."""
        if self._peek() != "[":
            return node
        self._take("[")
        window = self._next()
        self._take("]")
        return Subquery(node, window, self._offset(), self._at_end())

    def _at_end(self) -> bool:
        if self._peek() != "@":
            return False
        for sign in ("@", "end", "(", ")"):
            self._take(sign)
        return True

    def _offset(self) -> str:
        if self._peek() != "offset":
            return ""
        self._next()
        return self._next()

    def _labels(self) -> tuple[str, ...]:
        self._take("(")
        labels = []
        while self._peek() != ")":
            labels.append(self._next())
            if self._peek() == ",":
                self._next()
        self._take(")")
        return tuple(labels)

    def _operand(self) -> Node:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
        if text == "(":
            self._take("(")
            node = self.binary(0)
            self._take(")")
            return node
        if kind == "number":
            self._next()
            return Number(float(text))
        if kind == "string":
            # An argument of a function of labels.
            self._next()
            return Number(0.0)
        if kind == "variable":
            # A number that is chosen on the dashboard.
            self._next()
            return Number(1.0)
        if kind != "name":
            raise NotReadError(f"{self._text!r}: {text!r} is no operand")
        self._next()
        if text in _AGGREGATIONS and self._peek() == "without":
            self._next()
            labels, arguments = self._labels(), self._arguments()
            if labels != COLLECTOR_LABELS:
                return Call(f"{text} without ({', '.join(labels)})", arguments)
            # Which of several collectors says so makes no difference to what is meant.
            match arguments if text in ("max", "min", "group", "topk") else ():
                # Of native histograms it is the one with the most observations.
                case (Number(1.0), Call("histogram_count", (inner,))) | (inner,):
                    return inner
            raise NotReadError(f"{self._text!r}: more than one of several collectors")
        if text in _AGGREGATIONS and self._peek() in ("by", "("):
            by = self._labels() if self._peek() == "by" and self._next() else ()
            return Call(text, self._arguments(), by)
        return Call(text, self._arguments()) if self._peek() == "(" else self._selector(text)

    def _arguments(self) -> tuple[Node, ...]:
        self._take("(")
        arguments = []
        while self._peek() != ")":
            arguments.append(self.binary(0))
            if self._peek() == ",":
                self._next()
        self._take(")")
        return tuple(arguments)

    def _selector(self, name: str) -> Selector:
        matchers, window = [], ""
        if self._peek() == "{":
            self._take("{")
            while self._peek() != "}":
                label, operator, value = self._next(), self._next(), self._next()
                matchers.append((label, operator, value[1:-1]))
                if self._peek() == ",":
                    self._next()
            self._take("}")
        if self._peek() == "[":
            self._take("[")
            window = self._next()
            self._take("]")
        return Selector(name, tuple(sorted(matchers)), window, self._offset())

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        self._at += 1
        if self._at > len(self._tokens):
            raise NotReadError(f"{self._text!r} ends too early")
        return self._tokens[self._at - 1][1]

    def _take(self, sign: str) -> None:
        found = self._next()
        if found != sign:
            raise NotReadError(f"{self._text!r}: {found!r} where {sign!r} was expected")


# --- From PromQL to the catalog's expressions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Derived:
    """An expression of the catalog, the labels it is grouped by beside `le`, and the windows it looks over."""

    expression: Expression
    by: tuple[str, ...]
    windows: frozenset[str]


def read_expression(text: str) -> Derived:
    """The catalog's expression that a PromQL text means; raises NotReadError for what none does."""
    node = parse(text)
    groups = {
        tuple(label for label in each.by if label != "le")
        for each in walk(node)
        if isinstance(each, Call) and each.by is not None
    }
    if len(groups) > 1:
        raise NotReadError(f"{text!r} groups by different labels: {sorted(groups)}")
    windows = frozenset(each.window for each in walk(node) if isinstance(each, Selector) and each.window)
    return Derived(_read(node), next(iter(groups), ()), windows)


def walk(node: Node) -> Iterator[Node]:
    """A node and all within it."""
    yield node
    for part in parts(node):
        yield from walk(part)


def parts(node: Node) -> tuple[Node, ...]:
    """What a node is made of."""
    match node:
        case Call(_, arguments):
            return arguments
        case Binary(_, left, right):
            return left, right
        case Subquery(inner):
            return (inner,)
        case _:
            return ()


def _read(node: Node) -> Expression:
    match node:
        case Call("sum", (Call("rate", (Selector(name, matchers),)),)):
            return Rate(name, _matchers(matchers))
        case Call("sum", (Call("increase", (Selector(name, matchers),)),)):
            return Increase(name, _matchers(matchers))
        case Call(("sum" | "avg" | "max") as over, (Selector(name, matchers, ""),)):
            return Level(name, over, _matchers(matchers))
        case Binary(">=", Call("histogram_quantile", (Number(share), buckets)), Number(least)) if least == -float(
            "inf"
        ):
            return Quantile(share, _histogram(_read(buckets)))
        case Binary("-", Number(1.0), Binary("/", below, Binary(">", total, Number(0.0)))):
            return _fraction(below, _read(total))
        case Binary("/", left, Binary(">", right, Number(0.0))):
            return Ratio(_read(left), _read(right))
        case Binary("-", left, right):
            return Difference(_read(left), _read(right))
        case _:
            raise NotReadError(f"no expression of the catalog is like {node}")


def _histogram(buckets: Expression) -> str:
    if isinstance(buckets, Rate) and buckets.name.endswith("_bucket") and not buckets.where:
        return buckets.name.removesuffix("_bucket")
    raise NotReadError(f"no buckets of a histogram: {buckets}")


def _fraction(below: Node, total: Expression) -> FractionAbove:
    edges: list[float] = []
    for each in _alternatives(below):
        match _read(each), total:
            case Rate(bucket, (("le", (edge,)),)), Rate(count, ()) if (
                count == f"{bucket.removesuffix('_bucket')}_count"
            ):
                edges.append(float(edge))
            case read, _:
                raise NotReadError(f"no share of a histogram's observations: {read}, {total}")
    assert isinstance(total, Rate)
    return FractionAbove(edges[0], total.name.removesuffix("_count"), tuple(edges[1:]))


def _alternatives(node: Node) -> Iterator[Node]:
    """Both sides of every `or`, in order."""
    match node:
        case Binary("or", left, right):
            yield from (*_alternatives(left), *_alternatives(right))
        case _:
            yield node


def _matchers(matchers: tuple[tuple[str, str, str], ...]) -> Matchers:
    return tuple(
        (label, tuple(value.split("|")) if operator == "=~" else (value,)) for label, operator, value in matchers
    )
