"""Counts the test cases in the JUnit files of a folder for scripts/test: prints what was skipped and
what failed, and last `N passed, N failed`. Ends with 1 where a case failed, none passed, or what ran
left no file or a status that no case explains.

    count_results.py FOLDER NAME:STATUS...    what was run, and how it ended: NAME.xml is expected
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as xml


class Counts:
    def __init__(self):
        self.passed, self.failed, self.skipped, self.seconds = 0, [], [], {}

    def add_file(self, path):
        for case in xml.parse(path).getroot().iter("testcase"):
            if path.stem == "ctest":
                self.add_entry(case)
            elif case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(case.get("name"))
            elif case.find("skipped") is not None:
                self.skipped.append(f"{case.get('name')}: {case.find('skipped').get('message')}")
            else:
                self.passed += 1
            printed = re.findall(r"^([0-9.]+) s: (.*)", case.findtext("system-out") or "", re.M)
            self.seconds |= ({of: float(took) for took, of in printed} or
                             {case.get("name"): float(case.get("time") or 0)})

    def add_entry(self, case):
        """An entry of ctest is a test case or a file of them, of which the program prints how many
        passed, failed or, `skipped: NAME: why`, were skipped, and how long the long ones took."""
        printed = case.findtext("system-out") or ""
        all_passed = re.search(r"^All tests passed .* in (\d+) test cases?\)", printed, re.M)
        some_failed = re.search(r"^test cases: .*?(?:(\d+) passed \| )?(\d+) failed", printed, re.M)
        left_out = set(re.findall(r"^skipped: (.*)", printed, re.M))
        self.skipped += left_out
        self.passed += int(all_passed[1] if all_passed else
                           some_failed[1] or 0 if some_failed else 0) - len(left_out)
        # No program to run, or none that came to its end.
        if not all_passed or case.find("failure") is not None or case.find("skipped") is not None:
            self.failed += [case.get("name")] * int(some_failed[2] if some_failed else 1)

    def add_part(self, folder, name, status):
        before = len(self.failed)
        path = folder / f"{name}.xml"
        try:
            self.add_file(path)
        except FileNotFoundError:
            self.failed.append(f"{name}: it ended with {status} and left no results ({path})")
        except xml.ParseError as error:
            self.failed.append(f"{name}: it ended with {status}, and its results are damaged ({path}: {error})")
        if status != 0 and len(self.failed) == before:
            self.failed.append(f"{name}: it ended with {status}, though no test of it failed")


def main():
    counts = Counts()
    for part in sys.argv[2:]:
        name, status = part.split(":")
        counts.add_part(pathlib.Path(sys.argv[1]), name, int(status))
    seconds = counts.seconds
    print()
    print("the slowest:", ", ".join(f"{name} {seconds[name]:.0f} s"
                                    for name in sorted(seconds, key=seconds.get)[:-11:-1]))
    for line in counts.skipped:
        print("skipped:", line)
    for line in counts.failed:
        print("FAILED:", line)
    print(f"{counts.passed} passed, {len(counts.failed)} failed" +
          (f", {len(counts.skipped)} skipped" if counts.skipped else ""))
    sys.exit(bool(counts.failed) or counts.passed == 0)


if __name__ == "__main__":
    main()
