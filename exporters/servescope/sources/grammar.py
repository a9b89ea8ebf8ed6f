"""The grammar of Prometheus text as regular expressions, and the numbers in it."""

from __future__ import annotations

import re
from typing import Final

# Quantifiers are possessive: no line is matched twice, and no state is kept for each of its characters.
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_TEXT = r'"(?:[^"\\]++|\\.)*+"'
BLOCK = rf'\{{((?:[^"{{}}]++|{_TEXT})*+)\}}'
_NUMBER = r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
SAMPLE = re.compile(
    rf"({NAME})(?:[ \t]*{BLOCK}[ \t]*|[ \t]+)"
    r"([^ \t]+)"  # value
    rf"(?:[ \t]+{_NUMBER})?"  # timestamp
    rf"(?:[ \t]+#[ \t]*{BLOCK}[ \t]+{_NUMBER}(?:[ \t]+{_NUMBER})?)?"  # exemplar
)
LABEL = re.compile(r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)')
# What may follow the head of a line, which ends where its value begins. Matches no more than SAMPLE does.
TAILS = re.compile(
    rf"^([^ \t\r\n]++)(?:[ \t]++{_NUMBER})?+"
    rf"(?:[ \t]++#[ \t]*+\{{(?:[^\"{{}}\n]++|\"(?:[^\"\\\n]++|\\.)*+\")*+\}}[ \t]++{_NUMBER}(?:[ \t]++{_NUMBER})?+)?+"
    r"[ \t\r]*+\n".encode(),
    re.MULTILINE,
)
# Python's float takes more than an exposition may hold: underscores, other digits, space around the number.
VALUE_CHARACTERS: Final = b"+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUE = re.compile(rf"[{re.escape(VALUE_CHARACTERS.decode())}]+")
ESCAPE = re.compile(r"\\(.)")
ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}
JSON_START = re.compile(r'[\[{]\s*($|[\[{}\]\d]|"(?:[^"\\]++|\\.)*+"\s*:)')


def read_value(text: str | bytes) -> float | None:
    """The number in a text, NaN and infinities included; None when it is none that an exposition may hold."""
    if isinstance(text, bytes):
        if not text or text.translate(None, VALUE_CHARACTERS):
            return None
    elif not _VALUE.fullmatch(text):
        return None
    try:
        return float(text)
    except ValueError:
        return None
