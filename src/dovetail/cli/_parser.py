# SPDX-License-Identifier: Apache-2.0
"""The commands and their arguments, in the order in which help lists them."""

import argparse

from dovetail import __version__

from ._bench import add_bench
from ._board import add_board
from ._compile import add_compile
from ._data import add_data
from ._diff import add_diff
from ._doctor import doctor
from ._eval import add_eval
from ._export import add_export
from ._generate import add_generate
from ._import import add_import
from ._jobs import add_jobs
from ._launch import add_launch
from ._list import add_list
from ._loc import add_loc
from ._plan import add_plan
from ._plot import add_plot
from ._predict import add_predict
from ._profile import add_profile
from ._schedule import add_schedule
from ._serve import add_serve
from ._show import add_show
from ._train import add_train

_ON = "what to run on, as in tpu-v5p-512 or gpu-h100-256: sets mesh, remat, kernels, precision"
_MESH = "how to spread the run over devices, as in data=2,tensor=4 (2x4: 2 slices of 4)"
_OVERRIDES = "a value or a part of the config, as in steps=100 or learner.optimizer=Muon; `show --full` has all paths"
_CODE = "a file, or a module, with code of your own that the config of a run names"
_QUIET = "show no progress: only results, and errors"
_HAS_RECIPE = ("show", "diff", "train", "launch", "eval", "generate", "serve", "compile", "predict", "plan", "export")
_NAMES = {
    "recipe": "a name from `dovetail list`, file.py:function, hf:DIRECTORY, or the directory of a run",
    "run_directory": "the directory of a run, or hf:DIRECTORY for a published model",
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser; each command sets `run`, which takes the arguments and returns the exit code."""
    root = argparse.ArgumentParser(prog="dovetail", description="Train language models from configs.")
    root.add_argument("--version", action="version", version=f"dovetail {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, text: str, *, recipe: str = "", optional: bool = False, reports: bool = True
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        if recipe:
            added.add_argument(recipe, nargs="?" if optional else None, help=_NAMES[recipe])
            added.add_argument("overrides", nargs="*", default=[], metavar="PATH=VALUE", help=_OVERRIDES)
        if name in _HAS_RECIPE:
            added.add_argument("--code", action="append", default=[], metavar="FILE.py", help=_CODE)
        if reports:
            added.add_argument("--json", action="store_true", help="print JSON")
        return added

    add_list(command("list", "List the recipes, all or those that some words describe."))
    show = command("show", "Print what a recipe is made of; with --mesh, its parameters on that mesh.", recipe="recipe")
    add_show(_placed(show))
    add_diff(command("diff", "Print what differs between two recipes, or between one on two kinds of hardware."))
    add_train(_placed(command("train", "Train a recipe; run again to go on.", recipe="recipe", reports=False)))
    data = "Tokenise text once, for runs of any size; show, check and count what came of it."
    add_data(command("data", data, reports=False))
    launch = "Train a recipe in several processes, under a supervisor that restarts what fails."
    add_launch(_placed(command("launch", launch, recipe="recipe", reports=False)))
    add_jobs(command("jobs", "List, show, follow, cancel and resume what was launched."))
    add_eval(_placed(command("eval", "Evaluate a trained model on its held-out data.", recipe="run_directory")))
    add_generate(_placed(command("generate", "Continue a prompt with a trained model.")))
    serve = command("serve", "Serve a trained model: OpenAI's interface, and a page to chat on.", reports=False)
    add_serve(_placed(serve))
    add_import(_placed(command("import", "Make a run of a published model.", reports=False)))
    add_export(command("export", "Publish the model of a run: files that transformers and vLLM load.", reports=False))
    add_compile(command("compile", "Compile a recipe for chips that need not be here, and report.", recipe="recipe"))
    predict = "Predict the time and cost of a training step on chips."
    add_predict(command("predict", predict, recipe="recipe", optional=True))
    add_plan(command("plan", "Find the best way to train a recipe on chips that can be had.", recipe="recipe"))
    add_schedule(command("schedule", "Say which jobs get which chips, why, and what would start those that wait."))
    add_plot(command("plot", "Draw the curves of runs, as SVG or PNG.", reports=False))
    add_profile(command("profile", "Print what took the time in the steps of a run that were traced."))
    add_board(command("board", "Show the runs in a directory on a local web page; Ctrl-C ends it."))
    command("doctor", "Say what this machine has, and what would make it faster.").set_defaults(run=doctor)
    add_bench(command("bench", "Compare with peers, in one run.", reports=False))
    add_loc(command("loc", "Measure how many lines of other code features cost.", reports=False))
    _add_quiet(root)
    return root


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    """Adds `-q` to a parser and those within: it may stand before the command, and after it."""
    parser.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=_QUIET)
    for action in parser._actions:  # There is no public way to ask for them.
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _add_quiet(inner)


def _placed(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds what says where a recipe runs."""
    parser.add_argument("--mesh", metavar="AXIS=SIZE,...", help=_MESH)
    parser.add_argument("--on", metavar="HARDWARE", help=_ON)
    return parser
