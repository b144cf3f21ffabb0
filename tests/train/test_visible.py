# SPDX-License-Identifier: Apache-2.0
"""No control character passes, and nothing else is changed."""

import json
import sys
import unicodedata

from dovetail.train import escaped, visible

ALL = "".join(map(chr, range(sys.maxunicode + 1)))


def test_all_but_controls_surrogates_and_marks_of_direction_is_left_as_it_is():
    changed = {char for char in ALL if visible(char) != char}
    controls = {char for char in ALL if unicodedata.category(char) == "Cc"} - {"\t", "\n"}
    surrogates = {char for char in ALL if unicodedata.category(char) == "Cs"}
    directions = set("\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert changed == controls | surrogates | directions
    assert not changed & set(visible(ALL))


def test_escaped_json_means_the_same_and_holds_no_control():
    proper = ALL.encode(errors="ignore").decode()  # Two surrogates side by side would be read as one character.
    text = json.dumps({"text": proper}, ensure_ascii=False)
    assert json.loads(escaped(text)) == {"text": proper}
    assert visible(escaped(text)) == escaped(text)
