#!/usr/bin/env python3
"""Runs Samba's smbtorture against Lazuli, and with --anchor against a local smbd, too.

Every test runs in a process of its own, with a time limit and a share of its own: tests use fixed file names, and the
files of a failed test must not fail the next one. `passing.txt` lists the tests that Lazuli passes; the run fails if one
of them fails. `samba-4.17.txt` lists the tests that Debian's smbd 4.17 passes, as the reference of a run without --anchor.
Uses the standard library only. smbtorture is in Debian's package samba-testsuite.

    tests/smb/torture.py --lazuli target/debug/lazuli            everything
    tests/smb/torture.py --passing                               the tests of passing.txt, as in CI
    tests/smb/torture.py --only lock --only lease.v2_epoch1 -v   some, with the output of failures
"""

import argparse
import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from servers import HOST, USER, Lazuli, Samba

HERE = Path(__file__).resolve().parent
PASSING = HERE / "passing.txt"
YARDSTICK = HERE / "samba-4.17.txt"
REPOSITORY = HERE.parent.parent

# Groups and single tests that are not run, and why.
OUT_OF_SCOPE = {
    "no counterpart in Azure Files": [
        "streams", "create_no_streams", "ea", "mangle", "ioctl-on-stream",
        # Tests of other groups that open streams or set extended attributes.
        "compound.compound-padding", "fileid.fileid", "fileid.fileid-dir", "getinfo.getinfo_access",
        "getinfo.normalized", "getinfo.qfile_buffercheck", "ioctl.copy-chunk streams", "lease.request",
        "oplock.batch26", "oplock.stream1",
    ],
    "a load or a scan, without pass and fail": ["bench", "maxfid", "scan", "hold-oplock", "hold-sharemode"],
    "waits for another test": ["check-sharemode"],
    "needs a configuration or options of its own": ["dosmode", "set-sparse-ioctl", "zero-data-ioctl", "twrp"],
    "needs a kernel or a module of Samba's own selftest": [
        "kernel-oplocks", "notify-inotify", "samba3misc", "aio_delay", "durable-v2-delay", "async_dosmode",
        "change_notify_disabled", "acls_non_canonical", "session-require-signing",
    ],
}  # fmt: skip

# Tests that wait for a break to time out or use thousands of files. They start first and have more time, so
# that the run does not end with a wait for them.
SLOW = [
    "compound_find.compound_find_close", "dir.large-files", "dir.many", "dir.sorted", "credits.skipped_mid",
    "lease.timeout", "oplock.batch22a", "lease.oplock", "lease.break", "secleak", "fileid", "notify.overflow", "replay",
]  # fmt: skip
SLOW_FACTOR = 3


@dataclass
class Outcome:
    """The result of one test on one server."""

    verdict: str  # pass, fail, skip or time
    seconds: float
    output: str
    retried: bool = False


def smbtorture_tests() -> list[str]:
    """Returns all tests of the group smb2. The listing repeats the last component of a name."""
    listed = subprocess.run(["smbtorture", "--list"], capture_output=True, text=True).stdout.splitlines()
    return sorted({line.rpartition(".")[0] for line in listed if line.startswith("smb2.")})


def group(test: str) -> str:
    return test.split(".")[1]


def in_scope(test: str) -> bool:
    """Returns whether a test is run. Of two tests that exclude each other, only the one that Samba passes is run."""
    if test.endswith("-windows"):
        return False
    return not any(matches(test, name) for names in OUT_OF_SCOPE.values() for name in names)


def matches(test: str, wanted: str) -> bool:
    """Returns whether a test is, or belongs to, GROUP or GROUP.TEST, with or without the prefix `smb2.`."""
    wanted = "smb2." + wanted.removeprefix("smb2.")
    return test == wanted or test.startswith(wanted + ".")


def slow(test: str) -> bool:
    return any(matches(test, name) for name in SLOW)


def read_list(path: Path) -> set[str]:
    return set(path.read_text().splitlines()) if path.exists() else set()


def write_list(path: Path, tests: set[str]):
    path.write_text("".join(f"{test}\n" for test in sorted(tests)))


