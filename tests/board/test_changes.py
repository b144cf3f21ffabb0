# SPDX-License-Identifier: Apache-2.0
"""Who waits is told of what has changed, and nobody looks while nobody waits."""

import threading

from dovetail.board._changes import Changes


class Stamps:
    """Returns one answer after the other, and the last one for ever."""

    def __init__(self, *answers: dict[str, object] | OSError) -> None:
        self._answers, self.count, self.all = list(answers), 0, threading.Event()

    def __call__(self) -> dict[str, object]:
        self.count += 1
        answer = self._answers[0]
        if len(self._answers) > 1:
            self._answers.pop(0)
        else:
            self.all.set()
        if isinstance(answer, OSError):
            raise answer
        return answer


def test_runs_that_change_appear_or_go_are_named_to_all_who_wait() -> None:
    changes = Changes(Stamps({"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 2, "c": 1}), every=0.001)
    one, two = changes.subscribe(), changes.subscribe()
    # Whoever comes second may come after the change.
    assert one.get(timeout=30) == ["a", "b", "c"]
    assert two.qsize() <= 1
    changes.close()


def test_an_error_is_passed_over() -> None:
    changes = Changes(Stamps({"a": 1}, OSError("away"), {"a": 2}), every=0.001)
    assert changes.subscribe().get(timeout=30) == ["a"]
    changes.close()


def test_nothing_is_looked_at_while_nobody_waits() -> None:
    stamps = Stamps({"a": 1}, {"a": 2})
    changes = Changes(stamps, every=0.001)
    assert stamps.count == 0
    waiting = changes.subscribe()
    assert waiting.get(timeout=30) == ["a"]
    changes.unsubscribe(waiting)
    changes.close()
    assert changes._thread is not None
    changes._thread.join(30)
    assert not changes._thread.is_alive()


def test_changes_that_nobody_reads_become_one() -> None:
    answers: list[dict[str, object]] = [{"a": i, str(i): 1} for i in range(30)]
    stamps = Stamps(*answers)
    changes = Changes(stamps, every=0.0)
    waiting = changes.subscribe()
    assert stamps.all.wait(30)
    changes.close()
    assert changes._thread is not None
    changes._thread.join(30)
    found = [waiting.get_nowait() for _ in range(waiting.qsize())]
    assert len(found) <= 8
    assert {name for each in found for name in each} >= {str(i) for i in range(30)}
