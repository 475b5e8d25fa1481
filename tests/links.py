"""Checks the links of all Markdown files, and the contents of the book.

    links.py

Every relative link names an existing file, every anchor an existing heading. Pages of the book link only to pages of the book. Files,
tests and metrics in code spans exist. docs/SUMMARY.md lists every page once, and a decision under its number and title.
docs/decisions/README.md lists every decision. Prints each finding with file and line, and fails if there is one.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOOK = ROOT / "docs"
SUMMARY = BOOK / "SUMMARY.md"
DECISIONS = BOOK / "decisions"
LINK = re.compile(r"\[([^\]]*)\]\(<?([^)\s>]+)>?\)")
ENTRY = re.compile(r"^ *- \[(.+)\]\(([^)]+)\)$")
DECISION = re.compile(r"^(\d{4})-.*\.md$")
# A code span that names a source file, and one that names a test.
FILE = re.compile(r"[\w./-]+\.(?:rs|py|sh|toml)")
TEST = re.compile(r"(?!lazuli_)[a-z0-9]+(?:_[a-z0-9]+){4,}")
METRIC = re.compile(r"lazuli_\w+")
# The page of old names.
OLD_NAMES = BOOK / "renames.md"
# Letters of the headings' anchors, as GitHub and mdBook form them.
ANCHOR_LETTERS = re.compile(r"[^\w\- ]")


def repository():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def names_in_code(files):
    """Returns the names of all functions, modules and crates, and of all metrics."""
    names = set()
    for path in files:
        if path.suffix in (".rs", ".py"):
            source = path.read_text(encoding="utf-8")
            names.update(re.findall(r"\b(?:fn|def|const|mod|use) (\w+)", source), METRIC.findall(source))
            names.add(path.stem)
    return names


def lines_of(path):
    """Yields the numbered lines outside of code blocks, without code spans."""
    in_code = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def headings(path):
    return [line.lstrip("#").strip() for _, line in lines_of(path) if re.match(r"#+ ", line)]


def anchors(path):
    return {ANCHOR_LETTERS.sub("", heading.lower()).replace(" ", "-") for heading in headings(path)}


def check_links(path, report):
    in_book = path.is_relative_to(BOOK)
    for number, line in lines_of(path):
        for _, target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists():
                report(path, number, f"dead link: {target}")
            elif anchor and anchor not in anchors(file):
                report(path, number, f"no such heading: {target}")
            elif in_book and not file.is_relative_to(BOOK):
                report(path, number, f"link out of the book: {target}")
            elif in_book and file.is_dir():
                report(path, number, f"link to a folder: {target}")


def check_code_spans(path, files, known, report):
    names = [file.relative_to(ROOT).as_posix() for file in files]
    for number, line in lines_of(path):
        for span in re.findall(r"`([^`]*)`", line):
            if FILE.fullmatch(span) and not any(("/" + name).endswith("/" + span.lstrip("./")) for name in names):
                report(path, number, f"no such file: {span}")
            if TEST.fullmatch(span) and span not in known:
                report(path, number, f"no such function: {span}")
            for metric in METRIC.findall(span):
                if metric not in known:
                    report(path, number, f"no such metric: {metric}")


def check_summary(report):
    listed = {SUMMARY: 0}
    for number, line in lines_of(SUMMARY):
        found = ENTRY.match(line) or re.match(r"^\[(.+)\]\(([^)]+)\)$", line)
        if not found:
            if line and not line.startswith("# "):
                report(SUMMARY, number, f"neither an entry nor a part: {line}")
            continue
        title, target = found.groups()
        page = BOOK / target
        if page in listed:
            report(SUMMARY, number, f"listed twice: {target}")
        listed[page] = number
        decision = DECISION.match(page.name)
        if decision and page.exists():
            wanted = f"{decision[1]} {decision_title(page)}"
            if title != wanted:
                report(SUMMARY, number, f"the title is: {wanted}")
    for page in sorted(BOOK.rglob("*.md")):
        if page not in listed:
            report(page, 1, "not in docs/SUMMARY.md")


def check_list_of_decisions(report):
    listed = (DECISIONS / "README.md").read_text(encoding="utf-8")
    for page in sorted(DECISIONS.glob("[0-9]*.md")):
        if f"]({page.name})" not in listed:
            report(page, 1, "not in docs/decisions/README.md")


def decision_title(page):
    """Returns the title of a decision without its number."""
    return headings(page)[0].removeprefix(page.name[:4]).strip()


def check_decision_title(page, report):
    title = headings(page)[0]
    if not re.match(rf"{page.name[:4]} \w", title):
        report(page, 1, f"the heading of a decision is its number and its title, not: {title}")


def main():
    findings = []

    def report(path, number, what):
        findings.append(f"{path.relative_to(ROOT)}:{number}: {what}")

    files = repository()
    known = names_in_code(files)
    for path in files:
        if path.suffix != ".md":
            continue
        check_links(path, report)
        if path != OLD_NAMES:
            check_code_spans(path, files, known, report)
        if DECISION.match(path.name):
            check_decision_title(path, report)
    check_summary(report)
    check_list_of_decisions(report)
    print("\n".join(findings))
    if findings:
        print(f"links.py: {len(findings)} findings")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
