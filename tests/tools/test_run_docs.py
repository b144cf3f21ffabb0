# SPDX-License-Identifier: Apache-2.0
"""The runner of the Markdown pages accepts what is true and reports everything else at its line."""

import subprocess
import sys
from pathlib import Path

import pytest

import run_docs
from run_docs import run_page


def write(directory: Path, text: str) -> Path:
    """Writes a page. Its fences are given as ''' so that they can be told from the quotes of this file."""
    page = directory / "a-page.md"
    page.write_text(text.replace("'''", "```"), "utf-8")
    return page


@pytest.mark.parametrize(
    "text",
    [
        "No code.\n",
        "'''python\nx = 1\n'''\n'''python\nassert x == 1\n'''\n",
        "'''python\nprint(1)\n'''\n\n  \n'''text\n1\n'''\n",
        "'''python\nprint(1, end='')\nraise OSError('a\\nb')\n'''\n'''text\n1\nOSError: a\nb\n'''\n",
        "'''python\nraise KeyError\n'''\n'''text\nKeyError\n'''\n'''python\nx = 1\n'''\n",
        "'''python\ne = OSError('a')\ne.add_note('b')\nraise e\n'''\n'''text\nOSError: a\nb\n'''\n",
        "'''python\nprint()\nprint('```')\n'''\n````text\n\n'''\n````\n",
        "- item\n\n  '''python\n  if True:\n      print(' 1')\n  '''\n\n  '''text\n   1\n  '''\n",
        "````markdown\n'''python\nnever run\n'''\n````\n~~~text\n'''python\n~~~\n",
        "'''console\n$ echo one two > a.txt\n$ cat \\\n    a.txt\none ...\n'''\n",
        "'''console\n$ touch a\n'''\n'''python\nimport os\nassert os.listdir() == ['a']\n'''\n",
        "'''console\n$ dovetail list tiny-lm\n...1.28M...\n$ dovetail show tiny-ml\n...no recipe...\n'''\n",
        "'''bash\ndovetail train runs/mine steps=7 seed=...  # and more\n'''\n",
        "'''bash\ncd x && make venv test  # and make sure\n'''\n'''text\nnot an output\n'''\n",
    ],
)
def test_true_page_passes(tmp_path, text):
    assert run_page(write(tmp_path, text)) == []


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("\n'''python\nprint(1)\n'''\n", 2, "no text block shows this output\n1"),
        (
            "\n'''python\n1 / 0\n'''\n",
            2,
            "no text block shows this output\nZeroDivisionError: division by zero",
        ),
        ("\n'''python\nprint(1)\n'''\nbetween\n'''text\n1\n'''\n", 2, "no text block shows this output\n1"),
        ("'''python\n'''\n'''text\n1\n'''\n", 1, "-1"),
        ("'''python\nprint(1)\n'''\n'''text\n'''\n", 1, "+1"),
        ("'''python\nprint('1 ')\n'''\n'''text\n1\n'''\n", 1, "-1\n+1 "),
        ("'''python no-run\nx = 1\n'''\n", 1, "'python no-run' would not run"),
        ("'''pycon\n>>> x = 1\n'''\n", 1, "'pycon' would not run"),
        ("'''python\nx = (\n'''\n", 1, "SyntaxError: '(' was never closed (a-page.md, line 2)"),
        ("x\n'''python\nx = 1\n", 2, "this block does not end"),
        ("\n'''bash\nmake nothing\n'''\n", 2, "the Makefile has no target 'nothing'"),
        ("'''bash\ndovetail shwo tiny-lm\n'''\n", 1, "invalid choice: 'shwo'"),
        ("'''bash\n.venv/bin/dovetail show tiny-ml  # no\n'''\n", 1, "no recipe is called 'tiny-ml'"),
        ("'''bash\ndovetail train tiny-lm input.dataset.source.paths=...\n'''\n", 1, "it has no field 'paths'"),
        ("'''bash\ndovetail eval runs/mine --mesh \\\n  data=two\n'''\n", 1, "'data=two' is not AXIS=SIZE"),
        ("'''bash\ndovetail diff tiny-lm@cpu-8 tiny-lm@tpu-v9\n'''\n", 1, "tpu-v9"),
        ("'''console\n$ echo 1\n2\n'''\n", 1, "`echo 1` did not print what is shown, but:\n1\n"),
        ("'''console\n$ exit 3\n'''\n", 1, "`exit 3` failed with 3:"),
        ("'''console\n$ dovetail list nothing-like-it\n'''\n", 1, "failed with 2:\ndovetail list: "),
    ],
)
def test_false_page_fails_at_its_line(tmp_path, text, line, message):
    page = write(tmp_path, text)
    (failure,) = run_page(page)
    assert failure.startswith(f"{page}:{line}: ")
    assert message in failure


