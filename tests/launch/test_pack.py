# SPDX-License-Identifier: Apache-2.0
"""`pack`: what a job takes along, and what it must not: keys, tokens, the environment."""

import json
import re
import secrets
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.cli import _code
from dovetail.cli._code import load_file, own_files
from dovetail.cli._job import _in_bundle, _told
from dovetail.config import ConfigError
from dovetail.launch import _pack as packing
from dovetail.launch import pack
from dovetail.launch._pack import check_no_secret, constraints, git_state

PACKAGE = Path(dovetail.__file__).parent
ARGUMENTS = ("train", "tiny-lm", "steps=100")

# Made up, of the shapes that those who give them out say they have. In pieces: this file is looked through as well.
KEYS = {
    "a private key": "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEow",
    "a private key of no kind": "-----BEGIN " + "PRIVATE KEY-----\nMIIEow",
    "AWS": "AKIA" + "Q3EGUZ7XVB4TJN2M",
    "Hugging Face": "hf_" + "kQzVbNwXcRtYuJmHgFdSaPoLiEeWqTr",
    "GitHub": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "GitHub, for some repositories": "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789",
    "OpenAI": "sk-" + "proj-abcDEF123456ghiJKL789",
    "Slack": "xoxb-" + "123456789012-abcdefghijkl",
    "Google": "AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q",
    "GitLab": "glpat-" + "abcDEF123456ghiJKL78",
}


@pytest.fixture(scope="module")
def bundle():
    return pack('{"steps": 100}', ARGUMENTS, {})


@pytest.fixture
def small(tmp_path_factory, monkeypatch):
    """A package of nothing, for what does not depend on what is in it."""
    package = tmp_path_factory.mktemp("installed") / "dovetail"
    package.mkdir()
    monkeypatch.setattr(packing, "_PACKAGE", package)
    return package


def git(directory, *arguments):
    who = ["-c", "user.name=me", "-c", "user.email=me@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", directory, *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def about(found):
    return json.loads(found.files["about.json"])


def test_its_code_is_the_source_of_the_package_without_bytecode(bundle):
    there = {path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()}
    wanted = {f"code/{path}": path for path in there if path.suffix != ".pyc"}
    code = {name: data for name, data in bundle.files.items() if name.startswith("code/")}
    assert code.keys() == wanted.keys()
    assert all(data == (PACKAGE.parent / wanted[name]).read_bytes() for name, data in code.items())


def test_links_in_the_package_are_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("not ours")
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    for name in ("a.py", "py.typed", "__pycache__/a.cpython-311.pyc", "b.pyc"):
        (tmp_path / "package" / name).write_text("")
    (tmp_path / "package" / "link").symlink_to(tmp_path / "elsewhere")
    assert {path.name for path in packing._sources(tmp_path / "package")} == {"a.py", "py.typed"}


def test_it_says_what_runs_with_which_python_and_which_commit(bundle):
    found = about(bundle)
    assert found["arguments"] == [*ARGUMENTS]
    assert found["dovetail"] == dovetail.__version__
    assert found["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found["git"] in ({}, {"dovetail": git_state(PACKAGE)})
    assert bundle.files["config.json"] == b'{"steps": 100}\n'


def test_it_is_made_of_nothing_else(bundle):
    others = {name for name in bundle.files if not name.startswith("code/dovetail/")}
    assert others == {"about.json", "config.json", "constraints.txt"}


def test_constraints_are_names_and_versions_of_what_is_installed_and_nothing_of_where(bundle):
    lines = bundle.files["constraints.txt"].decode().splitlines()
    found = dict(line.split("==") for line in lines)
    assert lines == sorted(lines)
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.+!]+", line) for line in lines)
    assert {"jax", "jaxlib", "numpy", "optax"} <= found.keys()
    assert not {"dovetail", "pytest", "ruff", "pip"} & found.keys()  # Not ours to install; not what a run needs.
    assert all(metadata.version(name) == version for name, version in found.items())


def test_all_that_is_needed_is_listed_that_is_installed():
    found = {line.partition("==")[0] for line in constraints()}
    installed = {packing._normal(each.metadata["Name"]) for each in metadata.distributions()}
    for name in found:
        for text in metadata.requires(name) or ():
            need = packing._normal(re.split(r"[^A-Za-z0-9._-]", text)[0])
            assert "extra ==" in text or need not in installed or need in found, (name, text)


def test_what_the_users_files_import_is_listed_and_what_imports_that(tmp_path, small):
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\nfrom hypothesis import given\nimport yaml.nodes as n\nfrom . import x\nimport nowhere\n"
    )
    lines = pack("{}", ARGUMENTS, {"0/mine.py": file}).files["constraints.txt"].decode().split()
    added = {line.partition("==")[0] for line in {*lines} - {*constraints()}}
    assert "hypothesis" in added
    assert "sortedcontainers" in added  # Of hypothesis.
    assert any(line == f"pyyaml=={metadata.version('pyyaml')}" for line in lines)
    assert "pytest" not in added


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_in_a_file_is_refused_with_its_line_and_no_more_of_it_than_its_first_letters(tmp_path, kind, small):
    file, key = tmp_path / "mine.py", KEYS[kind]
    file.write_text(f'"""Mine."""\n\nKEY = """{key}"""\n')
    with pytest.raises(ConfigError) as raised:
        pack("{}", ARGUMENTS, {"0/mine.py": file})
    said = str(raised.value)
    assert said == (
        f"launch: {file}, line 3, has what looks like a key or a token ({key[:4]}...), and a job's bundle must have "
        "none.\n  Have the hosts read it from a file or from their environment."
    )
    assert key[:6] not in said


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_in_the_config_or_in_an_override_is_refused(kind, small):
    key = KEYS[kind]
    for config, arguments, where in (
        (json.dumps({"token": key}), ARGUMENTS, "the config has"),
        ("{}", (*ARGUMENTS, f"input.password={key}"), "the overrides have"),
    ):
        with pytest.raises(ConfigError) as raised:
            pack(config, arguments, {})
        assert f"launch: {where} what looks like a key or a token ({key[:4]}...)" in str(raised.value)
        assert key[:6] not in str(raised.value)


