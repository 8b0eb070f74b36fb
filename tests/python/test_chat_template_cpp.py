"""Chat templates of opgraft_generate (infer/cli/llama) beside Jinja: the same text, or an error in both."""

import json
import pathlib
import subprocess

import numpy as np
import opgraft
import pytest

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
from chat_templates import EXPRESSIONS, FAMILIES, REFUSED, Grammar  # noqa: E402
from small_llama import llama, smollm2  # noqa: E402

PROGRAM = pathlib.Path(opgraft.__file__).parents[2] / "tests" / "render"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="it needs PCRE2 and a build of the C++ tests")


def talk(*contents, system=None):
    said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return ([{"role": "system", "content": system}] if system is not None else []) + said


TALKS = [talk("Hi"), talk("  Hi\n", "Hello! <|x|>", "é☃ {{ 1 }}"), talk("a", "b", system=" Be brief. "), talk("a", system="")]


def case(template, messages=TALKS[2], prompt=True):
    return {"template": template, "messages": messages, "bos_token": "<s>", "eos_token": "</s>",
            "add_generation_prompt": prompt}  # fmt: skip


def by_jinja(given):
    """The text, or None and the error."""
    given = dict(given)
    try:
        return llama.tokenizer.environment().from_string(given.pop("template")).render(**given), None
    except Exception as e:  # a template's own expressions raise Python's
        return None, f"{type(e).__name__}: {e}"


