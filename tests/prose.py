"""Checks the rules of docs/style.md that a machine can check.

    prose.py [FILE]…

Without arguments: all files of the repository. Checks comments, string literals and names in source code of all languages, and the text
of Markdown and YAML files. Prints each finding with file and line, and fails if there is one.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

from source_text import COMMENT, DOC, MODULE_DOC, NAME, PROSE, STRING, texts

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 110
MAX_TYPES = 3

PERSONS = r"nobody|somebody|everybody|whoever|whomever|whom|he|him|his|those who"
# Documents are about people as well, code is not.
PERSONS_IN_CODE = r"who|anybody|someone|anyone|everyone|no one"
IDIOMS = (
    r"such a one|so many|at hand|giv(?:e|es|ing) way|gave way|(?:what|nothing) c[ao]mes? of|c[ao]mes? to (?:its|their) turn|tells|told"
    r"|hears?|heard|beside|in vain|for good|any ?more than|c[ao]mes? to nothing|has leave|leave to"
)
# Verbs that Americans write with z.
IZE = (
    "anonym|apolog|author|canonical|capital|categor|central|character|critic|custom|emphas|equal|final|formal|general|ideal|initial|legal"
    "|local|material|maxim|memor|minim|modern|neutral|normal|optim|organ|parallel|penal|personal|prior|random|real|recogn|serial|special"
    "|stabil|standard|summar|symbol|synchron|token|util|vector|virtual|visual"
)
# Verbs whose last letter Americans do not double.
SINGLE_L = "cancel|channel|dial|fuel|label|level|marshal|model|signal|total|travel|tunnel|unravel"
BRITISH = (
    rf"\w*(?:{IZE})is(?:e|es|ed|er|ers|ing|able|ation|ations)|(?:{SINGLE_L})l(?:ed|er|ers|ing|able)"
    r"|\w*(?:analy|cataly|paraly)s(?:e|es|ed|er|ing)|(?:mis)?behaviours?|colour\w*|favour\w*|flavour\w*|honour\w*|labour\w*|neighbour\w*"
    r"|acknowledgements?|ageing|amongst|analogue|artefacts?|catalogue[ds]?|centre[ds]?|defence|fibres?|fulfil|fulfilment|grey\w*"
    r"|judgements?|learnt|licences?|licenced|(?:kilo|centi|milli)?metres?|litres?|offence|practise[ds]?|pretence|programme[ds]?"
    r"|sceptic\w*|spelt|whilst"
)
PRONOUN = re.compile(r"^(It|Its|This|That|These|Those|They|Their|He|She|Who|What|The same)\b")
# The heading of an aligned table, which is as wide as its rows.
HEADING = re.compile(r"(\S {2,}(?=\S).*){3}")
TYPES = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union) (\w+)", re.MULTILINE)
# The first line of the comment of a function, its attributes, and its name.
FUNCTIONS = re.compile(
    r"(?:(?<!///)\n[ \t]*/// ?([^\n]*)\n(?:[ \t]*///[^\n]*\n)*|\n)((?:[ \t]*#\[[^\n]*\]\n)*)"
    r"[ \t]*(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)"
)
PRONOUN_NAME = re.compile(r"(?:it|its|this|that|these|those|they|their|what|whatever|which|whichever)_")
# A verb in the third person, a condition before it, the name of an operation, or a reference to another function.
VERB = re.compile(r"[A-Z][a-z-]+s\b|(?:If|Unless|Repeatedly)\b|Whether\b|Like \[|See \[|(?:[A-Z][\w-]+ )*[A-Z][\w-]+\.?$")

# Files that are not checked, and why.
NOT_CHECKED = {
    "docs/style.md": "quotes the words that it forbids",
    "docs/renames.md": "has the names before they were changed",
    "tests/prose.py": "quotes the words that it forbids",
    "tests/prose_test.py": "quotes the words that are forbidden",
}
# Words that others chose: the file in which they occur, the word, and why it stands there.
FOREIGN_WORDS = {
    ("crates/protocol/src/error/code.rs", "recognised"): "a message in the words of the live service",
}
# Names from libraries.
FOREIGN_NAMES = {
    "cancelled": "a method of tokio_util::sync::CancellationToken",
    "is_cancelled": "a method of tokio_util::sync::CancellationToken",
    "CANCELLED": "STATUS_CANCELLED of SMB",
}
# Type names that occur more often than MAX_TYPES, and why that is clear to a reader.
COMMON_TYPES = {}


def banned(*alternatives):
    """Returns a pattern for whole words. A space matches a line break, too."""
    return re.compile(rf"\b(?:{'|'.join(alternatives)})\b".replace(" ", r"\s+"), re.IGNORECASE)


IN_CODE = banned(PERSONS, PERSONS_IN_CODE, IDIOMS, BRITISH)
IN_DOCUMENTS = banned(PERSONS, IDIOMS, BRITISH)


def without_quotes(text):
    """Removes code blocks, code spans, quotations and targets of links. Keeps the lines."""
    blank = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
    text = re.sub(r"^ *```.*?(^ *```|\Z)", blank, text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", blank, text)


def is_prose(text):
    """Returns whether a literal is a sentence rather than a key, a path or data."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text


