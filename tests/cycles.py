"""Finds cycles between modules of a crate, and fails if one has more than three modules.

    cycles.py [--edges] [REPOSITORY]

Siblings at every level of folders are compared: a reference from `a::x` to `b::y` is an edge from `a` to `b`. Modules may refer
to their own submodules and the other way round. References come from `use` declarations and from paths in the text that
begin with `crate`, `super` or `self`; re-exports are followed. A call `self.f()` refers to the module that defines `f` for the
same type, if only one does. Tests, fuzz entry points and conformance suites do not count.
`--edges` prints the references that make up each cycle.
"""

import re
import sys
from pathlib import Path

MOST = 3
NOT_PRODUCT = {"tests", "fuzz", "conformance"}
USE = re.compile(r"^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")
IMPL = re.compile(r"^impl\b(?:<[^{]*?>)? (?:[\w:<>', ]+ for )?(?:\w+::)*(\w+)[^{;]*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
METHOD = re.compile(r"^    (?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?fn (\w+)", re.MULTILINE)
OWN_CALL = re.compile(r"\bself\s*\.\s*(\w+)(?:::<[^>]*>)?\(")
TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:pub )?mod \w+\s*\{")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"')


def product_code(text):
    """Returns the text without comments, strings and the tests at its end."""
    return COMMENT_OR_STRING.sub("", TEST_MODULE.split(text)[0])


def read_modules(source):
    """Maps the path of each module, as a tuple of names, to its code."""
    modules = {}
    for file in sorted(source.rglob("*.rs")):
        names = file.relative_to(source).with_suffix("").parts
        if NOT_PRODUCT.isdisjoint(names):
            names = names[:-1] if names[-1] in ("mod", "lib", "main") else names
            modules[names] = modules.get(names, "") + product_code(file.read_text(encoding="utf-8"))
    return modules


def split_items(text):
    """Splits the inside of braces at its outermost commas."""
    depth, item = 0, ""
    for character in text:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            yield item
            item = ""
        else:
            item += character
    yield item


def expand_use(tree):
    """Yields (path, name in scope) of each item of a use declaration."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        path, _, alias = head.partition(" as ")
        names = [name.strip() for name in path.split("::") if name.strip()]
        if names:
            yield names, alias.strip() or names[-1]
        return
    prefix = [name.strip() for name in head.split("::") if name.strip()]
    for item in split_items(rest[: rest.rindex("}")]):
        for names, name in expand_use(item):
            if names == ["self"]:
                yield prefix, prefix[-1]
            else:
                yield prefix + names, name


def from_root(names, module, modules):
    """Returns the path from the root of the crate, or None if it names another crate."""
    if names[0] == "crate":
        return names[1:]
    if names[0] == "self":
        return [*module, *names[1:]]
    if names[0] == "super":
        up = list(module)
        while names and names[0] == "super":
            up, names = up[:-1], names[1:]
        return up + names
    return [*module, *names] if (*module, names[0]) in modules else None


class Crate:
    def __init__(self, source):
        self.modules = read_modules(source)
        self.references, self.exports = {}, {}
        for module, code in self.modules.items():
            paths = self.references[module] = []
            for public, tree in USE.findall(code):
                for names, name in expand_use(tree):
                    path = from_root(names, module, self.modules)
                    if path is not None:
                        paths.append(path)
                        if public:
                            self.exports.setdefault(module, {})[name] = path
            paths += [from_root(found.split("::"), module, self.modules) for found in PATH.findall(code)]
        self.add_method_calls()

    def add_method_calls(self):
        """Adds a reference for each call of an own method that another module defines."""
        definitions, calls = {}, []
        for module, code in self.modules.items():
            for name, body in IMPL.findall(code):
                for method in METHOD.findall(body):
                    definitions.setdefault((name, method), set()).add(module)
                calls += [(module, name, method) for method in OWN_CALL.findall(body)]
        for module, name, method in calls:
            defining = definitions.get((name, method), ())
            if len(defining) == 1 and module not in defining:
                self.references[module].append([*next(iter(defining)), method])

    def resolve(self, path, redirects=8):
        """Returns the deepest module of a path."""
        at = ()
        for i, name in enumerate(path):
            if (*at, name) in self.modules:
                at = (*at, name)
                continue
            export = self.exports.get(at, {}).get(name)
            if export and redirects:
                return self.resolve(export + path[i + 1 :], redirects - 1)
            break
        return at

    def edges(self):
        """Maps each folder to its edges between siblings, each with the references that cause it."""
        folders = {}
        for module, paths in self.references.items():
            for path in paths:
                to = self.resolve(path)
                shared = 0
                while shared < min(len(module), len(to)) and module[shared] == to[shared]:
                    shared += 1
                if shared < len(module) and shared < len(to):
                    edges = folders.setdefault(module[:shared], {})
                    causes = edges.setdefault((module[shared], to[shared]), set())
                    causes.add(f"{'::'.join(module)} -> {'::'.join(path)}")
        return folders


def reachable(start, following):
    seen, waiting = set(), [start]
    while waiting:
        for node in following.get(waiting.pop(), ()):
            if node not in seen:
                seen.add(node)
                waiting.append(node)
    return seen


def cycles(edges):
    """Returns the sets of modules that reach each other."""
    following = {}
    for origin, target in edges:
        following.setdefault(origin, set()).add(target)
    reached = {node: reachable(node, following) for node in following}
    found = {frozenset(other for other in reached[node] if node in reached.get(other, ())) for node in reached}
    return sorted((cycle for cycle in found if len(cycle) > 1), key=sorted)


def main(arguments):
    show_edges = "--edges" in arguments
    rest = [argument for argument in arguments if argument != "--edges"]
    repository = Path(rest[0] if rest else ".")
    largest = 0
    for source in sorted(repository.glob("crates/*/src")):
        for folder, edges in sorted(Crate(source).edges().items()):
            for cycle in cycles(edges):
                largest = max(largest, len(cycle))
                place = "/".join((source.parent.name, "src", *folder))
                print(f"{place}: a cycle of {len(cycle)} modules: {' '.join(sorted(cycle))}")
                for (origin, target), causes in sorted(edges.items()):
                    if show_edges and {origin, target} <= cycle:
                        print(f"    {origin} -> {target}: {'; '.join(sorted(causes))}")
    if largest > MOST:
        print(f"cycles.py: a cycle has more than {MOST} modules (--edges shows why)")
    return int(largest > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
