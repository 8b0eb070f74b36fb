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


def templates():
    for name, text in TEMPLATES.items():
        yield name, text.encode() + b"\0" + " Hé 12, a-b ☃ ".encode()
    yield "broken_text", b"\xff{{ 1 }}"