def test_a_key_in_the_package_itself_is_refused(small):
    (small / "hub.py").write_text(f"TOKEN = '{KEYS['Hugging Face']}'")
    with pytest.raises(ConfigError, match=r"launch: code/dovetail/hub\.py, line 1, has what looks like .* \(hf_k\.\."):
        pack("{}", ARGUMENTS, {})
    (small / "hub.py").rename(small / ".env")
    with pytest.raises(ConfigError, match=r"code/dovetail/\.env looks like a secret by its name"):
        pack("{}", ARGUMENTS, {})


@pytest.mark.parametrize(
    "name",
    [
        ".env",
        ".env.production",
        "server.pem",
        "server.key",
        "id_rsa",
        "id_ed25519.pub",
        ".netrc",
        "_netrc",
        ".pypirc",
        "secret.json",
        "secrets.yaml",
        "CREDENTIALS.json",
        "token",
        ".token",
        "password.txt",
        "apikeys.py",
        "api_key.py",
        "wandb_api_key.txt",
        "hub_token.py",
    ],
)
def test_a_file_with_the_name_of_a_secret_is_refused_whatever_is_in_it(tmp_path, name, small):
    (tmp_path / name).write_text("")
    with pytest.raises(ConfigError) as raised:
        pack("{}", ARGUMENTS, {f"0/{name}": tmp_path / name})
    assert str(raised.value) == (
        f"launch: {tmp_path / name} looks like a secret by its name, and a job's bundle must have none.\n"
        "  Give it another name if it is none; else have the hosts read it where they are."
    )


@pytest.mark.parametrize("name", ["tokens.py", "tokenizer.py", "_tokens.py", "keys.py", "environment.py", "run.py"])
def test_names_that_only_resemble_those_of_secrets_are_not_refused(name):
    check_no_secret(name, b"")


@given(st.text("abcdefghijklmnopqrstuvwxyz_-= .(){}[]'\"\n0123456789", max_size=300))
def test_plain_text_of_small_letters_is_refused_only_for_what_begins_like_a_key(text):
    begins = re.search(r"hf_|gh[pousr]_|github_pat_|sk-|xox[abprs]-|glpat-", text)
    if begins is None:
        check_no_secret("a.py", text.encode())


@given(
    st.sampled_from(sorted(KEYS)), st.sampled_from(["", " ", "\n", '"', "=", "x = '"]), st.sampled_from(["", "'", "\n"])
)
def test_a_key_is_found_whatever_is_around_it(kind, before, after):
    text = f"# A line.\n{before}{KEYS[kind]}{after}"
    with pytest.raises(ConfigError, match=rf"line {text.count(chr(10), 0, text.index(KEYS[kind])) + 1}, has"):
        check_no_secret("a.py", text.encode())


