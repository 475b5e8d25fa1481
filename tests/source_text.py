"""Splits source files into what people read: comments, string literals and names.

`texts(path, source)` yields a Text for each of them. Consecutive comment lines are one Text, so that a phrase is found across line breaks.
"""

import io
import keyword
import re
import token
import tokenize
from dataclasses import dataclass

COMMENT, DOC, MODULE_DOC, STRING, NAME, PROSE = "comment", "doc comment", "module comment", "string", "name", "prose"


@dataclass
class Text:
    """A piece of text with the number of its first line. A comment has no comment marks."""

    kind: str
    line: int
    text: str


RUST = re.compile(
    r"""
      (?P<comment>//[^\n]*)
    | (?P<block>/\*.*?\*/)
    | (?P<raw>\b[bc]?r(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<string>\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")
    | (?P<char>\bb?'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\])'|'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\])')
    | (?P<lifetime>'\w+)
    | (?P<name>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
GO = re.compile(
    r"""
      (?P<comment>//[^\n]*)
    | (?P<block>/\*.*?\*/)
    | (?P<raw>`[^`]*`)
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<char>'(?:\\.|[^'\\\n])+')
    | (?P<name>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
JAVASCRIPT = re.compile(
    r"""
      (?P<comment>//[^\n]*)
    | (?P<block>/\*.*?\*/)
    | (?P<raw>`(?:\\.|[^`\\])*`)
    | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<char>(?<=[(,=:\[!&|?{};])\s*/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/)
    | (?P<name>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
TOML = re.compile(
    r"""
      (?P<comment>\#[^\n]*)
    | (?P<string>\"\"\".*?\"\"\"|"(?:\\.|[^"\\\n])*"|'[^'\n]*')
    """,
    re.VERBOSE | re.DOTALL,
)
# Shell and make: quotes do not nest as elsewhere, so only comments are found.
SCRIPT = re.compile(r"(?:^|(?<=\s))(?P<comment>\#[^\n]*)", re.MULTILINE)

LEXERS = {
    ".rs": RUST,
    ".go": GO,
    ".java": GO,
    ".mjs": JAVASCRIPT,
    ".js": JAVASCRIPT,
    ".toml": TOML,
    ".sh": SCRIPT,
}
MARKS = re.compile(r"^(?P<marks>//[/!]?|#+!?)\s?(?P<text>.*)$")


def kind_of(mark):
    return {"///": DOC, "//!": MODULE_DOC}.get(mark, COMMENT)


def texts(path, source):
    """Yields the texts of a file, or nothing if the format of the file is unknown."""
    if path.suffix == ".py":
        yield from merged(python_texts(source))
    elif path.suffix in LEXERS:
        yield from merged(lexed(LEXERS[path.suffix], source))
    elif path.suffix in (".yml", ".yaml"):
        yield from (Text(PROSE, number, line) for number, line in enumerate(source.splitlines(), 1))
    elif path.name == "Makefile" or source.startswith("#!"):
        yield from merged(lexed(SCRIPT, source))


def lexed(lexer, source):
    line, counted = 1, 0
    for found in lexer.finditer(source):
        line += source.count("\n", counted, found.start())
        counted = found.start()
        group, value = found.lastgroup, found.group()
        if found["comment"] if "comment" in lexer.groupindex else None:
            marks = MARKS.match(value)
            yield Text(kind_of(marks["marks"]), line, marks["text"])
        elif group == "block":
            lines = [part.strip().lstrip("*").strip() for part in value[2:-2].lstrip("*!").split("\n")]
            yield Text(COMMENT, line, "\n".join(lines))
        elif group in ("string", "raw", "hashes"):
            body = re.sub(r'^[a-z]*#*["\'`]|["\'`]#*$', "", value)
            yield Text(STRING, line, body.replace("\\n", "\n").replace("\\\n", "\n") if group == "string" else body)
        elif group == "name":
            yield Text(NAME, line, value)


def python_texts(source):
    previous = token.NEWLINE
    for item in tokenize.generate_tokens(io.StringIO(source).readline):
        line = item.start[0]
        if item.type == token.COMMENT:
            yield Text(COMMENT, line, item.string.lstrip("#").strip())
            continue
        if item.type == token.STRING:
            is_doc = previous in (token.NEWLINE, token.INDENT, token.DEDENT)
            body = re.sub(r"^[a-zA-Z]*(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$", "", item.string)
            yield Text(DOC if is_doc else STRING, line, body)
        elif item.type == getattr(token, "FSTRING_MIDDLE", None):
            yield Text(STRING, line, item.string)
        elif item.type == token.NAME and not keyword.iskeyword(item.string):
            yield Text(NAME, line, item.string)
        if item.type != token.NL:
            previous = item.type


def merged(found):
    """Joins comments of the same kind on consecutive lines."""
    pending = None
    for text in found:
        is_next = (
            pending
            and text.kind == pending.kind
            and text.kind in (COMMENT, DOC, MODULE_DOC)
            and text.line == pending.line + pending.text.count("\n") + 1
        )
        if is_next:
            pending.text += "\n" + text.text
            continue
        if pending:
            yield pending
        pending = text
    if pending:
        yield pending
