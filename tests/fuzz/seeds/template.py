"""Chat templates, a NUL and what a person says."""

TEMPLATES = {
    "chatml": "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m.content | trim + '<|im_end|>' }}\n{% endfor %}"
    "{%- if add_generation_prompt -%} {{ bos_token }} {%- else %}{{ eos_token }}{% endif %}",
    "loops": "{% for k, v in {'a': 1, 'b': [2]}.items() if v %}{{ loop.index0 }}{{ loop.previtem }}"
    "{{ loop.cycle(1, 2) }}{{ v|tojson }}{% else %}x{% endfor %}{% set ns = namespace(a=[1]) %}"
    "{% set ns.a = ns.a + [ns] %}{% set x|upper %} y {% endset %}{{ x }}",
    "texts": "{% set t = messages[0].content %}{{ t.strip().split() }}{{ t[1:-1:2] ~ t[::-1] }}{{ t.title() }}"
    "{{ t|title|capitalize|upper|lower }}{{ t.replace('a', t) }}{{ t.find('b') }}{{ t.count('') }}"
    "{{ t|indent(2, true) }}{{ t|int }}{{ t|float(2) }}{{ t|list|join(',') }}",
    "lists": "{{ [1, 'a', none, 1.5e3, (1,)][::2]|reverse|list }}"
    "{{ messages|map(attribute='role')|select('ne', 'x')|list|tojson(indent=2) }}"
    "{{ messages|selectattr('role', 'in', ['user'])|rejectattr('content')|first }}"
    "{{ range(5, 0, -2)|list * 3 }}{{ {1: 2, 'k': {}} }}",
    "numbers": "{{ 7 // -2 + 2 ** 10 - 5 % 3 * 1.5 / 2 }}{{ 1 < 2 <= 3 != 4 }}{{ 0x1f + 0b11 + 1_000 }}"
    "{{ -3|abs }}{{ 1 in [1] and not 2 is odd }}",
    "macro": "{% macro f(a, b=a) %}{{ a }}{% if a %}{{ f(a - 1) }}{% endif %}{% endmacro %}{{ f(3, b=2) }}"
    "{% filter trim %} z {% endfilter %}",
    "blanks": "a {#- c -#} \r\n  {%+ raw %}{{ x }}{% endraw -%}\n \\{{ 'a\\n\\x41\\u00e9\\101' \"b\" }}\n",
    "raises": "{{ raise_exception('no ' ~ messages[0].role) }}",
    "grows": "{% set ns = namespace(a='ab') %}{% for i in range(99999) %}{% set ns.a = ns.a ~ ns.a %}"
    "{% endfor %}",
    "nests": "{{ " + "(" * 200 + "1" + ")" * 200 + " }}",
    "cut": "{% for a in b %}{{ a",
}  # fmt: skip

# A template each, {{ }} around what stands between ` | `.
EXPRESSIONS = {
    "methods": "'aXa'.strip('a') | ' a'.lstrip() | 'a '.rstrip() | 'aé'.upper() | 'AÉ'.lower() | 'it is'.title()"
    " | ''.capitalize() | 'a,b,c'.split(',', 1) | ' a b '.split(none, 1)"
    " | 'ab'.startswith(('x', 'a')) | 'ab'.endswith('b') | 'aba'.replace('a', 'c', 1)"
    " | 'ab'.replace('', '-') | ','.join(['a', 'b']) | 'abc'.find('c') | 'aba'.count('a')"
    " | {'a': 1}.get('a') | {'a': 1}.get('b', 2) | {'a': 1}.items()|list | {'a': 1}.keys()|list"
    " | {'a': 1}.values()|list",
    "filters": "'é 1'|int(2) | ' +1_0 '|int | '1.5e1'|int | 2.5|int | '1.5'|float | true|float | 'ab'|last"
    " | []|first | [1]|last | 'a\nb\n\nc'|indent('> ', true, true) | 'abc'|reverse | 'xax'|trim('x')"
    " | 'a b-c'|title | nothing|items|list | {'a': 1}|items|list"
    " | [{'a': {'b': 1}}]|map(attribute='a.b')|list | [{}]|map(attribute='a', default=3)|list"
    " | [1, 2]|select('odd')|list | [1, 0]|reject|list"
    " | messages|selectattr('role')|map('length')|list | 'b'|count | ''|d('x', true) | 1.5|abs"
    " | [[1], [2]]|join('-', 0) | 'aa'|replace('a', 'b', 1) | [{'k': none, 'l': []}]|tojson(2)",
    "tests": "1 is divisibleby 1 | 1 is even | 'a' is lower | 'A' is upper | x is undefined | none is none"
    " | 1 is integer | 1.0 is float | {} is mapping | [] is sequence | 'a' is iterable"
    " | 1 is callable | true is boolean | 1 is true | 1 is false | 1 is number | 'a' is string"
    " | 1 is eq 1 | 1 is ne 2 | 1 is lt 2 | 2 is ge 1 | 1 is le 1 | 1 is in [1]",
    "operators": "1.5 + 1 | 1.5 - 1 | 2 * 1.5 | 1.5 / 2 | 2.0 ** 3 | 2 ** -1 | 7.5 // -2 | -7.5 % 2 | 1.5 % 1.5"
    " | 0.0 // 3 | 3 * 'ab' | [1] * 2 | 2 * (1,) | [1] + [2] | 'a' + 'b' | 7 // -1 | 7 % -1"
    " | 'a' in 'ba' | 1 in {1: 2} | 1 in nothing | 1 not in [2] | 1 < 1.5 | 'a' < 'b'"
    " | [1, 2] <= [1, 3] | (1,) > () | [1] == [1.0] | {'a': 1} == {'a': true} | 'a' != 'b'"
    " | none == none | nothing == nothing | namespace() == namespace() | -3 | +true | 1 if 0 | not 1",
    "printed": "[1, 'a', none, true, 1.5, (1,), {'k': 1e20}]"
    " | ['it\\'s', '\\\\\\n\\r\\t\\x01é\\u2003', 'say \"it\\'s\"'] | () | {1: [nothing]}"
    " | {1: 1, true: 2.0, none: 'a\\n', 1.5: [], 'b': {}}|tojson | 1e22 | 'h☃llo'[1] | 'h☃llo'[-3:]"
    " | [1, 2, 3][::-2] | (1, 2)[1:] | range(3)[1:]|list | {'a': 1}['a'] | [1]['x']"
    " | namespace(a=1)['a']",
}  # fmt: skip


def templates():
    for name, several in EXPRESSIONS.items():
        yield name, "\n".join("{{ " + e + " }}" for e in several.split(" | ")).encode() + b"\0Hi"
    for name, text in TEMPLATES.items():
        yield name, text.encode() + b"\0" + " Hé 12, a-b ☃ ".encode()
    yield "broken_text", b"\xff{{ 1 }}"
