"""Regions of a timeline: every instant belongs to one, and the regions add up to the whole."""

import doctest
import threading
import time

import numpy as np
import pytest

from vla_nav.profiling import prediction, profile_trace, regions
from vla_nav.profiling.regions import (
    ATTENTION,
    BACKWARD,
    DATA,
    FORWARD,
    IDLE,
    OPTIMISER,
    OTHER,
    RECOMPUTE,
    REST,
    VISION,
    Label,
    Mark,
    Recorder,
    durations,
)


def marks(*pairs: tuple[Label, int]) -> list[Mark]:
    return [Mark(label, at, None) for label, at in pairs]


def test_one_thread_is_the_differences_of_its_marks() -> None:
    found = durations({0: marks((Label(DATA), 5), (Label(OPTIMISER), 25), (IDLE, 30))})
    assert found == {Label(DATA): pytest.approx(20e-9), Label(OPTIMISER): pytest.approx(5e-9)}


def test_an_instant_of_two_threads_counts_half_to_each() -> None:
    vision, rest = Label(VISION, FORWARD), Label(REST, FORWARD)
    found = durations(
        {
            0: marks((Label(OTHER), 0), (Label(OPTIMISER), 100), (IDLE, 110)),
            1: marks((vision, 10), (rest, 30), (IDLE, 50)),
            2: marks((vision, 20), (IDLE, 90)),
        }
    )
    # other 0..10 and 90..100; vision alone 10..20, with itself 20..30, with rest 30..50, then alone
    assert found[Label(OTHER)] == pytest.approx(20e-9)
    assert found[vision] == pytest.approx((10 + 10 + 10 + 40) * 1e-9)
    assert found[rest] == pytest.approx(10e-9)
    assert found[Label(OPTIMISER)] == pytest.approx(10e-9)


@pytest.mark.parametrize("seed", range(5))
def test_random_timelines_add_up_to_the_main_ones_length(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = [Label(DATA), Label(VISION, FORWARD), Label(REST, BACKWARD)]
    timelines = {}
    for key in range(1 + seed):
        times = np.sort(rng.integers(0, 1000, 30)).tolist()
        some = [IDLE, *labels] if key else labels
        timelines[key] = marks(*((some[rng.integers(len(some))], at) for at in times))
    main = timelines[0]
    expected = (main[-1].host_ns - main[0].host_ns) / 1e9
    assert sum(durations(timelines).values()) == pytest.approx(expected)


def test_a_recorder_that_is_off_takes_no_marks() -> None:
    recorder = Recorder("cpu")
    with recorder.region(Label(DATA)):
        pass
    recorder.start()
    assert [mark.label for mark in recorder.stop()[0]] == [Label(OTHER), IDLE]


def test_what_was_before_goes_on_behind_a_region_and_a_recomputation() -> None:
    recorder = Recorder("cpu")
    recorder.start()
    recorder.mark(Label(REST, BACKWARD))
    with recorder.recompute(), recorder.region(Label(ATTENTION, recorder.state.phase)):
        pass
    assert [mark.label for mark in recorder.stop()[0]] == [
        Label(OTHER),
        Label(REST, BACKWARD),
        Label(REST, RECOMPUTE),
        Label(ATTENTION, RECOMPUTE),
        Label(REST, RECOMPUTE),
        Label(REST, BACKWARD),
        IDLE,
    ]
    assert recorder.state.phase == FORWARD


def test_threads_have_timelines_of_their_own() -> None:
    recorder = Recorder("cpu")
    recorder.start()

    def work() -> None:
        recorder.mark(Label(VISION, FORWARD))
        time.sleep(0.02)
        recorder.mark(IDLE)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = recorder.stop()
    assert len(found) == 3
    assert found[0][0].label == Label(OTHER)
    spent = durations(found)
    assert spent[Label(VISION, FORWARD)] >= 0.019
    total = (found[0][-1].host_ns - found[0][0].host_ns) / 1e9
    assert sum(spent.values()) == pytest.approx(total)


def test_examples_in_docstrings_hold() -> None:
    for module in (regions, prediction, profile_trace):
        found = doctest.testmod(module)
        assert found.attempted > 0
        assert found.failed == 0
