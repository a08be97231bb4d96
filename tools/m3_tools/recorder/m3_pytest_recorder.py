"""A pytest plugin that records what happens for the observer named in the environment; without one it does nothing.

It changes four things of the run. Coverage is switched off, because it would write into the work tree and hold the
trace function; stepwise is switched off, because it stops at the first failure; only the tests asked for are kept,
since a command may name more; and where the observer names projects, the tests of each run in its folder. With
pytest-xdist the workers trace and the controller records outcomes.
"""

from __future__ import annotations

import sys
from typing import Any

import m3_record  # type: ignore[import-not-found]
import pytest

_recorder: m3_record.Recorder | None = None
_is_worker = False
MAX_TEXT = 20_000


@pytest.hookimpl(hookwrapper=True)
def pytest_load_initial_conftests(early_config: Any) -> Any:
    options = early_config.known_args_namespace
    if hasattr(options, "no_cov"):
        options.no_cov = True
        options.cov_source = []
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: Any) -> None:
    global _recorder, _is_worker
    settings = m3_record.take_settings()
    if hasattr(config, "workerinput"):
        _is_worker = True
        settings = config.workerinput.get("m3_settings", {})
    if "M3_TEST_RECORD" not in settings:
        return
    recorder = _recorder = m3_record.Recorder(settings)
    if getattr(config.option, "stepwise", False):
        config.option.stepwise = False
    if recorder.stops:
        config.option.maxfail = 1
    if not _is_worker:
        recorder.write("start", runner="pytest", version=pytest.__version__, python=list(sys.version_info[:3]))
    recorder.watch_deadline()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if _recorder is not None:
        node.workerinput["m3_settings"] = _recorder.settings


def pytest_collectstart(collector: Any) -> None:
    if _recorder is not None:
        _recorder.enter_folder_of(str(collector.fspath))


def pytest_collectreport(report: Any) -> None:
    if _recorder is not None and not _is_worker and report.failed:
        _recorder.write("collect_error", id=report.nodeid, text=str(report.longreprtext)[-MAX_TEXT:])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: Any, items: Any) -> None:
    if _recorder is not None:
        others = [item for item in items if not _recorder.wanted(item.nodeid)]
        if others:
            items[:] = [item for item in items if _recorder.wanted(item.nodeid)]
            config.hook.pytest_deselected(items=others)


def pytest_collection_finish(session: Any) -> None:
    if _recorder is not None and not _is_worker:
        _recorder.write("collected", count=len(session.items))


def pytest_deselected(items: Any) -> None:
    if _recorder is not None and not _is_worker:
        _recorder.write("deselected", count=len(items))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: Any) -> Any:
    if _recorder is None:
        yield
        return
    _recorder.enter_folder_of(str(item.fspath))
    with _recorder.test(item.nodeid):
        yield


def pytest_runtest_logstart(nodeid: str) -> None:
    if _recorder is not None and not _is_worker:
        _recorder.write("test_start", id=nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    outcome = yield
    if _recorder is None or call.excinfo is None:
        return
    report = outcome.get_result()
    if report.failed:
        _recorder.failed.add(item.nodeid)
        report.m3_failure = {
            "type": call.excinfo.type.__name__,
            "message": call.excinfo.exconly()[:MAX_TEXT],
            "frames": _recorder.frames(call.excinfo.value.__traceback__),
        }


def pytest_runtest_logreport(report: Any) -> None:
    if _recorder is None or _is_worker:
        return
    _recorder.write(
        "phase",
        id=report.nodeid,
        when=report.when,
        outcome=report.outcome,
        xfail=hasattr(report, "wasxfail"),
        duration_s=getattr(report, "duration", 0.0),
        failure=getattr(report, "m3_failure", None),
        text=report.longreprtext[:MAX_TEXT] if report.failed else "",
    )


def pytest_internalerror(excrepr: Any) -> None:
    if _recorder is not None and not _is_worker:
        _recorder.write("internal_error", text=str(excrepr)[-MAX_TEXT:])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: Any) -> None:
    if _recorder is None:
        return
    if _is_worker:
        if _recorder.tracer is not None:
            _recorder.tracer.report_passing()
    else:
        _recorder.finish(int(exitstatus))