def test_failure_shows_a_unified_diff(tmp_path):
    page = write(tmp_path, "'''python\nprint(1)\nprint(2)\n'''\n'''text\n1\n3\n'''\n")
    assert run_page(page) == [
        f"{page}:1: the output is not the one shown\n--- text block in line 5\n+++ output\n@@ -1,2 +1,2 @@\n 1\n-3\n+2"
    ]


MODULE_PAGE = """\
# A page

'''python
class A:
    x = 1
'''

It's prose (not Python.

'''python
import inspect, pickle, traceback

def f():
    1 / 0

assert pickle.loads(pickle.dumps(A)) is A
print(A.__module__)
print(inspect.getsource(A), end="")
print(inspect.getsource(f), end="")
try:
    f()
except ZeroDivisionError as e:
    frame = traceback.extract_tb(e.__traceback__)[-1]
    print(frame.lineno, frame.line)
'''

'''text
guide_a_page
class A:
    x = 1
def f():
    1 / 0
14 1 / 0
'''
"""


def test_page_is_a_module_that_can_be_pickled_and_inspected(tmp_path):
    assert run_page(write(tmp_path, MODULE_PAGE)) == []


UPDATED_PAGE = """\
# Page
'''python
print(1)
print(2)
'''
'''text
{first}'''
Two spaces end this line.\x20\x20
  '''python
  print("a\\n\\nb")
  '''
  '''text
{second}  '''
'''text
not an output
'''
"""


def test_update_rewrites_text_blocks_and_nothing_else(tmp_path):
    page = write(tmp_path, UPDATED_PAGE.format(first="old\n", second=""))
    assert run_page(page, update=True) == []
    expected = UPDATED_PAGE.format(first="1\n2\n", second="  a\n\n  b\n")
    assert page.read_text() == expected.replace("'''", "```")
    assert run_page(page) == []


def test_failure_shows_where_an_exception_comes_from(tmp_path):
    page = write(tmp_path, "'''python\nx = 0\n1 / x\n'''\n")
    (failure,) = run_page(page)
    assert f'File "{page}", line 3, in <module>\n    1 / x' in failure


def test_update_does_not_bless_what_has_no_text_block(tmp_path):
    page = write(tmp_path, "'''python\n1 / 0\n'''\n")
    before = page.read_text()
    (failure,) = run_page(page, update=True)
    assert "ZeroDivisionError" in failure
    assert page.read_text() == before


def command(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, run_docs.__file__, *map(str, args)], capture_output=True, text=True, check=False
    )


def test_command_runs_each_page_afresh_and_fails_if_one_does(tmp_path):
    good = tmp_path / "good.md"
    good.write_text("```python\nimport sys\nassert 'guide_bad' not in sys.modules\n```\n")
    bad = tmp_path / "bad.md"
    bad.write_text("```python\nimport warnings\nwarnings.warn('old')\n```\n")
    assert command(good).returncode == 0
    for pages in ([bad], [bad, good], [good, bad]):
        result = command(*pages)
        assert result.returncode == 1
        assert f"{bad}:1: no text block shows this output\nUserWarning: old" in result.stdout
    assert command(tmp_path / "none.md").returncode == 2


def test_page_does_not_see_the_jax_settings_of_the_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    page = write(
        tmp_path,
        "'''python\nimport os\nprint(os.environ.get('JAX_ENABLE_X64'), os.environ['JAX_PLATFORMS'])\n'''\n"
        "'''text\nNone cpu\n'''\n",
    )
    assert command(page).returncode == 0