def test_nothing_of_the_environment_enters(monkeypatch, tmp_path):
    hidden = secrets.token_hex(20)
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DOVETAIL_TOKEN", "WANDB_API_KEY", "JAX_PLATFORMS_X", "MINE"):
        monkeypatch.setenv(name, hidden)
    (tmp_path / "mine.py").write_text("import os\nTOKEN = os.environ.get('HF_TOKEN')\n")
    found = pack("{}", ARGUMENTS, {"0/mine.py": tmp_path / "mine.py"})
    everything = b"\0".join([*found.files.values(), *(name.encode() for name in found.files)])
    assert hidden.encode() not in everything
    assert str(Path.home()).encode() not in found.files["about.json"] + found.files["constraints.txt"]


@pytest.fixture
def loads(monkeypatch):
    """Forgets what a test has loaded."""
    before = dict(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(_code, "_files", {})
    yield
    for name in sys.modules.keys() - before.keys():
        if name.startswith("packed_"):
            del sys.modules[name]


def test_a_file_of_the_user_and_those_it_imports_beside_it_stand_to_each_other_as_they_did(tmp_path, loads, small):
    (tmp_path / "packed_parts").mkdir()
    (tmp_path / "packed_own.py").write_text("import packed_beside, packed_parts.inner\n")
    (tmp_path / "packed_beside.py").write_text("RATIO = 2\n")
    (tmp_path / "packed_parts" / "__init__.py").write_text("")
    (tmp_path / "packed_parts" / "inner.py").write_text("X = 1\n")
    (tmp_path / "packed_unused.py").write_text("import nothing\n")
    load_file(tmp_path / "packed_own.py")
    user = _in_bundle(own_files())
    found = pack("{}", ARGUMENTS, {inside: path for path, inside in user.items()})
    own = {name: data.decode() for name, data in found.files.items() if name.startswith("user/")}
    assert own == {
        "user/0/packed_own.py": "import packed_beside, packed_parts.inner\n",
        "user/0/packed_beside.py": "RATIO = 2\n",
        "user/0/packed_parts/__init__.py": "",
        "user/0/packed_parts/inner.py": "X = 1\n",
    }
    assert _told(f"{tmp_path}/packed_own.py:run", user) == "{bundle}/user/0/packed_own.py:run"


def test_a_key_in_a_file_that_is_only_imported_is_refused(tmp_path, loads, small):
    (tmp_path / "packed_own.py").write_text("import packed_beside\n")
    (tmp_path / "packed_beside.py").write_text(f"KEY = '{KEYS['AWS']}'\n")
    load_file(tmp_path / "packed_own.py")
    user = _in_bundle(own_files())
    with pytest.raises(ConfigError, match=r"packed_beside\.py, line 1, has what looks like a key .*AKIA\.\.\."):
        pack("{}", ARGUMENTS, {inside: path for path, inside in user.items()})


def test_the_state_in_git_says_the_commit_and_what_is_changed(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None  # Nothing is committed.
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    clean = {"commit": commit, "dirty": False, "diff": ""}
    (tmp_path / "ignored").write_text("x")
    assert git_state(tmp_path) == clean

    (tmp_path / "new.py").write_text("")
    assert git_state(tmp_path) == {**clean, "dirty": True}
    (tmp_path / "new.py").unlink()

    (tmp_path / "a.py").write_text("a = 2\n")
    changed = git_state(tmp_path)
    assert changed is not None
    assert (changed["commit"], changed["dirty"]) == (commit, True)
    assert re.fullmatch("[0-9a-f]{16}", str(changed["diff"]))
    git(tmp_path, "add", "a.py")
    assert git_state(tmp_path) == changed  # Staged or not.
    (tmp_path / "a.py").write_text("a = 3\n")
    assert git_state(tmp_path) != changed
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", "a.py")
    assert git_state(tmp_path) == clean


def test_a_place_is_told_the_same_by_its_relative_path(tmp_path, monkeypatch):
    (tmp_path / "inside").mkdir()
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    (tmp_path / "inside" / "new.py").write_text("")
    monkeypatch.chdir(tmp_path)
    found = git_state(Path("inside"))
    assert found is not None
    assert found["dirty"]
    assert found == git_state(tmp_path / "inside")


def test_the_users_repository_is_told_beside_dovetails(tmp_path, small):
    (tmp_path / "mine.py").write_text("X = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    found = about(pack("{}", ARGUMENTS, {"0/mine.py": tmp_path / "mine.py"}))["git"]
    assert found["user/0/mine.py"] == {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False, "diff": ""}


def test_without_git_nothing_is_told_of_it(tmp_path, monkeypatch):
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", str(tmp_path))  # There is no git.
    assert git_state(PACKAGE) is None
    assert about(pack("{}", ARGUMENTS, {}))["git"] == {}
