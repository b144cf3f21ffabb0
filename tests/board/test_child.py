# SPDX-License-Identifier: Apache-2.0
"""What needs JAX is asked of a process of its own, which cannot take the board with it."""

import subprocess
import sys
import threading

import pytest

from dovetail.board._child import Children, Unavailable


def children(code: str, seconds: float = 60.0) -> Children:
    found = Children(seconds)
    found._command = [sys.executable, "-S", "-c", code]
    return found


def test_the_answer_is_what_a_child_prints() -> None:
    assert children("import json, sys; print(json.dumps(sys.argv[1:]))").ask("memory", "x y") == ["memory", "x y"]


def test_a_child_that_refuses_fails_or_hangs_is_told_of() -> None:
    with pytest.raises(Unavailable, match=r"^there is no finished step\.$"):
        children("import sys; print('there is no finished step.', file=sys.stderr); sys.exit(2)").ask()
    with pytest.raises(Unavailable, match=r"It failed \(exit code 1\): ZeroDivisionError: division by zero"):
        children("1 / 0").ask()
    with pytest.raises(Unavailable, match=r"It failed \(exit code -9\): it said nothing\."):
        children("import os; os.kill(os.getpid(), 9)").ask()
    with pytest.raises(Unavailable, match=r"It took more than 0\.2 seconds, and was ended\."):
        children("while True: pass", 0.2).ask()


def test_a_child_ends_with_the_board() -> None:
    found, errors = children("import sys, time; sys.stdin.read(); time.sleep(600)"), list[str]()

    def ask() -> None:
        try:
            found.ask()
        except Unavailable as e:
            errors.append(str(e))

    thread = threading.Thread(target=ask)
    thread.start()
    while found._running is None and not errors:
        pass
    found.close()
    thread.join(60)
    assert errors == ["It failed (exit code -9): it said nothing."]
    with pytest.raises(Unavailable, match="The board ends"):
        found.ask()


def test_the_server_needs_no_jax_to_start() -> None:
    code = (
        "import sys; from dovetail.cli import main; import dovetail.board, dovetail.cli._board; "
        "print(sorted({'jax', 'tensorstore', 'orbax'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
