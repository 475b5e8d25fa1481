"""Checks the rules of docs/style.md that a machine can check.

    prose.py [CRATE | FILE.md]…

Without arguments: all crates, the documents of the repository and docs/. Checked are comments, string literals and doc comments of
Rust code, and the text of Markdown files outside of code blocks. Prints each finding with file and line, and fails if there is one.
"""

import collections
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 110
MAX_TYPES = 3

BANNED = re.compile(
    r"\b(nobody|somebody|everybody|anybody|whoever|whom|who|he|him|his|those who|such a one|so many|at hand|gives? way|came of"
    r"|(?:is|are|was|were) told|tells|told|beside|in vain|for good|any ?more than|comes? to nothing|came to nothing"
    r"|behaviour|serialis\w*|initialis\w*|recognis\w*|cancelled|colour)\b",
    re.IGNORECASE,
)
# People may read documents about themselves; programs are not people.
BANNED_IN_DOCUMENTS = re.compile(BANNED.pattern.replace("|who|", "|"), re.IGNORECASE)
PRONOUN = re.compile(r"^(It|Its|This|That|These|Those|They|Their|He|She|Who|What|The same)\b")
# The heading of an aligned table, which is as wide as its rows.
HEADING = re.compile(r"(\S {2,}(?=\S).*){3}")
COMMENT = re.compile(r"(?<![:\"'\w])(//[/!]?)(.*)$")
STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union) (\w+)")

# Documents that quote: the rules themselves, old names, and words of other projects.
NOT_CHECKED = {"docs/style.md", "docs/renames.md", "LICENSE"}
# Messages in the exact words of the protocol.
PROTOCOL_TEXTS = {"crates/protocol/src/error/code.rs"}
# Type names that occur more often, and why that is clear to a reader.
COMMON_TYPES = {
    "Error": "the error of its module, always written with the module's path",
}


def split_code(line):
    """Returns the text of a line's comment, whether it is a doc comment, and its string literals."""
    code, comment, is_doc = line, "", False
    outside = STRING.sub(lambda found: '"' + " " * (len(found.group(0)) - 2) + '"', line)
    found = COMMENT.search(outside)
    if found:
        comment = line[found.start(2) :].strip()
        is_doc = found.group(1) == "///"
        code = line[: found.start()]
    return comment, is_doc, STRING.findall(code)


def is_prose(text):
    """Whether a literal is a sentence rather than a key, a path or data."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text


def check_rust(path, report, types):
    is_test = "/tests/" in str(path) or path.name.endswith("tests.rs")
    skips_strings = is_test or str(path.relative_to(ROOT)) in PROTOCOL_TEXTS
    in_doc = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        comment, is_doc, strings = split_code(line)
        if comment:
            for word in BANNED.findall(re.sub(r"`[^`]*`", "", comment)):
                report(path, number, f"banned word: {word}")
            if is_doc and not in_doc and PRONOUN.match(comment):
                report(path, number, f"doc comment begins with a pronoun: {comment[:40]}")
            if len(line) > MAX_COLUMNS and not HEADING.search(comment):
                report(path, number, f"comment of {len(line)} columns")
        in_doc = is_doc
        for text in () if skips_strings else strings:
            if is_prose(text):
                for word in BANNED.findall(text):
                    report(path, number, f"banned word in a message: {word}")
        found = TYPE.match(line)
        if found and not is_test:
            types[found.group(1)].append(f"{path.relative_to(ROOT)}:{number}")


def check_markdown(path, report):
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            text = re.sub(r"`[^`]*`|\"[^\"]*\"|\]\([^)]*\)", "", line)
            for word in BANNED_IN_DOCUMENTS.findall(text):
                report(path, number, f"banned word: {word}")


def main(arguments):
    findings = []

    def report(path, number, what):
        findings.append(f"{path.relative_to(ROOT)}:{number}: {what}")

    crates = [name for name in arguments if not name.endswith(".md")]
    documents = [ROOT / name for name in arguments if name.endswith(".md")]
    if not arguments:
        crates = [path.name for path in sorted((ROOT / "crates").iterdir())]
        documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    types = collections.defaultdict(list)
    for crate in crates:
        for path in sorted((ROOT / "crates" / crate).rglob("*.rs")):
            check_rust(path, report, types)
    for path in sorted(documents):
        if str(path.relative_to(ROOT)) not in NOT_CHECKED:
            check_markdown(path, report)
    for name, places in sorted(types.items()):
        if len(places) > MAX_TYPES and name not in COMMON_TYPES:
            findings.append(f"{places[0]}: the type name {name} is used {len(places)} times: {' '.join(places[1:])}")
    print("\n".join(findings))
    if findings:
        print(f"prose.py: {len(findings)} findings; docs/style.md has the rules")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
