"""Templates of others: they reach nothing of Python, and they end."""

from __future__ import annotations

import time

import pytest

from m3_runtime.chat.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.items() }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ self._TemplateReference__context.environment.call_binop }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_nothing_of_python_is_reached(source: str) -> None:
    with pytest.raises(ValueError, match="the chat template"):
        ChatTemplate(source).render([USER])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ raise_exception('no tool message here') }}", "refuses these messages: no tool message here"),
        ("{{ messages[0].content.nothing() }}", "refuses these messages: .*nothing"),
        ("{{ messages[0].content + 1 }}", "refuses these messages: can only concatenate str"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses these messages: maximum recursion depth"),
    ],
)
def test_what_a_template_raises_is_a_value_error(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ChatTemplate(source).render([USER])


@pytest.mark.parametrize(("source", "problem"), [("{% if %}", "line 1"), ("x" * (2**20 + 1), "more than 1048576")])
def test_what_is_no_template_is_told_when_it_is_read(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ChatTemplate(source)


GROW = "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = EXPRESSION %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 0.2 s"),
        ("{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}", "more than 0.2 s"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
            "more than 0.2 s",
        ),
        ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", "writes more than|more than 0.2 s"),
        ("{{ 'x' * 10 ** 11 }}", "value of more than"),
        ("{{ 10 ** 11 * [1] }}", "value of more than"),
        ("{{ 10 ** (10 ** 7) }}", "number of more than"),
        (GROW.replace("EXPRESSION", "n.x ~ n.x"), "value of more than"),
        (GROW.replace("EXPRESSION", "n.x + n.x"), "value of more than"),
        (GROW.replace("EXPRESSION", "n.x.replace('x', 'xx')"), "value of more than|more than 0.2 s"),
        (GROW.replace("EXPRESSION", "n.x | replace('x', 'xx')"), "value of more than|more than 0.2 s"),
        (GROW.replace("'xx'", "3").replace("EXPRESSION", "n.x * n.x"), "number of more than"),
        ("{{ 'x'.ljust(10 ** 11) }}", "value of more than"),
        ("{{ 'x' | center(width=10 ** 11) }}", "value of more than"),
    ],
)
def test_every_template_ends_soon(source: str, problem: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError, match=problem):
        ChatTemplate(source, limit_s=0.2).render([USER])
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages | tojson }}", '[{"a": "é<\'"}]'),
        ("{{ 'a' ~ 1 ~ none }}{{ 3 * 4 }}{{ 2 ** 8 }}{{ '%s' % 3 }}{{ [1] + [2] }}", "a1None122563[1, 2]"),
        ("{% for i in range(9) if i is odd %}{% if i == 7 %}{% break %}{% endif %}{{ loop.index }}{% endfor %}", "123"),
        ("{% macro m(x) %}{{ x }}{% endmacro %}{{ m(10000000000) }}{{ 10000000000 | string }}", "10000000000" * 2),
        ("{% macro m(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{% call m(1) %}c{% endcall %}", "<c1>"),
        (
            "{{ [3, 1] | sort | join(',') }}{{ 'a,b'.split(',')[-1] }}{{ messages | map(attribute='a') | first }}",
            "1,3bé<'",
        ),
    ],
)
def test_the_bounds_change_nothing_else(source: str, text: str) -> None:
    assert ChatTemplate(source).render([{"a": "é<'"}]) == text
