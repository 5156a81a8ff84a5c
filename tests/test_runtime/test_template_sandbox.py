"""A chat template is a stranger's program: it must end soon, stay small, and reach nothing."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from runtime.chat.sandbox import SandboxedTemplate
from runtime.chat.template import ChatTemplate
from runtime.errors import ChatTemplateError

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
DATA = {"messages": [{"role": "user", "content": "Hello"}], "text": "aaaa" * 1000}

LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TIME_BOMBS = {
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "silent loops": LOOPS,
    "loops over text": "{% for a in text %}{% for b in text %}{% for c in text %}{% endfor %}{% endfor %}{% endfor %}",
    "loops in a block": "{% set x %}" + LOOPS + "{% endset %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "filters": "{% for i in range(99999) %}{% set x = range(99999)|map('string')|list %}{% endfor %}",
    "power": "{{ 9**999999999 }}",
    "growing numbers": "{% set n = namespace(x=10) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "rounding": "{{ 1.5|round(10**9, 'ceil') }}",
}
DOUBLED = "{%% set n = namespace(x='ab') %%}{%% for i in range(64) %%}%s{%% endfor %%}"
NESTED = "{%% set n = namespace(x='ab') %%}{%% for i in range(40) %%}%s{%% endfor %%}{{ n.x }}"
SIZE_BOMBS = {
    "times": "{{ 'a' * 10**10 }}",
    "list times": "{{ ([[1] * 1000] * 1000) * 1000 }}",
    "output": "{% for i in range(99999) %}" + "word" * 1000 + "{% endfor %}",
    "hidden output": "{% set x %}{% for i in range(99999) %}" + "word" * 2000 + "{% endfor %}{% endset %}",
    "plus": DOUBLED % "{% set n.x = n.x + n.x %}",
    "list plus": DOUBLED.replace("'ab'", "[1]") % "{% set n.x = n.x + n.x %}",
    "tilde": DOUBLED % "{% set n.x = n.x ~ n.x %}",
    "block": DOUBLED % "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}",
    "join": DOUBLED % "{% set n.x = [n.x, n.x]|join %}",
    "join a generator": DOUBLED % "{% set n.x = [n.x, n.x]|map('string')|join %}",
    "join method": DOUBLED % "{% set n.x = ''.join([n.x, n.x]|map('string')) %}",
    "join separator": "{{ range(99999)|join(text) }}",
    "replace": DOUBLED % "{% set n.x = n.x|replace('a', n.x) %}",
    "replace method": DOUBLED % "{% set n.x = n.x.replace('a', n.x) %}",
    "replace mapped": DOUBLED % "{% set n.x = ([n.x]|map('replace', 'a', n.x)|list)[0] %}",
    "percent": DOUBLED % "{% set n.x = '%s%s' % (n.x, n.x) %}",
    "percent names": DOUBLED % "{% set n.x = '%(a)s%(a)s' % {'a': n.x} %}",
    "format filter": DOUBLED % "{% set n.x = '%s%s'|format(n.x, n.x) %}",
    "format method": DOUBLED % "{% set n.x = '{0}{0}'.format(n.x) %}",
    "macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLED % "{% set n.x = f(n.x) %}",
    "list in list": NESTED % "{% set n.x = [n.x, n.x] %}",
    "tuple in tuple": NESTED % "{% set n.x = (n.x, n.x) %}",
    "dict in dict": NESTED % "{% set n.x = {'a': n.x, 'b': n.x} %}",
    "dict call": NESTED % "{% set n.x = dict(a=n.x, b=n.x) %}",
    "views": NESTED.replace("'ab'", "{}") % "{% set n.x = {'a': n.x.items(), 'b': n.x.items()} %}",
    "varargs": "{% macro f() %}{% set n.x = varargs %}{% endmacro %}" + NESTED % "{{ f(n.x, n.x) }}",
    "json": (NESTED % "{% set n.x = [n.x, n.x] %}").replace("{{ n.x }}", "{{ n.x|tojson }}"),
    "deep": NESTED.replace("40", "9999") % "{% set n.x = [n.x] %}",
    "percent width": "{{ '%9999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "format width": "{{ '{:>9999999999}'.format(1) }}",
    "format nested width": "{{ '{:{}}'.format(1, 10**9) }}",
    "center": "{{ 'a'|center(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "tabs": "{{ '\t'.expandtabs(10**10) }}",
    "indent": "{{ text|replace('a', '\n')|indent(10**9) }}",
    "json indent": "{{ messages|tojson(indent=10**10) }}",
    "sum": DOUBLED.replace("'ab'", "[1]") % "{% set n.x = [n.x, n.x]|sum(start=[]) %}",
    "source": "x" * 1_100_000,
}  # fmt: skip


@pytest.mark.parametrize("name", [*TIME_BOMBS, *SIZE_BOMBS])
def test_a_bomb_is_defused(name):
    began = time.monotonic()
    with pytest.raises(ChatTemplateError):
        SandboxedTemplate((TIME_BOMBS | SIZE_BOMBS)[name]).render(DATA, seconds=0.2)
    assert time.monotonic() - began < 5  # most of it may be the start of a new process


MORE_BOMBS = {
    "caller": "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}"
    "{% endmacro %}{{ g() }}",
    "namespaces": "{% for i in range(99999) %}{% for j in range(99999) %}{% set n = namespace() %}{% endfor %}"
    "{% endfor %}",
    "cyclers": "{% for i in range(99999) %}{% set c = cycler(*range(99999)) %}{% endfor %}",
    "joiner": "{% set j = joiner('a' * 10**9) %}{{ j() }}{{ j() }}",
    "precision": "{{ '%.999999999f' % 1.5 }}{{ '{:.999999999f}'.format(1.5) }}",
    "format map": "{{ '{a:999999999}'.format_map({'a': 1}) }}",
    "shift": "{{ 2 ** (2**40) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "wrap": "{{ ('a' * 10**7)|wordwrap(1, true, 'x' * 9999) }}",
    "urls": "{{ ('a.b ' * 10**6)|urlize }}",
    "escapes": "{{ ('<' * 10**8)|e }}",
    "attributes": "{{ {'a': '<' * 10**8}|xmlattr }}",
    "json commas": "{{ [1, 2, 3]|tojson(separators=('a' * 10**9, ':')) }}",
    "groups": "{{ ('a' * 10**8)|groupby(0)|list }}",
    "split": "{{ ('a ' * 10**8).split() }}",
    "translate": "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}",
    "lists summed": "{{ ([[1]] * 10**6)|sum(start=[]) }}",
    "equal": NESTED.replace("40", "60").replace("{{ n.x }}", "{{ n.x == [n.x[0], n.x] }}{{ n.x|string }}")
    % "{% set n.x = [n.x, n.x] %}",
    "lorem": "{{ lipsum(10**8) }}",
    "date": "{{ strftime_now('%Y' * 10**8) }}",
    "raised": "{{ raise_exception('a' * 10**9) }}",
    "filter block": "{% filter upper %}{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}{% endfilter %}",
}


@pytest.mark.parametrize("name", MORE_BOMBS)
def test_a_bomb_of_another_kind_is_defused(name):
    began = time.monotonic()
    with pytest.raises(ChatTemplateError):
        SandboxedTemplate(MORE_BOMBS[name]).render(DATA, seconds=0.2)
    assert time.monotonic() - began < 5


def test_the_first_prompt_of_a_bomb_fails_within_its_time():
    template = ChatTemplate(TIME_BOMBS["macros"])
    began = time.monotonic()
    with pytest.raises(ChatTemplateError, match="did not finish"):
        template.render(DATA["messages"])
    assert time.monotonic() - began < 6.5


def test_nothing_is_learned_from_prompts_without_end():
    shown = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<!--' * 10**6 }}"
    began = time.monotonic()
    assert ChatTemplate(shown).render(DATA["messages"]).startswith("Hello<!--")
    assert time.monotonic() - began < 2


@linux
def test_a_process_stays_below_200_megabytes():
    code = (
        "import resource; from runtime.chat.sandbox import *\n"
        "from runtime.chat import sandbox\n"
        "for text in (\"{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}\", \"{{ [1]|slice(10**9)|list }}\"):\n"
        "    try: SandboxedTemplate(text).render({}, 5)\n"
        "    except ChatTemplateError: pass\n"
        "sandbox._pools[0]._close()\n"
        "assert 100 << 10 < resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 200 << 10"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_limits_name_themselves():
    with pytest.raises(ChatTemplateError, match=r"did not finish within 0\.1 seconds"):
        SandboxedTemplate(TIME_BOMBS["silent loops"]).render({}, seconds=0.1)
    with pytest.raises(ChatTemplateError, match="needs more than is allowed: 160 MiB of memory"):
        SandboxedTemplate("{{ text * (2**30) }}").render(DATA, seconds=5)


def test_one_long_operation_ends_in_time_too():
    template = SandboxedTemplate("{{ (text * 5000)|unique|list|length }}")
    began = time.monotonic()
    with pytest.raises(ChatTemplateError, match="did not finish"):
        template.render(DATA, seconds=0.3)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace(__class__=1) }}",
        "{{ (5).to_bytes(10**9) }}",
        "{{ lipsum(10**9) }}",
        "{{ environment }}{{ environment.tick(-10**9) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'x' %}",
    ],
)
def test_nothing_is_reached(escape):
    try:
        text = SandboxedTemplate(escape).render(DATA, seconds=1)
    except ChatTemplateError:
        text = ""
    assert text == ""


VALUES = [
    "{% for m in messages %}{{ m.content.replace('l', 'L') }}{{ '\ta'.expandtabs(4) }}{% endfor %}",
    "{% set x %}{{ text.replace('a', 'b')[:9] }}{% endset %}{{ x|upper }}",
    "{{ '{} in 2024'.format(1) }}{{ 'in %d of 2024' % 5 }}{{ '%s 2024'|format('in') }}{{ '{:>1000}'.format('x') }}",
    "{{ dict.fromkeys(['a', 'b'], 1) }}{{ dict(a=1, **{'b': 2}) }}{{ dict([('a', 1)]) }}",
    "{{ range(7)|batch(3, 'x')|list }}{{ range(7)|slice(3)|map('list')|list }}{{ range(9)|list|random|string|length }}",
    "{{ text|wordwrap(40) }}{{ '<b>a</b>  c'|striptags }}{{ {'b': 1, 'a': [2]}|pprint }}{{ 5000|filesizeformat }}",
    "{{ 'see http://a.b'|urlize }}{{ {'a': 1}|xmlattr }}{{ '<'|e }}{{ '<'|safe }}{{ 'a b'|urlencode }}{{ 'x'|d }}",
    "{{ messages|map(attribute='role')|join(',') }}{{ messages|groupby('role')|list }}{{ [1, 2, 3]|sum }}",
    "{{ [3, 1]|sort }}{{ [1, 1]|unique|list }}{{ 'a'.zfill(3) }}{{ 'a,b'.split(',') }}{{ 'ß'.casefold() }}",
    "{{ 'a'.encode().hex() }}{{ 'abc'.translate({97: 'x'}) }}{{ 'a-b'.maketrans('a', 'b') }}{{ (255).bit_length() }}",
    "{{ 1 is odd }}{{ 'a' is lower }}{{ none is none }}{{ x is defined }}{{ 3 is divisibleby 3 }}{{ [] is sequence }}",
    "{{ 'a' is filter }}{{ 'upper' is filter }}{{ 1 is eq 1 }}{{ 1 is in [1] }}{{ 1.0 is float }}",
    "{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}{{ [n] }}",
    "{% for i in range(9) %}{% if i == 5 %}{% break %}{% elif i is odd %}{% continue %}{% endif %}{{ i }}{% endfor %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ caller() if caller }}{% endmacro %}{{ f(1, 3, 4) }}"
    "{% call f(1) %}x{% endcall %}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.index }}{{ loop.last }}{{ loop.cycle(1, 2) }}{% endfor %}",
    "{% set j = joiner('|') %}{% for i in [1, 2] %}{{ j() }}{{ i }}{% endfor %}{{ cycler('a', 'b').next() }}",
    "{% filter upper %}a{% endfilter %}{% with a = 1 %}{{ a }}{% endwith %}{% raw %}{{ }}{% endraw %}",
    "{% generation %}said{% endgeneration %}{% autoescape true %}{{ '<' }}{% endautoescape %}{{ 'a' ~ 1 ~ none }}",
    "{{ messages|tojson }}{{ {'ü': '<\\''}|tojson(indent=2, sort_keys=true) }}{{ [1]|tojson(separators=(',', ':')) }}",
    "{{ strftime_now('%Y') }}{{ 7 // 2 }}{{ 2 ** 10 }}{{ -7 % 3 }}{{ 1 / 3 }}{{ text[1:9:2] }}",
    "{{ 'a\nb'|indent(2, true) }}{{ 'abc def'|truncate(5) }}{{ 'x'|center(5) }}{{ 1.55|round(1) }}{{ [1, 2]|last }}",
    "{{ {'get': 1}.get('get') }}{{ {'x': 5}['get']('x') }}{{ messages[0]['items']()|list }}",
    "{{ {'keys': 1}.keys()|list }}{{ {'keys': 1}['keys'] }}{{ messages[0].items()|list }}{{ text.index('a') }}",
    "{% for i in ['a b'] %}{{ i.split()[0].upper() }}{{ loop.nextitem is defined }}{{ loop.depth }}{{ i['strip']() }}"
    "{{ messages[0]['none'] is defined }}{{ messages[0].none is defined }}{{ loop.changed(i) }}{% endfor %}",
    "{% set n = namespace(a=1, keys=2) %}{{ n.a }}{{ n.keys }}{{ n.b is defined }}{{ n['a'] }}{{ 'x'.y is defined }}",
    "{{ missing }}{{ missing|default('x') }}{{ messages[0].missing is undefined }}{{ [1, [2]] == [1, [2]] }}",
]


@pytest.mark.parametrize("source", VALUES)
def test_values_are_those_of_transformers(source):
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    expected = utilities._compile_jinja_template(source).render(**DATA)
    assert SandboxedTemplate(source).render(DATA, seconds=5) == expected


def workers():
    """Ids of the processes that this one has started to render templates."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            ours = int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid()
            if ours and b"template_worker" in (status.parent / "cmdline").read_bytes():
                found.append(int(status.parent.name))
    return found


