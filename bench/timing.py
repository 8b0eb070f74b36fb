"""Programs timed in turns, in one process."""

import time


def once(run):
    """Seconds of a second call."""
    run()
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def interleaved(programs, rounds=30, seconds=2e-3, before=lambda name: None):
    """{name: [seconds of a call, one sample a round]}. A round runs each program once uncounted, then as often as takes
    about `seconds`; before(name) comes first."""
    calls = {}
    for name, run in programs.items():
        before(name)
        calls[name] = max(1, int(seconds / max(once(run), 1e-9)))
    samples = {name: [] for name in programs}
    for _ in range(rounds):
        for name, run in programs.items():
            before(name)
            run()
            begin = time.perf_counter()
            for _ in range(calls[name]):
                run()
            samples[name].append((time.perf_counter() - begin) / calls[name])
    return samples