def by_program(cases):
    lines = "".join(json.dumps(c) + "\n" for c in cases)
    done = subprocess.run([PROGRAM], input=lines, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(out) == len(cases)
    return out


def compare(cases):
    """How many gave a text; others are errors in both."""
    got, want = by_program(cases), [by_jinja(c) for c in cases]
    wrong = [(c["template"], g, w) for c, g, w in zip(cases, got, want) if g.get("text") != w[0]]
    assert wrong == [], f"{len(wrong)} of {len(cases)}: {wrong[:3]}"
    return sum(w[0] is not None for w in want)


def test_families():
    cases = [case(t, m, p) for t in FAMILIES.values() for m in TALKS for p in (True, False)]
    assert compare(cases) == len(cases) - 4  # Gemma takes no system message


def test_what_a_template_raises():
    (got,) = by_program([case(FAMILIES["gemma"])])
    assert got == {"error": "chat template: System role not supported"}
    assert by_jinja(case(FAMILIES["gemma"])) == (None, "TemplateError: System role not supported")


def test_expressions():
    assert compare([case("{{ " + e + " }}") for e in EXPRESSIONS]) > 200


def test_what_is_not_known_is_refused_by_name():
    cases = [case("\n{{ " + e + " }}") for e in REFUSED]
    for c, got, named in zip(cases, by_program(cases), REFUSED.values()):
        assert by_jinja(c)[1] is None, c
        assert got.get("error", "").startswith("chat template: line 2: ") and named in got["error"], (c, got)


STATEMENTS = [
    # scopes
    "{% set a = 1 %}{% for i in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}",
    "{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}{% for i in [1, 2] %}{{ a }}{% set a = a + 1 %}{{ a }}{% endfor %}",
    "{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}",
    "{% for i in [1, 2] %}{% set outer = loop %}{% for j in 'ab' %}{{ outer.index }}{{ loop.index }}{% endfor %}{% endfor %}{{ i }}",
    "{% for i in [] %}x{% else %}{% set a = 1 %}{{ a }}{% endfor %}{{ a }}{% set b %} {{ 1 }}{% set c = 2 %}{% endset %}{{ b }}{{ c }}",
    "{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }},{% endfor %}{% set a, b = 'xy' %}{{ b }}{% set (a, b) = 1, 2 %}{{ a }}",
    "{% for i in range(9) if i is odd and i != 3 %}{{ i }}{{ loop.length }}{{ loop.revindex0 }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role ~ '<' ~ loop.nextitem.role }}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.depth }}{{ loop.other }}{% endfor %}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{{ g }}{% set g = 1 %}{% endmacro %}{% set g = 5 %}{{ f(1) ~ f(1, b=2) ~ f() }}{{ f is callable }}",
    "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}{{ f(1, 2) }}",
    "{% filter upper|trim %} a{{ 'b' }} {% endfilter %}|{% set x | title %}hello{% endset %}{{ x }}",
    "{% set it = [1, 2]|map('string') %}{% for i in it %}{{ i }}{% endfor %}{% for i in it %}{{ i }}{% endfor %}{{ it|list }}",
    "{% set messages = messages[1:] %}{{ messages|length }}{% if a is not defined %}{% set a = bos_token %}{% endif %}{{ a }}{{ eos_token }}",
    # errors of both
    "{% set a, b = [1] %}", "{% set a.b = 1 %}", "{% set n = 1 %}{% set n.b = 1 %}", "{% for %}{% endfor %}", "{% if 1 %}", "{% endif %}",
    "{% for i in 5 %}{% endfor %}", "{% set true = 1 %}", "{% for loop in [1] %}{{ loop }}{% endfor %}", "{% else %}", "{% nothing %}",
    "{{ 1", "{% if 1 }}", "{# a", "{% raw %}", "{% raw %} ", "{#", "{{ }}", "{% set %}", "{% set a = %}", "{{ 'a }}", "{% macro f(a=1, b) %}{% endmacro %}",
    "{% for a, b in [1] %}{% endfor %}", "{{ [1)] }}", "{{ a..b }}", "{{ a.'b' }}", "{{ f(a=1, 2) }}", "{{ 1 is }}", "{{ 1 | }}", "{{ a b }}",
    "{% if 1 %}{% for i in [1] %}{% endif %}{% endfor %}", "{{ '\\x4' }}", "{% break %}", "{{ messages.append(1) }}",
    # white space
    "a \n {%- if 1 -%} \n b \n {%- endif -%} \n c", "  {% if 1 %}\n  b\n  {% endif %}\n  c\n", "  {%+ if 1 %}\n x {%+ endif +%}\n y",
    "a\n  {# c #}\n  b {# d #} c\n\t{#- e -#} \n f {#+ g +#}\n", " {{ 1 }} \n {{- 2 -}} \n {{ 3 }}\n", "a\r\nb\rc\n\n", "\n", "",
    "{% raw %}  {{ x }} {% if %} {# #}\n{% endraw %}\nz", "a {%- raw -%} \n b \n {%- endraw -%} \n c", "\n  {% raw %} a\n  {% endraw %}\n b",
    "{% if 1 %}\n\n a{% endif %}  \n", "\u00a0\u2003{%- if 1 -%}\u3000 a{% endif %}", "{{ {'a': {'b': 1}} }}", "{{-1}}", "{%if 1%}a{%endif%}",
    "{% if\n1\n%}\n a{% elif 2: %}b{% endif %}", "{{ 'a\nb\r\nc' }}", "{ {% raw %}%}{% endraw %} }} %} #}", "{#-#}a{#--#}", "x{#+#}\n{#-a+#}\ny",
]  # fmt: skip


def test_statements():
    assert compare([case(t) for t in STATEMENTS]) > 35


def test_random_templates():
    grammar = Grammar(np.random.default_rng(4))
    assert compare([case(grammar.template(), TALKS[i % len(TALKS)]) for i in range(300)]) > 100


def test_every_character():
    """Its case, and whether it is white space, as Python has them; where a text would become longer, or shorter, it is
    refused."""
    known = [chr(c) for c in (*range(1, 0xD800), *range(0xE000, 0x20000)) if chr(c).isprintable() or chr(c).isspace()]
    rest = "{{ m.content|upper }}\n{{ m.content|lower }}\n{{ (m.content ~ 'x')|trim|length }}"
    cases = [case("{% for m in messages %}" + rest + "{% endfor %}", talk(c)) for c in known if c.lower() != c.upper() or c.isspace()]
    got = by_program(cases)
    refused = [g["error"] for g in got if "text" not in g]
    assert len(cases) > 2500 and len(refused) < 300 and all("case of" in error for error in refused)
    said = [c["messages"][0]["content"] for c in cases]
    want = [f"{c.upper()}\n{c.lower()}\n{len((c + 'x').strip())}" for c in said]
    assert [(c, g) for c, g, w in zip(said, got, want) if "text" in g and g["text"] != w] == []


@pytest.mark.parametrize("template,error", [
    ("(" * 10_000 + ")" * 10_000, "nested deeper than"), ("not " * 10_000 + "1", "nested deeper than"), ("[" * 10_000 + "]" * 10_000, "nested deeper than"),
    ("-" * 10_000 + "1", "nested deeper than"), ("a" + ".a" * 10_000, "nested deeper than"), ("a" + "+a" * 10_000, "nested deeper than"),
    ("a" + "|a" * 10_000, "nested deeper than"), ("a if " * 10_000 + "a", "nested deeper than"), ("{1:" * 10_000 + "}" * 10_000, "nested deeper than"),
    ("a" + " or a" * 10_000, ""), ("[" + "1," * 50_000 + "]|length", "50000"), ("'a' * 100000000", "a text of more than"),
    ("[1] * 100000000", "a list of more than"), ("'ab' * 9000000000000000000", "a text of more than"),
    ("x", "must be at most"), ("9223372036854775807 + 1", "does not fit"), ("-9223372036854775807 - 2", "does not fit"),
    ("3 ** 50", "does not fit"), ("range(9223372036854775807)", "more than 100000"), ("'a'.replace('', 'b' * 4000000)", "steps"),
    ("'x'|indent(100000)", "more than 1000"), ("[1]|tojson(indent=1000000)", "more than 100"),
])  # fmt: skip
def test_limits_of_expressions(template, error):
    space = " " * 300_000 if template == "x" else ""
    (got,) = by_program([case("{{ " + template + " }}" + space)])
    assert error in (got.get("error") or got["text"]), got


@pytest.mark.parametrize("template,error", [
    ("{% if 1 %}" * 10_000, "nested deeper than"), ("{% for a in b %}" * 10_000, "nested deeper than"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper than"),
    ("{% set n = namespace(a=[]) %}{% for i in range(100000) %}{% set n.a = [n.a] %}{% endfor %}", "lists nested deeper than"),
    ("{% set n = namespace(a='ab') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}", "steps"),
    ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"),
    ("{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}", "steps"),
    # what is small, but large when it is spelled or compared
    ("{% set n = namespace(a=[1]) %}{% for i in range(90) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a }}", "steps"),
    ("{% set n = namespace(a=[1], b=[1]) %}{% for i in range(90) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
     "{{ n.a == n.b }}", "steps"),
    ("{% set n = namespace(a=(1,)) %}{% for i in range(90) %}{% set n.a = (n.a, n.a) %}{% endfor %}{{ {n.a: 1}[n.a] }}", "1"),
    ("{% set n = namespace() %}{% set n.n = [n] %}{% set m = namespace(n=n) %}{% set n.m = m %}{{ n.n == [n] }}", "True"),
    ("{{ ('a' * 1000000 ~ 'b') in 'a' * 2000000 }}", "False"),
])  # fmt: skip
def test_limits_of_statements(template, error):
    (got,) = by_program([case(template)])
    assert error in (got.get("error") or got["text"]), got


def test_a_long_talk():
    """What a real template needs is far from any limit."""
    talks = [talk(*["Some words, and <|more|> of them. " * 20] * 1001), talk("a" * 2_000_000, "b")]
    assert compare([case(FAMILIES[name], t) for name in ("chatml", "llama2", "mistral", "smollm2") for t in talks]) == 8


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
def test_the_template_of_smollm2():
    template = llama.Checkpoint(smollm2()).metadata("tokenizer.chat_template", "")
    assert compare([case(template, m, p) for m in TALKS for p in (True, False)]) == 8
