# SPDX-License-Identifier: Apache-2.0
"""Chat templates: rendered as transformers does, and what a template cannot do."""

import json
import os
import subprocess
import sys
import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from dovetail.config import ConfigError
from dovetail.data import ChatTemplate, HuggingFaceTokenizer

CONFIG = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, "unk_token": "<unk>"}

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " What is <x> 2 + 2?\n\n"},
    {"role": "assistant", "content": "4 é 🐋", "thinking": "2, 3, 4"},
    {"role": "user", "content": 'Why "so"? {{ 7 * 7 }}', "name": None},
]

TEMPLATES = {
    "chatml": """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "llama 3": """\
{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + \
message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "mistral": """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}\
{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for message in rest %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}{% if message['role'] == 'user' %}
{% if loop.first and system is defined %}{% set content = system + '\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}
{{ '[INST] ' + content + ' [/INST]' }}{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}""",
    "gemma": """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
""",
    "namespace and loop controls": """\
{% set ns = namespace(last=-1, count=0) %}
{% for message in messages[::-1] %}
    {% if message.role == 'user' %}
        {% set ns.last = (messages | length - 1) - loop.index0 %}
        {% break %}
    {% endif %}
{% endfor %}
{% for message in messages %}
    {% if message.role == 'system' %}{% continue %}{% endif %}
    {% set ns.count = ns.count + 1 %}
[{{ loop.index0 }}{{ '*' if loop.index0 == ns.last }}] {{ message.content }}
{% endfor %}
count={{ ns.count }} pad={{ pad_token is defined }} unk={{ unk_token }}
""",
    "tojson and tools": """\
{{ messages | tojson }}
{{ {'b': '<é&>', 'a': [1, none, true]} | tojson(indent=2, sort_keys=true) }}
{{ messages[0] | tojson(ensure_ascii=true, separators=(',', ':')) }}
{{ 'tools' if tools is not none else 'no tools' }} {{ documents is none }} {{ tools is defined }}
{%- for key, value in messages[0].items() %} {{ key }}={{ value | length }}{% endfor %}
""",
    "dates and macros": """\
{%- macro turn(role, text) -%}
<{{ role }}>{{ text | trim | replace('\\n', ' ') }}</{{ role }}>
{%- endmacro -%}
Cutting Knowledge Date: December 2023
{% if strftime_now is defined %}Today: {{ strftime_now('%Y') | int > 2000 }} {{ strftime_now('100%%') }}{% endif %}

{% for message in messages %}{{ turn(message.role, message['content']) }}{% endfor %}
{{ dict(a=1).a }} {{ dict.fromkeys('ab', 2) }} {{ '%s-%d' | format('x', 3) }} {{ range(3) | list }}
""",
    "generation and thinking": """\
{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}{% if message.reasoning_content %}<think>{{ message.thinking }}</think>{% endif %}
{{ message.content }}{{ eos_token }}
{% endgeneration %}
{% else %}
{{ message.content.split('<x>')[-1].strip('\\n') | upper }}{{ message.name is defined }}
{% endif %}
{% endfor %}""",
}

# What transformers 5 makes of them, with the generation prompt.
EXPECTED = {
    "chatml": (
        "<|im_start|>system\n"
        "Be brief.<|im_end|>\n"
        "<|im_start|>user\n"
        " What is <x> 2 + 2?\n"
        "\n"
        "<|im_end|>\n"
        "<|im_start|>assistant\n"
        "4 é 🐋<|im_end|>\n"
        "<|im_start|>user\n"
        'Why "so"? {{ 7 * 7 }}<|im_end|>\n'
        "<|im_start|>assistant\n"
    ),
    "llama 3": (
        "<s><|start_header_id|>system<|end_header_id|>\n"
        "\n"
        "Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
        "\n"
        "What is <x> 2 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
        "\n"
        "4 é 🐋<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
        "\n"
        'Why "so"? {{ 7 * 7 }}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n'
        "\n"
    ),
    "mistral": (
        '<s>[INST] Be brief.\n\n What is <x> 2 + 2?\n\n [/INST] 4 é 🐋</s>[INST] Why "so"? {{ 7 * 7 }} [/INST]'
    ),
    "gemma": (
        "<s><start_of_turn>user\n"
        "Be brief.\n"
        "\n"
        "What is <x> 2 + 2?\n"
        "    <end_of_turn>\n"
        "<start_of_turn>model\n"
        "4 é 🐋\n"
        "    <end_of_turn>\n"
        "<start_of_turn>user\n"
        'Why "so"? {{ 7 * 7 }}\n'
        "    <end_of_turn>\n"
        "<start_of_turn>model\n"
    ),
    "namespace and loop controls": (
        '[1]  What is <x> 2 + 2?\n\n\n[2] 4 é 🐋\n[3*] Why "so"? {{ 7 * 7 }}\ncount=3 pad=False unk=<unk>'
    ),
    "tojson and tools": (
        '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": " What is <x> 2 + 2?\\n'
        '\\n"}, {"thinking": "2, 3, 4", "role": "assistant", "content": "4 é 🐋", "reasoning_content": "2,'
        ' 3, 4"}, {"role": "user", "content": "Why \\"so\\"? {{ 7 * 7 }}"}]\n'
        "{\n"
        '  "a": [\n'
        "    1,\n"
        "    null,\n"
        "    true\n"
        "  ],\n"
        '  "b": "<é&>"\n'
        "}\n"
        '{"role":"system","content":"Be brief."}\n'
        "no tools True True role=6 content=9"
    ),
    "dates and macros": (
        "Cutting Knowledge Date: December 2023\n"
        "Today: True 100%\n"
        "<system>Be brief.</system><user>What is <x> 2 + 2?</user><assistant>4 é 🐋</assistant><user>Why "
        "\"so\"? {{ 7 * 7 }}</user>1 {'a': 2, 'b': 2} x-3 [0, 1, 2]"
    ),
    "generation and thinking": (
        'BE BRIEF.False\n 2 + 2?False\n<think>2, 3, 4</think>4 é 🐋</s>\nWHY "SO"? {{ 7 * 7 }}False\n'
    ),
}


def files_of(template: str | None, **config) -> dict[str, bytes]:
    files = {"tokenizer_config.json": json.dumps(CONFIG | config).encode()}
    return files if template is None else files | {"chat_template.jinja": template.encode()}


def rendered(template: str, messages=MESSAGES[:1], **kwargs) -> str:
    return ChatTemplate(files_of(template), **kwargs).render(messages)


def error_of(template: str, messages=MESSAGES[:1], **kwargs) -> str:
    with pytest.raises(ConfigError) as e:
        rendered(template, messages, **kwargs)
    return str(e.value)


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_are_those_of_transformers(name):
    assert rendered(TEMPLATES[name], MESSAGES) == EXPECTED[name]


def test_generation_prompt_can_be_left_out():
    template = ChatTemplate(files_of(TEMPLATES["chatml"]))
    text = template.render(MESSAGES)
    assert (
        template.render(MESSAGES, add_generation_prompt=False) == text.removesuffix("<|im_start|>assistant\n") != text
    )


def test_tools_and_options_reach_the_template_and_change_nothing_else():
    template = ChatTemplate(files_of("{{ tools | tojson }} {{ mood }} {{ messages | length }} {{ eos_token }}"))
    options = {"mood": "calm", "messages": "none", "tools": "none", "eos_token": "none"}
    assert template.render(MESSAGES, tools=[{"name": "é"}], options=options) == '[{"name": "é"}] calm 4 </s>'
    assert template.render(MESSAGES) == "null  4 </s>"


def test_dates_are_those_of_this_process(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")  # The process that renders sees no environment.
    time.tzset()
    try:
        before = time.strftime("%Y-%m-%d %H:%M")
        found = rendered("{{ strftime_now('%Y-%m-%d %H:%M') }}")
        assert before <= found <= time.strftime("%Y-%m-%d %H:%M")
    finally:
        monkeypatch.undo()
        time.tzset()


# Where a template comes from.


def test_template_may_be_in_the_config():
    assert ChatTemplate(files_of(None, chat_template="{{ eos_token }}!")).render(MESSAGES) == "</s>!"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert ChatTemplate(files_of(None, chat_template=several)).render(MESSAGES) == "yes"
    assert ChatTemplate(files_of("file", chat_template="config")).render(MESSAGES) == "file"


def test_file_alone_is_enough_and_tokens_that_are_not_named_are_nothing():
    assert ChatTemplate({"chat_template.jinja": b"[{{ bos_token }}]"}).render(MESSAGES) == "[]"
    assert ChatTemplate(files_of("[{{ bos_token }}]", bos_token=None)).render(MESSAGES) == "[]"


def test_no_template_says_what_to_do():
    for files in ({}, files_of(None), files_of(None, chat_template=None)):
        with pytest.raises(ConfigError) as e:
            ChatTemplate(files)
        assert str(e.value) == (
            "the tokenizer has no chat template: neither chat_template.jinja nor a chat_template in "
            "tokenizer_config.json.\n"
            "  If the model has one, name its files in `beside` of the tokenizer. If it has none, use a prompt."
        )


@pytest.mark.parametrize(
    "files, message",
    [
        ({"tokenizer_config.json": b"{"}, "is not JSON: "),
        ({"tokenizer_config.json": b"[" * 100_000}, "is not JSON: "),
        ({"tokenizer_config.json": b"\xff"}, "is not JSON: "),
        ({"tokenizer_config.json": b"[]"}, "is a list, expected a JSON object."),
        ({"chat_template.jinja": b"\xff"}, "is not text in UTF-8 (byte 0)."),
        (files_of(None, chat_template=3), "chat_template: is 3, expected text, or a list of"),
        (files_of(None, chat_template=["x"]), "chat_template: is ['x'], expected text"),
        (files_of(None, chat_template=[{"name": "rag"}]), "chat_template: has no template 'default'. It has: 'rag'."),
        (files_of(None, chat_template=[{"name": "default"}]), "chat_template 'default': is None, expected text"),
        (files_of(None, chat_template="x", bos_token=3), "bos_token: is 3, expected text, or an object with"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_one_error(files, message):
    with pytest.raises(ConfigError) as e:
        ChatTemplate(files)
    assert str(e.value).startswith(f"{next(reversed(files))}: {message}")


def test_messages_that_are_none_are_refused():
    for messages, message in (([], "a chat has no messages"), (["hi"], "a message of a chat is 'hi', expected a role")):
        assert error_of("x", messages).startswith(message)
    assert "has something else than texts in it" in error_of("x", [{"role": "user", "content": b"bytes"}])


# What a template cannot do.


@pytest.mark.parametrize(
    "template, why",
    [
        ("\n{{ ''.__class__.__mro__ }}", ", line 2: *SecurityError: access to attribute '__class__' of 'str'"),
        ("{{ cycler.__init__.__globals__ }}", ", line 1: *SecurityError: access to attribute '__init__'"),
        ("{{ '{0.__class__}'.format(3).x.y }}", ", line 1: *Error"),
        ("{{ messages.append(3) }}", ", line 1: *SecurityError: access to attribute 'append' of 'list'"),
        ("{% set ns = namespace(_x=1) %}", ", line 1: *SecurityError: a namespace cannot have the attribute '_x'"),
        ("{% import 'os' as os %}", ", line 1: *TemplateError: it asks for another template, 'os': a chat"),
        ("{% include '/etc/passwd' %}", ", line 1: *TemplateError: it asks for another template, '/etc/passwd'"),
        ("a\n{{ 3 | nope }}", ", line 2: *TemplateAssertionError: No filter named 'nope'"),
        ("{% if %}", ", line 1: *TemplateSyntaxError: Expected an expression"),
        ("{{ x.y }}", ", line 1: *UndefinedError: 'x' is undefined"),
        ("{{ 1 / 0 }}", ", line 1: *ZeroDivisionError: division by zero"),
        ("{{ 'a' * 10**10 }}", ", line 1: *it needs too much memory"),
        ("{{ '%1000000000d' % 3 }}", ", line 1: *it needs too much memory"),
        ("{{ 'a' * 10**8 }}", ": *it makes 100,000,000 characters, expected at most 16,777,216"),
        ("{{ '\\ud800' }}", ": *UnicodeEncodeError: "),
        ("{{ range(10**9) | list }}", ", line 1: *OverflowError: Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ", line 1: *it is nested too deeply"),
        ("{{" + "(" * 100_000, ": *it is nested too deeply"),
    ],
)  # fmt: skip
def test_template_that_goes_too_far_is_one_error_with_the_reason(template, why):
    place, reason = why.split("*")
    message = error_of(template)
    start = f"chat_template.jinja{place}the chat template cannot be rendered: "
    assert message.startswith(start)
    assert reason in message.removeprefix(start)
    assert message.endswith(".\n  Use a prompt instead of a chat, or another template.")


def test_messages_that_a_template_refuses_are_an_error_with_its_words():
    assert error_of(TEMPLATES["mistral"], MESSAGES[2:]) == (
        "chat_template.jinja, line 3: the chat template cannot be rendered: it does not take these messages: "
        "Conversation roles must alternate user/assistant/user/assistant/...\n  Change them."
    )
    assert "\x1b" not in error_of("{{ raise_exception('red \x1b[31m') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (10**9) ** (10**9) }}",
    ],
)
def test_template_that_does_not_end_is_ended(template):
    start = time.perf_counter()
    assert "cannot be rendered: it takes more than 1 seconds.\n" in error_of(template, seconds=1)
    assert time.perf_counter() - start < 12


def test_jinja_is_imported_in_no_other_process():
    program = "import sys, dovetail.data; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "False\n"


def test_python_that_cannot_be_started_is_one_error(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert "which cannot be started: " in error_of("x")
    (tmp_path / "python").write_text("#!/bin/sh\necho No module named jinja2 [$SECRET] >&2\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("SECRET", "key")  # It does not see the environment.
    assert "cannot be rendered: its process ended with 3, No module named jinja2 [].\n" in error_of("x")


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from(["{{", "}}", "{%", "%}", " for x in messages ", "endfor", "x", ".", "|", "'", "(", "é"]))
)
def test_any_text_is_rendered_or_refused(parts):
    try:
        rendered("".join(parts))
    except ConfigError as e:
        message = str(e)
        assert message.startswith("chat_template.jinja")


# With a tokenizer.


def test_special_tokens_of_a_chat_are_one_id_each(tmp_path):
    vocabulary = {token: i for i, token in enumerate(["?", "user", "assistant", "hi", "<", "|", ">", "im_start", "\n"])}
    library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES["chatml"])
    config = HuggingFaceTokenizer.Config(file=str(tmp_path / "tokenizer.json"), beside=("chat_template.jinja",))
    tokenizer: HuggingFaceTokenizer = config.build()
    chat = ChatTemplate(tokenizer.files()).render([{"role": "user", "content": "hi"}])
    start, end = library.token_to_id("<|im_start|>"), library.token_to_id("<|im_end|>")
    assert tokenizer.encode_with_special(chat).tolist() == [start, 1, 3, end, start, 2]
    assert start not in tokenizer.encode(chat)


def test_processes_started_ahead_render_the_same_and_end():
    files = {"chat_template.jinja": b"{% for m in messages %}{{ m.content }}{% endfor %}"}
    template = ChatTemplate(files, ahead=2)
    waiting = list(template._waiting)
    assert len(waiting) == 2
    waiting[0].kill()  # One that has died is not used.
    waiting[0].wait()
    chats = [[{"role": "user", "content": f"number {i}"}] for i in range(4)]
    assert [template.render(chat) for chat in chats] == [ChatTemplate(files).render(chat) for chat in chats]
    assert len(template._waiting) == 2
    last = list(template._waiting)
    template.close()
    assert all(process.returncode is not None for process in [*waiting, *last])
    assert template.render(chats[0]) == "number 0", "it goes on without them"
    assert not template._waiting
