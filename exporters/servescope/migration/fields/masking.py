"""Secrets in a configuration, masked: what a page may show of a file that somebody pasted, and what a hash is made of.

What is masked is decided by where a value is (`secrets`, the name of its key), what it looks like (tokens of known
services, credentials in a URL), and in `environment_variables` by whether it is plainly harmless: anything else there
is masked. Masking too much costs a reader a glance into the file; masking too little gives a secret away.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from servescope.migration.document.document import Document, DocumentError
from servescope.migration.document.json_document import read_named
from servescope.migration.document.nodes import DocumentNode, make_tree
from servescope.migration.document.shapes import each_entry, join, show

MASK: Final = "••••••"
"""What is shown in place of a secret; in place of one that is a number it is 0."""

_TOKENS: Final = re.compile(
    r"""
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----|\Z)
    | \bhf_[A-Za-z0-9]{16,} | \bsk-[A-Za-z0-9_-]{16,} | \bgh[oprsu]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
    | \bglpat-[\w-]{16,} | \bx(?:ox[a-z]|app)-[\w-]{10,} | \bnvapi-[\w-]{16,} | \b(?:gsk|r8)_\w{16,}
    | \b[rs]k_(?:live|test)_\w{16,} | \bhv[bs]\.[\w-]{16,} | (?:hooks\.slack\.com/services|/api/webhooks)/[^\s'"]+
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,} | \bAIza[\w-]{30,} | \bya29\.[\w.-]{20,}
    | \beyJ[\w-]{8,}(?:\.[\w-]+(?:\.[\w-]*)?)? | \bnpm_[A-Za-z0-9]{30,} | \bpypi-[\w-]{30,} | \bdop_v1_\w{30,}
    | \b[A-Za-z0-9]{8}\.[A-Za-z0-9]{32,}
    """,
    re.VERBOSE | re.DOTALL,
)
"""Tokens that are known by their form: of Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS, Google, the vendor …"""

# Each of the following reads a text once, whatever is in it: they begin where a run of characters begins, and do not
# read it again from within.
_USER: Final = re.compile(r"(?<=://)[^\s/?#'\"]+(?=@)")
_URL: Final = re.compile(r"://[^\s'\"]+")
_PAIR: Final = re.compile(r"://[^/?#:]*:")
_LONE: Final = re.compile(r"://[^/?#@]+(?=@)")
_QUERY: Final = re.compile(r"\?[^#]+")
_NAME: Final = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)"
    r"(?:\\*[\"']?[ \t]*(?:=>|:=|[:=])\s*|>|[ \t]+(?:is|was)[ \t]+|(?P<apart>[ \t]+))"
)
"""What may be the name of a value, and what is between both: `apart` where that is white space alone."""
_APART: Final = re.compile(r"(?i)--.*|.*[a-z]_.*|passwo?r?d")
"""A name that its value may follow without a sign: an option, a variable, what `.netrc` has."""
_VALUE: Final = re.compile(
    r"""(?i)"(?:\\.|[^"\\])*"? | '(?:\\.|[^'\\])*'? | \\+"[^"]*"? | \\+'[^']*'? | [\[{][^\]}]*[\]}]?
    | (?:(?:bearer|basic|api-key|token)[ \t]+)?
      (?:[^\s"'<]|<(?!/)|["'](?=\w))+ (?:(?<=;)[ \t]*[\w.-]+=[^\s"']+)*""",
    re.VERBOSE | re.DOTALL,
)
_OPTION: Final = re.compile(
    r"((?<=\s)(?:-[uU]\s*|--(?:proxy-)?user[\s=])[^\s:\"']+:(?!//)"
    r"|\b(?:login|sshpass|mysql\w*|mariadb|redis-cli)\b[^|;&\n]{0,200}?[ \t]-[pa][ \t]*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s\"']+)"
)
"""Options that are called by a letter, or by a user, and have a password."""
_HEADER: Final = re.compile(r"(?i)\b((?:bearer|basic|api-key|token)\s+)([\w.~+/=-]{6,})")

_SECRET_WORDS: Final = frozenset((
    "token", "password", "passwd", "passphrase", "pwd", "pass", "secret", "secrets", "credential", "apikey",
    "credentials", "authorization", "bearer", "cookie", "dsn", "key", "keys", "private", "webhook", "signature",
))  # fmt: skip
_SECRET_ENDS: Final = ("password", "passwd", "passphrase", "pwd", "secret", "apikey", "token")
_NAMED: Final = frozenset(
    ("name", "names", "path", "paths", "mapping", "method", "arn", "region", "file", "folder", "id", "ids", "stdin")
)
"""What a key ends with whose value is not the secret but where it is kept."""
_SEVERAL: Final = frozenset(("keys", "private"))
"""Of the words of secrets, those that end the names of other things as well."""
_COMMANDS: Final = ("environment_variables", "build_commands", "docker_server")
_SCHEME: Final = re.compile(r"(?i)^[\\\"']*(?:(?:bearer|basic|api-key|token)\s+)?")
_REFERENCE: Final = re.compile(r"[$<{%@~./]")
"""What a reference to a value elsewhere begins with: a variable, a place to fill in, a file."""
_HARMLESS: Final = re.compile(
    r"(?i)|[+-]?\d{1,12}(?:\.\d{0,6})?|true|false|yes|no|on|off|none|null|\.{0,2}/[\w./-]*|[a-z][a-z_]{0,19}[0-9]{0,3}"
    r"|[a-z0-9]{1,12}(?:[.,-][0-9a-z]{1,8}|:\d[\d.]{0,7}){1,4}"
)
"""What is shown of an environment variable whose name is no secret's: numbers, switches, paths, versions and words.

