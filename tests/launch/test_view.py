# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a gang."""

import io

from dovetail.launch._view import View


def test_lines_of_others_have_their_number_and_what_all_say_is_said_once():
    out = io.StringIO()
    view = View(out)
    view.log(0, ["step 1", "hello"])
    view.log(1, ["hello", "mine"])
    view.log(2, ["[Gloo] Rank 2 is connected to 3 peer ranks."])
    assert out.getvalue() == "step 1\nhello\n[1] mine\n"


def test_after_a_failure_only_the_words_of_who_failed_are_shown():
    out = io.StringIO()
    view = View(out)
    view.hold()
    view.log(0, ["UNKNOWN: connection closed by peer"])
    view.log(1, ["ZeroDivisionError"])
    view.say("process 1: crashed")
    view.release(1)
    view.log(0, ["again"])
    assert out.getvalue() == "launch: process 1: crashed\n[1] ZeroDivisionError\nagain\n"


def test_what_a_process_writes_cannot_move_the_cursor():
    out = io.StringIO()
    View(out).log(0, ["\x1b[2Jgone\rx"])
    assert out.getvalue() == "?[2Jgone?x\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_in_a_terminal_the_last_line_says_how_far_it_is():
    out = Terminal()
    view = View(out)
    view.status("step 1/9")
    view.log(0, ["loss 3"])
    view.status("step 2/9")
    view.close()
    assert out.getvalue() == "\r\x1b[2Kstep 1/9\r\x1b[2Kloss 3\nstep 1/9\r\x1b[2Kstep 2/9\r\x1b[2K"