def run_test(server, test: str, share: str, limit: float, directory: Path) -> Outcome:
    """Runs a test in a process. After the time limit, kills the process and its children."""
    command = ["smbtorture", f"//{HOST}/{share}", "-p", str(server.port), "-U", USER, test]
    begun = time.monotonic()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, errors="replace", cwd=directory, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit)
        verdict = judge(process.returncode, output)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        verdict = "time"
    return Outcome(verdict, time.monotonic() - begun, output)


def judge(code: int, output: str) -> str:
    said = set(re.findall(r"^(success|failure|error|skip):", output, re.MULTILINE))
    if code == 0 and said == {"success"}:
        return "pass"
    return "skip" if said == {"skip"} else "fail"


class Run:
    """A run of all tests on all servers, several at a time."""

    def __init__(self, servers, tests, options):
        self.servers, self.tests, self.options = servers, tests, options
        self.expected = {"lazuli": read_list(PASSING), "samba": read_list(YARDSTICK)}
        self.outcomes = {server.name: {} for server in servers}
        self.waiting = queue.Queue()
        self.printing = threading.Lock()

    def start(self):
        for test in self.tests:
            for server in self.servers:
                self.waiting.put((server, test))
        workers = [threading.Thread(target=self.work) for _ in range(self.options.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def work(self):
        while True:
            try:
                server, test = self.waiting.get_nowait()
            except queue.Empty:
                return
            outcome = self.attempts(server, test)
            self.outcomes[server.name][test] = outcome
            self.report(server, test, outcome)

    def attempts(self, server, test: str) -> Outcome:
        """Runs a test, and repeats it once if it fails and is or may become one of the passing tests."""
        first_share, second_share = shares_of(self.tests.index(test))
        limit, directory = self.options.timeout * (SLOW_FACTOR if slow(test) else 1), self.options.logs
        first = run_test(server, test, first_share, limit, directory)
        second_chance = self.options.update or test in self.expected[server.name]
        if first.verdict in ("pass", "skip") or not second_chance:
            return first
        second = run_test(server, test, second_share, limit, directory)
        seconds, output = first.seconds + second.seconds, f"{first.output}\n=== again ===\n{second.output}"
        return Outcome(second.verdict, seconds, output, retried=True)

    def report(self, server, test: str, outcome: Outcome):
        log = self.options.logs / server.name / f"{test}.log"
        log.write_text(outcome.output)
        again = " (second attempt)" if outcome.retried else ""
        with self.printing:
            print(f"{outcome.verdict:4} {server.name:6} {outcome.seconds:5.1f} s  {test}{again}", flush=True)
            if self.options.verbose and outcome.verdict in ("fail", "time"):
                print("".join(f"    {line}\n" for line in outcome.output.splitlines()), flush=True)

    def passed(self, name: str) -> set[str]:
        """Returns the tests that passed. For a server that was not run, returns those of its list."""
        if name in self.outcomes:
            return {test for test, outcome in self.outcomes[name].items() if outcome.verdict == "pass"}
        return self.expected[name] & set(self.tests)

    def summary(self):
        """Prints the passed and run tests of each group, and the tests that only the reference passes."""
        names = [server.name for server in self.servers]
        if "samba" not in names:
            names.append("samba")
        print(f"\n{'group':24}" + "".join(f"{name:>12}" for name in names))
        for one in sorted({group(test) for test in self.tests}):
            print(f"{one:24}" + "".join(f"{self.ratio(name, one):>12}" for name in names))
        print(f"{'all':24}" + "".join(f"{self.ratio(name, None):>12}" for name in names))
        retried = sorted(
            f"{test} ({name})" for name, outcomes in self.outcomes.items()
            for test, outcome in outcomes.items() if outcome.retried and outcome.verdict == "pass"
        )  # fmt: skip
        print_list("passed at the second attempt", retried)
        if "lazuli" in names:
            print_list("Samba passes, Lazuli does not", sorted(self.passed("samba") - self.passed("lazuli")))

    def ratio(self, name: str, one: str | None) -> str:
        tests = [test for test in self.tests if one in (None, group(test))]
        passed = len(self.passed(name) & set(tests))
        if name not in self.outcomes:
            return str(passed)
        run = sum(self.outcomes[name][test].verdict != "skip" for test in tests)
        return f"{passed}/{run}"


def shares_of(index: int) -> tuple[str, str]:
    return f"t{index:03}", f"t{index:03}-again"


def print_list(title: str, lines: list[str]):
    if lines:
        print(f"\n{title}: {len(lines)}")
        print("".join(f"  {line}\n" for line in lines), end="")


def update(path: Path, run: Run, name: str, forced: bool):
    """Adds the passed tests to a list. Removes tests that no longer pass only if forced."""
    kept = read_list(path)
    write_list(path, (kept - set(run.tests) if forced else kept) | run.passed(name))
    print(f"\n{path.relative_to(REPOSITORY)}: {len(kept)} -> {len(read_list(path))} tests")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lazuli", default=os.environ.get("LAZULI"), help="the binary [default: $LAZULI]")
    parser.add_argument("--anchor", action="store_true", help="run the same tests against a local smbd")
    parser.add_argument("--anchor-only", action="store_true", help="run them against smbd alone")
    parser.add_argument("--only", action="append", metavar="GROUP[.TEST]", help="some tests; may be given again")
    parser.add_argument("--passing", action="store_true", help="only tests that are listed in passing.txt")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time; most tests wait [default: 8]")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for a test [default: 60]")
    parser.add_argument("--update", action="store_true", help="add what passed to the lists of the servers run")
    parser.add_argument("--force", action="store_true", help="with --update: also take out what did not pass")
    parser.add_argument("--logs", type=Path, default=REPOSITORY / "target/smb-torture", help="where logs are kept")
    parser.add_argument("--verbose", "-v", action="store_true", help="print the output of tests that fail")
    options = parser.parse_args()
    if not options.lazuli and not options.anchor_only:
        parser.error("name the binary with --lazuli or LAZULI")
    return options


def main() -> int:
    options = arguments()
    tests = [test for test in smbtorture_tests() if in_scope(test)]
    if options.passing:
        tests = [test for test in tests if test in read_list(PASSING)]
    if options.only:
        tests = [test for test in tests if any(matches(test, wanted) for wanted in options.only)]
    if not tests:
        print("no test is named like this")
        return 2
    tests.sort(key=lambda test: (not slow(test), test))
    shares = [share for index in range(len(tests)) for share in shares_of(index)]
    with tempfile.TemporaryDirectory(prefix="smb-torture-") as directory:
        os.chmod(directory, 0o755)  # smbd serves as another user
        servers = []
        if not options.anchor_only:
            servers.append(Lazuli(options.lazuli, Path(directory) / "lazuli", shares, "--smb-enforce-permissions"))
        if options.anchor or options.anchor_only:
            servers.append(Samba(Path(directory) / "samba", shares))
        begun = time.monotonic()
        run = Run(servers, tests, options)
        for server in servers:
            (options.logs / server.name).mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as running:
            for server in servers:
                running.enter_context(server)
            run.start()
        panics = [line for server in servers if server.name == "lazuli" for line in server.panics()]
    run.summary()
    print_list("PANICS", panics)
    print(f"\n{len(tests)} tests, {time.monotonic() - begun:.0f} s, logs in {options.logs}")
    return conclude(run, options) or (1 if panics else 0)


def conclude(run: Run, options) -> int:
    """Updates the lists if requested, and reports the tests that no longer pass."""
    if options.update and "samba" in run.outcomes:
        update(YARDSTICK, run, "samba", options.force)
    if "lazuli" not in run.outcomes:
        return 0
    lost = sorted((run.expected["lazuli"] & set(run.tests)) - run.passed("lazuli"))
    if options.update:
        update(PASSING, run, "lazuli", options.force)
    print_list("LOST, listed in passing.txt", lost)
    return 1 if lost and not (options.update and options.force) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers stop with it
    sys.exit(main())