Behind a colon there are digits only, as in `host:8080`: a user's password may be there else.
"""
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_QUOTED: Final = re.compile(r"'.*'|\".*\"|\d{9,}|[&*]\S+|(?<=tag )!(?!!).*(?=, expected none)")
_PLAIN: Final = re.compile(r".{0,5}|'<[a-z ]+>'")
"""What is quoted and no secret: up to three characters, and the names of YAML's parts."""
_SIGNS: Final = re.compile(r", expected (?:\W|\bor\b)+\Z")
"""Signs that were expected, behind all that is quoted of a text."""
_SHORTEST_REPEATED: Final = 6
_SHORTEST_WORD: Final = 12
_COMMENT: Final = re.compile(r"#[^\n\r\x85\u2028\u2029]*(?:\r?\n[ \t]*#[^\n\r\x85\u2028\u2029]*)*")
"""A comment with those on the lines below: a key may be on several."""
_UNPRINTABLE: Final = re.compile(
    r"[^ !#-\[\]-~\u00a1-\u2027\u2030-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
"""What is escaped between double quotes."""


def mask_document(document: Document) -> Document:
    """The document with every secret in it masked, comments included; places in a line move, lines do not.

    Raises DocumentError, which shows nothing of the text, where the result could not be read.
    """
    if document.root is None:
        return document
    try:
        return read_named(Masker(document).whole(), document.origin)
    except DocumentError as error:
        raise DocumentError(document.origin, error.line, 0, "cannot be shown with its secrets masked") from None


def mask_text(text: str) -> str:
    """A text without what is known to be a secret by its form: tokens of known services, credentials in URLs."""
    text = _TOKENS.sub(lambda found: MASK + "\n" * found.group().count("\n"), text)
    return _URL.sub(lambda found: _QUERY.sub(f"?{MASK}", _mask_user(found[0])), text)


def _mask_user(text: str) -> str:
    """What looks like URLs without credentials, beyond what a URL allows: a password may hold a slash."""
    at, last = 0, text.rfind("@")
    while 0 <= at < last:
        if _PAIR.match(text, at, last):
            return f"{text[:at]}://{MASK}{text[last:]}"
        if lone := _LONE.match(text, at):
            text = f"{text[:at]}://{MASK}{text[lone.end() :]}"
            last = text.rfind("@")
        at = text.find("://", at + 1)
    return text


def find_secrets(root: DocumentNode) -> Iterator[tuple[str, DocumentNode]]:
    """The scalars of a configuration that are secrets, or hold one, with their paths; those of `secrets` left out.

    Fewer than what is masked: a warning of what is none costs more than a mask. A key is a secret's by its last word,
    what is assigned counts in variables and commands only, and a reference ($NAME) or a path is no secret.
    """
    for key, value in each_entry(root):
        if key.value != "secrets":
            yield from _find_secrets(value, str(key.value), str(key.value), str(key.value))


def _find_secrets(node: DocumentNode, path: str, key: str, section: str) -> Iterator[tuple[str, DocumentNode]]:
    # A presigned URL is documented for a checkpoint, and what `build` has are the paths of secrets.
    is_exempt = section == "build" or (section, key) == ("trt_llm", "repo")
    if node.kind == "scalar" and not is_exempt and _is_secret_scalar(key, node.value, section):
        yield path, node
    for name, value in each_entry(node):
        yield from _find_secrets(value, join(path, name.value), str(name.value), section)
    for number, item in enumerate(node.real.items):
        yield from _find_secrets(item, f"{path}[{number}]", key, section)


def _is_secret_scalar(key: str, value: object, section: str) -> bool:
    is_named = _is_secret_value(key, value, is_variable=section == "environment_variables")
    return is_named or (isinstance(value, str) and _holds_secret(value, is_command=section in _COMMANDS))


def _is_secret_value(key: str, value: object, *, is_variable: bool) -> bool:
    """Whether the value of a key that is called like a secret is one: any in a variable, a long word elsewhere."""
    if not _ends_as_secret(key):
        return False
    if not isinstance(value, str):
        return is_variable and value is not None and not isinstance(value, bool)
    is_long = len(value) >= _SHORTEST_REPEATED and not re.search(r"\s", value)
    return bool(value) and (is_variable or is_long) and not _REFERENCE.match(value)


def _ends_as_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    return bool(words) and (words[-1] in _SECRET_WORDS - _SEVERAL or words[-1].endswith(_SECRET_ENDS))


def _holds_secret(text: str, *, is_command: bool) -> bool:
    """Whether there is a token of a known service in a text, a URL with a password, or a secret that is assigned."""
    if _TOKENS.search(text) or any(":" in user and not _REFERENCE.match(user) for user in _USER.findall(text)):
        return True
    return is_command and any(
        value and not _REFERENCE.match(value)
        for value in _assigned(_URL.sub(lambda found: found[0].partition("?")[0], text))
    )


def _assigned(text: str) -> Iterator[str]:
    """What follows the names of secrets in a command, without quotes and the scheme of a header."""
    at = 0
    for found in _NAME.finditer(text):
        if found.end() < at or not _ends_as_secret(found["name"]):
            continue
        value = _VALUE.match(text, found.end())
        is_path = text.endswith("/", 0, found.start())  # a file that is called so, and the next word is not its value
        if value and (not found["apart"] or (_APART.fullmatch(found["name"]) and not is_path)):
            at = value.end()
            yield _SCHEME.sub("", value.group())


def mask_error(error: Exception | str) -> str:
    """An error of reading a text, without what it quotes of it."""
    text = mask_text(str(error))
    signs = _SIGNS.search(text)
    said, expected = (text[: signs.start()], signs.group()) if signs else (text, "")
    return _QUOTED.sub(lambda found: found.group() if _PLAIN.fullmatch(found.group()) else "…", said) + expected


def mask_reading(error: DocumentError) -> str:
    """Why a document could not be read, with its place and without what is quoted of it."""
    place = str(error).removesuffix(error.what)
    return f"{place}{mask_error(error.what)}"


class Masker:
    """Masks a document and what is said of it: values that are quoted, and what repeats a secret of it elsewhere."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._masked = list(_masked(document.root)) if document.root is not None else []
        self._repeated = _repeated(document, [node for node, new in self._masked if new in (MASK, 0)])
        quoted = [(node.value, new) for node, new in self._masked if isinstance(node.value, str)]
        new = {spell(value): spell(each) for value, each in quoted for spell in (show, repr)}
        new |= dict.fromkeys(self._repeated, MASK)
        self._new = sorted(new.items(), key=lambda pair: len(pair[0]), reverse=True)

    def whole(self) -> str:
        """The text of the document, comments included; places in a line move, lines do not."""
        text, spans = self._document.text, dict(_comments(self._document))
        for node, value in self._masked:
            place = node.start + len(_properties(text, node)), node.end
            if spans.get(place) != f'"{MASK}"':
                spans[place] = _write(text, node, value)
        parts, at = [], 0
        for (start, end), new in sorted(spans.items()):
            if start < at:
                continue
            parts += [text[at:start], new + "\n" * (text.count("\n", start, end) - new.count("\n"))]
            at = end
        shown = mask_text("".join([*parts, text[at:]]))
        for secret in self._repeated:
            shown = shown.replace(secret, MASK)
        return shown

    def text(self, text: str) -> str:
        """A sentence of ours, which quotes values as `show` does."""
        for secret, new in self._new:
            text = text.replace(secret, new)
        return mask_text(text)

    def comments(self, texts: Sequence[str]) -> list[str]:
        """Comments of the document, in their order."""
        shown = _mask_sentence(self.text("\n".join(texts))).split("\n")
        return [*shown, *[MASK] * (len(texts) - len(shown))] if texts else []

    def value(self, value: object) -> Any:
        """A value below `trt_llm`, as JSON has it."""
        masked = mask_values({"trt_llm": value})["trt_llm"]
        return self.text(masked) if isinstance(masked, str) else masked


def hash_configuration(value: object) -> str:
    """The identity of a configuration: of what it says, whatever its layout and comments, and without its secrets.

    Of the values with secrets masked, as JSON with sorted keys, SHA-256 in hexadecimal digits. A secret that is
    exchanged changes no behaviour, and a hash that covered a short one would give it away.
    """
    text = json.dumps(mask_values(value), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def mask_values(value: object) -> Any:
    """The values of a configuration with secrets masked, as JSON has them."""
    root = make_tree(value)
    return _values(root, {id(node): new for node, new in _masked(root)})


def _values(node: DocumentNode, masked: Mapping[int, Any]) -> Any:
    """The values of a tree as JSON has them: keys, dates, bytes and infinity as their text."""
    if node.kind == "mapping":
        return {str(entry.key.value): _values(entry.value, masked) for entry in node.entries}
    if node.kind == "sequence":
        return [_values(item, masked) for item in node.items]
    value = masked.get(id(node), node.value)
    is_json = value is None or isinstance(value, str | int) or (isinstance(value, float) and abs(value) < math.inf)
    return value if is_json else str(value)


# --- What is masked ---------------------------------------------------------------------------------------------------


def _masked(root: DocumentNode) -> Iterator[tuple[DocumentNode, Any]]:
    """Every scalar that holds a secret, and what is shown in its place."""
    if root.kind != "mapping":
        yield from _below(root)
    for entry in root.entries:
        name = str(entry.key.value)
        if name == "secrets":
            yield from _whole(entry.value)
        elif name == "environment_variables":
            yield from _environment(entry.value)
        elif name == "trt_llm":  # its numbers are documented, and none of them is a secret
            yield from ((node, new) for node, new in _below(entry.value) if isinstance(new, str))
        else:
            yield from _named(entry.key, entry.value)


def _named(key: DocumentNode, value: DocumentNode) -> Iterator[tuple[DocumentNode, Any]]:
    """The value of a key, wholly where the key is a secret's."""
    yield from _whole(value) if _is_secret(str(key.value)) else _below(value)


def _below(node: DocumentNode) -> Iterator[tuple[DocumentNode, Any]]:
    if node.kind == "scalar":
        yield from _inline(node)
    for entry in node.entries:
        yield from _named(entry.key, entry.value)
    for item in node.items:
        yield from _below(item)


def _environment(node: DocumentNode) -> Iterator[tuple[DocumentNode, Any]]:
    if node.kind != "mapping":
        yield from _whole(node)
    for entry in node.entries:
        value = entry.value.real.value
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if _is_secret(str(entry.key.value)) or not _HARMLESS.fullmatch(shown):
            yield from _whole(entry.value)


def _whole(node: DocumentNode) -> Iterator[tuple[DocumentNode, Any]]:
    """Every scalar below a node; null, true, false and an empty text are no secrets."""
    for each in _scalars(node):
        if each.value not in (None, "") and not isinstance(each.value, bool):
            yield each, 0 if isinstance(each.value, int | float) else MASK


def _inline(node: DocumentNode) -> Iterator[tuple[DocumentNode, Any]]:
    """Scalars within which a secret is known by its form, or is assigned to the name of one."""
    for each in _scalars(node):
        if isinstance(each.value, str) and (shown := _mask_sentence(each.value)) != each.value:
            yield each, shown


def _scalars(node: DocumentNode) -> Iterator[DocumentNode]:
    # What an alias repeats is masked where it is repeated as well: it may be a secret in one of the places only.
    if node.real.kind == "scalar":
        yield node.real
    for entry in node.real.entries:
        yield from _scalars(entry.value)
    for item in node.real.items:
        yield from _scalars(item)


def _mask_sentence(text: str) -> str:
    """A command line, a URL or a comment without the secrets within it."""
    text = _OPTION.sub(rf"\g<1>{MASK}", _mask_assigned(mask_text(text)))
    return _HEADER.sub(rf"\g<1>{MASK}", text)


def _mask_assigned(text: str) -> str:
    """A text without the values that follow names of secrets."""
    parts, at = [], 0
    for found in _NAME.finditer(text):
        is_named = _is_secret(found["name"]) and (not found["apart"] or _APART.fullmatch(found["name"]))
        value = _VALUE.match(text, found.end()) if is_named and found.end() >= at else None
        if value:
            parts += [text[at : found.end()], MASK]
            at = value.end()
    return "".join([*parts, text[at:]])


@lru_cache(1024)
def _is_secret(key: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(key)]
    is_named = bool(_SECRET_WORDS & {*words}) or any(word.endswith(_SECRET_ENDS) for word in words)
    return is_named and words[-1] not in _NAMED


# --- The text ---------------------------------------------------------------------------------------------------------


def _comments(document: Document) -> Iterator[tuple[tuple[int, int], str]]:
    text, at = document.text, 0
    scalars = [node for node in (document.root.walk() if document.root else ()) if node.kind == "scalar"]
    for start, end in [*((node.start, node.end) for node in scalars), (len(text), len(text))]:
        for found in _COMMENT.finditer(text[at:start]):
            if (shown := _mask_sentence(found.group())) != found.group():
                yield (at + found.start(), at + found.end()), shown
        at = max(at, end)


def _write(text: str, node: DocumentNode, value: Any) -> str:
    """A masked scalar as the text has it: blocks stay blocks, all else becomes a number or is in double quotes."""
    if not isinstance(value, str):
        return str(value)
    if node.style in ("|", ">") and value != MASK:
        return _mask_sentence(text[node.start + len(_properties(text, node)) : node.end])
    return f'"{_UNPRINTABLE.sub(lambda found: f"{chr(92)}u{ord(found.group()):04x}", value)}"'


def _repeated(document: Document, nodes: Iterable[DocumentNode]) -> list[str]:
    """The secrets that are masked wherever else they are, as they are and as they are written; the longest first."""
    found = {text for node in nodes for text in (str(node.value), document.text[node.start : node.end].strip("\"' \n"))}
    return sorted(filter(_is_telling, found), key=len, reverse=True)


def _is_telling(secret: str) -> bool:
    """Whether a secret is masked wherever else it is; a short one, or a word, may be there with another meaning."""
    if re.fullmatch(r"[A-Za-z_]+", secret):
        return secret.isalpha() and len(secret) >= _SHORTEST_WORD
    return len(secret) >= _SHORTEST_REPEATED


def _properties(text: str, node: DocumentNode) -> str:
    """The anchor and tag before a value."""
    found = re.match(r"(?:[&!]\S*\s+)*", text[node.start : node.end])
    return found.group() if found else ""