def line_of(source, position):
    return source.count("\n", 0, position) + 1


def words_of(name):
    """Returns the words of a name in snake case or camel case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", name)


class Checker:
    def __init__(self):
        self.findings = []
        self.types = collections.defaultdict(list)
        self.used = set()

    def report(self, path, line, what):
        self.findings.append((path, line, what))

    def check_words(self, path, line, text, pattern, what):
        for found in pattern.finditer(text):
            word = " ".join(found[0].lower().split())
            if (path, word) in FOREIGN_WORDS:
                self.used.add((path, word))
            else:
                self.report(path, line + text.count("\n", 0, found.start()), f"{what}: {word}")

    def check_source(self, path, source):
        for text in texts(Path(path), source):
            if text.kind in (COMMENT, DOC, MODULE_DOC):
                self.check_words(path, text.line, without_quotes(text.text), IN_CODE, "banned word")
                if text.kind != COMMENT and PRONOUN.match(text.text.strip()):
                    self.report(path, text.line, f"{text.kind} begins with a pronoun: {text.text.strip()[:40]}")
            elif text.kind == STRING and is_prose(text.text):
                self.check_words(path, text.line, without_quotes(text.text), IN_CODE, "banned word in a string")
            elif text.kind == PROSE:
                self.check_words(path, text.line, text.text, IN_DOCUMENTS, "banned word")
            elif text.kind == NAME:
                self.check_name(path, text)
        if path.endswith(".rs"):
            self.check_rust(path, source)

    def check_rust(self, path, source):
        for found in TYPES.finditer(source):
            self.types[found[1]].append(f"{path}:{line_of(source, found.start(1))}")
        for found in FUNCTIONS.finditer(source):
            comment, attributes, name = found.groups()
            if comment and "test" not in attributes and not VERB.match(comment):
                self.report(path, line_of(source, found.start(1)), f"comment of a function without a verb: {comment[:40]}")
            if PRONOUN_NAME.match(name):
                self.report(path, line_of(source, found.start(3)), f"the name of a function begins with a pronoun: {name}")

    def check_name(self, path, text):
        for found in IN_CODE.finditer(words_of(text.text)):
            if text.text in FOREIGN_NAMES:
                self.used.add(text.text)
            else:
                self.report(path, text.line, f"banned word in the name {text.text}: {found[0].lower()}")

    def check_columns(self, path, source):
        comment = re.compile(r"\s*#(.*)" if path.endswith((".py", ".toml", ".sh")) or "." not in path else r"\s*//(.*)")
        for number, line in enumerate(source.splitlines(), 1):
            found = comment.match(line)
            if found and len(line) > MAX_COLUMNS and not HEADING.search(found[1]):
                self.report(path, number, f"comment of {len(line)} columns")

    def check(self, path):
        self.check_text(path, (ROOT / path).read_text(encoding="utf-8"))

    def check_text(self, path, source):
        if path.endswith(".md"):
            self.check_words(path, 1, without_quotes(source), IN_DOCUMENTS, "banned word")
        else:
            self.check_source(path, source)
            self.check_columns(path, source)

    def check_types(self):
        for name, places in sorted(self.types.items()):
            if len(places) > MAX_TYPES:
                if name in COMMON_TYPES:
                    self.used.add(name)
                else:
                    path, line = places[0].split(":")
                    self.report(path, int(line), f"{len(places)} types have the name {name}: {' '.join(places[1:])}")

    def check_exceptions(self):
        for exception in (*NOT_CHECKED, *FOREIGN_WORDS, *FOREIGN_NAMES, *COMMON_TYPES):
            if exception not in self.used:
                self.report("tests/prose.py", 1, f"the exception {exception} is not needed")


def repository():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in listed if (ROOT / path).is_file()]


def is_checked(path):
    if path.startswith(("fuzz/corpus/", "crates/lazuli/tests/fixtures/")) and not path.endswith(".py"):
        return False
    return not path.endswith((".lock", ".json", ".sum", ".gz", ".txt", ".css"))


def main(arguments):
    checker = Checker()
    for path in arguments or repository():
        if path in NOT_CHECKED and not arguments:
            checker.used.add(path)
        elif is_checked(path):
            checker.check(path)
    checker.check_types()
    if not arguments:
        checker.check_exceptions()
    for path, line, what in sorted(checker.findings):
        print(f"{path}:{line}: {what}")
    if checker.findings:
        print(f"prose.py: {len(checker.findings)} findings; docs/style.md has the rules")
    return int(bool(checker.findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
