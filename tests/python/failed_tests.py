"""A plugin of pytest's for scripts/test: `-p failed_tests`. The process that has others run tests loads no
conftest.py, so that it is by itself."""

import os


def pytest_configure(config):
    """With CASHEW_FAILED_TO=FILE, writes there which tests failed: `once ID` for those that may be run once
    more, by themselves, or `certain ID`."""
    path = os.environ.get("CASHEW_FAILED_TO")
    # Those of other processes come to the one that started them.
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailedTests(path))


class FailedTests:
    """Tells tests that may have been short of processor time from those that found something."""

    def __init__(self, path):
        self.path, self.kinds = path, {}

    def pytest_runtest_logreport(self, report):
        if report.failed:
            is_certain = "certain" in report.keywords or any(
                word in report.longreprtext for word in ("panicked", "harness.WrongReply"))
            if is_certain or report.nodeid not in self.kinds:
                self.kinds[report.nodeid] = "certain" if is_certain else "once"

    def pytest_sessionfinish(self):
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(f"{kind} {test}\n" for test, kind in self.kinds.items())
