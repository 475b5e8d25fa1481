"""Tests of tests/prose.py and tests/links.py: each rule reports what it forbids, and nothing else."""

import tempfile
import unittest
from pathlib import Path

import links
import prose


def findings(path, source):
    checker = prose.Checker()
    checker.check_text(path, source)
    checker.check_types()
    return [(line, what) for _, line, what in sorted(checker.findings)]


class Prose(unittest.TestCase):
    def expect(self, path, source, *expected):
        found = findings(path, source)
        self.assertEqual(len(found), len(expected), found)
        for (line, what), (wanted_line, part) in zip(found, expected):
            self.assertEqual(line, wanted_line, what)
            self.assertIn(part, what)

    def test_phrases_are_found_across_lines(self):
        self.expect("a.rs", "fn f() {}\n// Of breaks so\n// many are kept.\n", (2, "so many"))

    def test_names_of_functions_types_and_values_are_checked(self):
        self.expect("a.rs", "fn told_all() {}\n", (1, "told"))
        self.expect("crates/x/tests/a.rs", "fn whoever_waits_is_served() {}\n", (1, "whoever"))
        self.expect("a.rs", "struct ToldClients;\n", (1, "told"))
        self.expect("a.rs", "let nobody = 1;\n", (1, "nobody"))
        self.expect("a.rs", "\nfn what_is_kept() {}\n", (2, "pronoun"))

    def test_strings_of_tests_raw_strings_and_long_strings_are_checked(self):
        self.expect("crates/x/tests/a.rs", 'assert!(x, "nobody reads the row");\n', (1, "nobody"))
        self.expect("a.rs", 'let s = r#"\nthe "row" is\ntold to clients"#;\n', (3, "told"))
        self.expect("a.rs", 'let s = "the rows are \\\n    told to clients";\n', (2, "told"))

    def test_comments_that_begin_with_a_pronoun_are_reported(self):
        self.expect("a.rs", "//! It keeps rows.\n", (1, "pronoun"))
        self.expect("a.rs", "/// What a row has.\nstruct A;\n", (1, "pronoun"))
        self.expect("a.py", 'def f():\n    """This is kept."""\n', (2, "pronoun"))

    def test_the_comment_of_a_function_begins_with_a_verb(self):
        self.expect("a.rs", "\n/// The next row.\npub fn next() {}\n", (2, "verb"))
        self.expect("a.rs", "\n/// Returns the next row.\n#[inline]\npub fn next() {}\n")
        self.expect("a.rs", "\n/// If there is a row, returns it.\nfn next() {}\n")
        self.expect("a.rs", "\n/// A store with two rows.\n#[test]\nfn rows_are_kept() {}\n")

    def test_all_languages_are_checked(self):
        for path in ("a.go", "A.java", "a.mjs"):
            self.expect(path, "// nobody waits\n", (1, "nobody"))
        self.expect("a.mjs", 'test("nobody waits for it", () => {});\n', (1, "nobody"))
        for path in ("a.toml", "Makefile", "a.sh", "a.yml"):
            self.expect(path, "# nobody waits\n", (1, "nobody"))
        self.expect("a.md", "Nobody waits.\n", (1, "nobody"))

    def test_british_spellings_are_reported(self):
        for word in ("behaviour", "serialised", "cancelled", "licence", "catalogue", "analyse", "grey", "metres"):
            self.expect("a.rs", f"// The {word} of a row.\n", (1, word))
        self.expect("a.rs", "// A precise exercise of size, a promise, the analysis of an organism.\n")

    def test_code_is_not_prose(self):
        self.expect("a.rs", "// Calls `told()` and keeps the `colour`.\n")
        self.expect("a.rs", "/// Runs.\n///\n/// ```\n/// let told = 1;\n/// ```\nfn f() {}\n")
        self.expect("a.rs", "let quote = '\"'; let life: &'static str = \"key\"; // a comment\n")
        self.expect("a.rs", 'let url = "https://example.com/told"; let key = "told";\n')

    def test_a_type_name_may_occur_three_times(self):
        self.expect("a.rs", "struct A;\n" * 3)
        self.expect("a.rs", "struct A;\n" * 4, (1, "4 types have the name A"))

    def test_exceptions_that_are_not_needed_are_reported(self):
        checker = prose.Checker()
        checker.check_exceptions()
        self.assertEqual(len(checker.findings), len(prose.NOT_CHECKED) + len(prose.FOREIGN_WORDS) + len(prose.FOREIGN_NAMES))

    def test_long_comments_are_reported(self):
        self.expect("a.rs", "// " + "word " * 25 + "\n", (1, "columns"))


class Links(unittest.TestCase):
    def test_dead_links_and_missing_headings_are_reported(self):
        with tempfile.TemporaryDirectory() as directory:
            page, other = Path(directory) / "page.md", Path(directory) / "other.md"
            other.write_text("# Other page: a title\n")
            page.write_text("[a](other.md#other-page-a-title) [b](none.md)\n[c](other.md#none) `[d](none)` [e](https://x)\n")
            found = []
            links.check_links(page, lambda path, line, what: found.append((line, what)))
        self.assertEqual(found, [(1, "dead link: none.md"), (2, "no such heading: other.md#none")])

    def test_files_functions_and_metrics_that_do_not_exist_are_reported(self):
        with tempfile.TemporaryDirectory() as directory:
            page = Path(directory) / "page.md"
            page.write_text("`src/none.rs` `a_test_that_does_not_exist` `lazuli_none_total` `tests/links.py` `key`\n")
            found = []
            files = [links.ROOT / "tests/links.py"]
            links.check_code_spans(page, files, set(), lambda path, line, what: found.append(what))
        self.assertEqual(len(found), 3, found)


if __name__ == "__main__":
    unittest.main()
