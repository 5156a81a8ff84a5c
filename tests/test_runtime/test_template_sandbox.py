"""A chat template is a stranger's program: it must end soon, stay small, and reach nothing."""

import threading
import time
import tracemalloc

import pytest

from runtime.chat.sandbox import SandboxedTemplate
from runtime.errors import ChatTemplateError

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
    "hidden output": "{% set x %}{% for i in range(99999) %}" + "word" * 1000 + "{% endfor %}{% endset %}",
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
    "center method": "{{ 'a'.center(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "tabs": "{{ '\t'.expandtabs(10**10) }}",
    "indent": "{{ text|replace('a', '\n')|indent(10**9) }}",
    "json indent": "{{ messages|tojson(indent=10**10) }}",
    "json separators": "{{ range(9999)|list|tojson(separators=(text, text)) }}",
    "date": "{{ strftime_now('%999999999d') }}",
    "sum": DOUBLED.replace("'ab'", "[1]") % "{% set n.x = [n.x, n.x]|sum(start=[]) %}",
    "source": "x" * 300_000,
}  # fmt: skip


@pytest.mark.parametrize("name", [*TIME_BOMBS, *SIZE_BOMBS])
def test_a_bomb_is_defused(name):
    began = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            SandboxedTemplate((TIME_BOMBS | SIZE_BOMBS)[name]).render(DATA, seconds=0.5)
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 10


def test_limits_name_themselves():
    with pytest.raises(ChatTemplateError, match=r"did not finish within 0\.1 seconds"):
        SandboxedTemplate(TIME_BOMBS["silent loops"]).render({}, seconds=0.1)
    with pytest.raises(ChatTemplateError, match="builds larger values than is allowed"):
        SandboxedTemplate(SIZE_BOMBS["times"]).render({}, seconds=5)


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
        "{{ 'a'.encode() }}",
        "{{ (5).to_bytes(10**9) }}",
        "{{ dict.fromkeys(text) }}",
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


def test_namespaces_write_nothing_of_what_they_hold():
    template = SandboxedTemplate("{% set a = namespace(x=1) %}{% set a = namespace(x=a, y=a) %}{{ [a, a] }}")
    assert template.render({}, seconds=1) == "[<Namespace>, <Namespace>]"


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