@linux
def test_a_killed_process_is_replaced():
    template = SandboxedTemplate("{{ text[:2] }}")
    assert template.render(DATA, seconds=5) == "aa"
    for child in workers():
        os.kill(child, signal.SIGKILL)
    assert template.render(DATA, seconds=5) == "aa"


@linux
def test_a_large_parent_keeps_its_process():
    code = (
        "x = b'x' * (300 << 20); from runtime.chat import sandbox as p; from runtime.chat.sandbox import *\n"
        "t = SandboxedTemplate('{{ x }}'); first = p._pools[0]._idle[0]; t.render({'x': 5}, 5)\n"
        "assert p._pools[0]._idle == [first]"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@linux
def test_the_process_knows_no_secret_and_ignores_ctrl_c(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    template = SandboxedTemplate("{{ text[:2] }}")
    for child in workers():
        os.kill(child, signal.SIGKILL)  # the next one starts beside the key
    template.render(DATA, seconds=5)
    children = workers()
    for child in children:
        environment = Path(f"/proc/{child}/environ").read_text()
        assert "KEY" not in environment
        assert "HOME=" not in environment
        os.kill(child, signal.SIGINT)
    assert template.render(DATA, seconds=5) == "aa"
    assert set(workers()) == set(children)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_has_processes_of_its_own():
    code = (
        "import os, sys; from runtime.chat.sandbox import SandboxedTemplate; t = SandboxedTemplate('{{ x }}')\n"
        "pid = os.fork()\n"
        "good = all(t.render({'x': f'{pid} {i}'}, 5) == f'{pid} {i}' for i in range(200))\n"
        "os._exit(not good) if pid == 0 else sys.exit(os.waitpid(pid, 0)[1] or not good)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_without_processes_a_trusted_template_is_rendered_here():
    code = (
        "import os, sys; from runtime.chat.sandbox import SandboxedTemplate; sys.executable = ''\n"
        "try: SandboxedTemplate('{{ x }}')\n"
        "except Exception as error: assert 'ONNXLM_TRUST_CHAT_TEMPLATES=1' in str(error)\n"
        "else: sys.exit(2)\n"
        "os.environ['ONNXLM_TRUST_CHAT_TEMPLATES'] = '1'\n"
        "assert SandboxedTemplate('{{ x }}').render({'x': 5}, seconds=1) == '5'"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_templates_render_side_by_side():
    template = SandboxedTemplate("{% for i in range(2000) %}{{ i }}{% endfor %}{{ name }}")
    results = {}
    threads = [
        threading.Thread(target=lambda n=n: results.setdefault(n, template.render({"name": n}, 5))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[n].endswith(f"1999{n}") for n in range(8))


def test_a_long_conversation_is_no_bomb():
    messages = [{"role": "user", "content": "word " * 400}] * 2000
    template = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] | trim ~ '\n' }}{% endfor %}"
    assert len(SandboxedTemplate(template).render({"messages": messages}, 5)) == 2000 * (6 + 1999 + 1)
