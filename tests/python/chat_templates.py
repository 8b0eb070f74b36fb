"""Chat templates for test_chat_template_cpp.py: those of model families, in our own words after the public formats, and
templates drawn from a grammar."""

FAMILIES = {
    "chatml": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}
{%- else %}{% set rest = messages %}{% set system = 'You are a helpful assistant.' %}{% endif %}
{{- '<|im_start|>system\\n' ~ system ~ '<|im_end|>' }}
{% for message in rest %}
    {%- if message.role not in ['user', 'assistant'] %}{{ raise_exception('Unknown role: ' + message.role) }}{% endif %}
    {{- '\\n<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '\\n<|im_start|>assistant\\n' }}{% endif %}
""",
    "llama2": """{% if messages[0]['role'] == 'system' -%}
    {%- set loop_messages = messages[1:], messages[0]['content'] -%}
    {%- set loop_messages, system_message = loop_messages -%}
{%- else -%}
    {%- set loop_messages = messages %}{% set system_message = false -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {%- if loop.index0 == 0 and system_message != false -%}
        {%- set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] -%}
    {%- else %}{% set content = message['content'] %}{% endif -%}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' -%}
        {{ ' ' + content.strip() + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}
""",
    "llama3": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% else %}
        {%- set date_string = "26 Jul 2024" %}{% endif %}
{%- endif %}
{#- The system message, where there is one -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none and tools is defined %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("Only one tool-call at once!") }}{%- endif %}
        {{- message.tool_calls[0].function.arguments | tojson(indent=4) }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
        {%- endif %}
    {%- else %}{{- " " + message["content"] | trim + eos_token }}{%- endif %}
    {%- if message == user_messages[-1] %}{{- "" }}{%- endif %}
{%- endfor %}
""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "phi3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}
{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}
{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "smollm2": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system
You are SmolLM<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "macros": """{%- macro header(role, end='\\n') -%}
<|{{ role | title }}|>{{ end }}
{%- endmacro -%}
{%- macro nested(items, depth=0) %}{% for i in items %}{% if i is sequence and i is not string %}
{{- '(' ~ nested(i, depth + 1) ~ ')' }}{% else %}{{ depth ~ i }}{% endif %}{% endfor %}{% endmacro -%}
{% for m in messages %}{{ header(m.role) ~ header(m.role, end=loop.index) }}{{ m.content }}{% endfor %}
{{ nested([1, [2, [3, 'x']], []]) }} {{ header() }}""",
}

# Between ` | `.
EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2 | -7 // 2 | -7 % 3 | 7 % -3 | 7.5 // -2 | -7.5 % 2 | 2 ** 10 | 2 ** -1 | 2 ** 3 ** 2 | -2 ** 2
1 / 3 | 1e16 | 1e15 | 1e-5 | 0.1 + 0.2 | 1.0 | -0.0 | 1_000 | 0x1F + 0b11 + 0o17 | 10 // 0 | 1 % 0 | 1.5 / 0 | true + 1
'a' 'b' "c" | 'it\'s' ~ "\"q\"" | '\x41\u00e9\U0001f600\101\q\\' | "a\tb\n" | 'a' * 3 | 3 * [1, none] | -1 * 'a'
'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] | 'a' + 1 | [1] + [2] | (1,) + (2, 3) | [1] + (2,) | none + 1 | -'a' | +true | - -3
1 < 2 < 3 | 1 < 2 > 5 | 1 == 1.0 == true | 'a' < 'b' | 'a' < 1 | [1, 2] < [1, 3] | (1,) == [1] | 'é' > 'z' | none < 1
'a' in 'cat' | 1 in [1.0] | 'k' in {'k': 1} | 1 not in (2, 3) | '' in '' | 1 in 'a' | missing in [1] | 'a' in missing
not 1 or 2 and 3 | '' or 'x' | 0 and missing.a | not not [] | not missing | 1 if 0 | 1 if 0 else 2 if 0 else 3 | (1 if 1)
missing | missing.a | missing['a'] | missing ~ 'x' | missing + 'x' | missing() | missing == other | [missing] | missing < 1
[1, 'a', none, true, 1.5, [2], {'k': 'v'}] | {'a': 1, 'b': [2], 3: none, 'a': 4} | (1,) | () | 1, 2 | {} | [[]]
"it's" | ["it's", 'say "x"', 'a\\b\n', 'é☃', '\x00\x7f\u200a'] | {[1]: 2} | {1: 'a', true: 'b'}
'hello'[1] | 'hello'[-1] | 'hello'[9] | 'héllo'[1:3] | 'hello'[::-1] | 'hello'[:-1] | 'hello'[3:1] | 'hello'[::2]
[1, 2, 3][1:] | [1, 2, 3][-2:] | [1, 2, 3][::-2] | (1, 2)[:1] | [1][5] | [1]['x'] | none[0] | [1][::0] | [1].0
{'a': 1}.a | {'a': 1}['a'] | {'a': 1}.b | {'a': {'b': 2}}.a.b | {1: 'x'}[1] | {'items': 1}['items'] | 'abc'.x | 1[0]
{'a': 1, 'b': 2}.items()|list | {'a': 1}.keys()|list | {'a': 1}.values()|list | {'a': 1}.get('b', 5) | {}.get('x')
{'a': 1} == {'a': 1.0} | messages[0].role | messages[-1]['content'] | messages|length | messages[9] | messages[0].x
range(3)|list | range(5, 1, -2)|list | range(1, 4)[1] | range(0)|length | range(100001) | range(1, 2, 0) | range(2) == [0, 1]
'  x '.strip() ~ '|' | 'xxabx'.strip('x') | ' a'.lstrip() ~ 'b '.rstrip() | 'a b  c'.split() | 'a,b,,c'.split(',')
'a b c'.split(' ', 1) | ' a  b '.split(none, 1) | ''.split() | ''.split(',') | 'abc'.split('') | 'a\u00a0b'.split()
'abc'.startswith('ab') | 'abc'.endswith(('x', 'c')) | 'abc'.startswith(1) | 'aXbX'.replace('X', 'yy') | 'ab'.replace('', '-')
'aaa'.replace('a', 'b', 2) | 'HeLLo wOrld'.title() | "they're bill's".title() | 'hELLO'.capitalize() | 'a-b'.join(['x', 'y'])
','.join([1]) | 'abcabc'.find('ca') | 'abc'.count('') | 'aXa'.lower() ~ 'aß☃'.lower() ~ 'é'.upper() | 'ÀÉ я'.lower()
' x '|trim | 'xax'|trim('x') | 'abc'|upper | 'ABC'|lower | 'hello world-foo (bar)'|title | 'hELLO'|capitalize
[1, 2]|first | []|first | 'abc'|last | []|last | [1, 'a', none]|join(', ') | []|join | [{'a': 1}, {'a': 2}]|join('-', 'a')
missing|default('x') | ''|default('x') | ''|d('x', true) | none|default('x') | missing|default
'aXb'|replace('X', '-') | 1213|replace(1, 'x') | 'ab'|replace('', '.') | 'aaa'|replace('a', 'b', 2) | 'abc'|list
'12'|int | '1.9'|int | 'x'|int | 'x'|int(7) | 3.9|int | none|int | missing|int | ' 1_0 '|int | '1e3'|int | true|int
'1.5'|float | 'x'|float | 1|float | 'nan'|float | -3|abs | 1.5|abs | 'a'|abs | [1]|length | 5|length | missing|length
{'b': [1, true, none, 1.5, 'é"\n\\/<'], 'a': {}, 'c': []}|tojson | [1, {'a': [2]}]|tojson(indent=2) | missing|tojson | 'x'|tojson
[1, [2]]|string | 'abc'|reverse | [1, 2]|reverse|list | {'a': 1}|items|list | missing|items|list
['a', 'B']|map('upper')|list | messages|map(attribute='role')|join(',') | [{'a': 1}, {}]|map(attribute='a', default=0)|list
[1, 0, 2]|select|list | [1, 2, 3]|reject('odd')|list | messages|selectattr('role', 'eq', 'user')|list|length
messages|rejectattr('role', 'in', ['user'])|map(attribute='content')|first | [1, 2]|select('gt', 1)|list | 'a\nb\n\nc'|indent(2)
'a\nb'|indent(width='> ', first=true) | -1|abs + 1 | 'a'|upper ~ 'b'|lower | 1|nothing | [3]|map('nothing')|list
missing is defined | x is undefined | none is none | 1 is number | true is number | true is integer | 1 is integer | 1.0 is float
'a' is string | [] is iterable | 1 is iterable | 'a' is sequence | {} is mapping | [] is mapping | missing is iterable | 1 is sequence
true is true | 1 is true | false is false | true is boolean | 3 is odd | 3 is even | 9 is divisibleby 3 | 9 is divisibleby(2) | 'a' is odd
1 is not string | 1 is eq 1 | 1 is ne 2 | 3 is gt 2 | 3 is lessthan 2 | 2 is in [1, 2] | 'abc' is lower | 'ABC1' is upper | '1' is lower
1 is string or 2 is number | not 1 is string | 1 is nothing | (1 is number) ~ 'x' | 1 is number is string | [1, 2] is eq [1, 2]
[].append(1) | 'a'.nothing() | {}.pop() | raise_exception('no')
namespace(a=1).a | namespace({'b': 2}).b | namespace().c | namespace(a=1)['a'] | 'a' if | 1 + | ) | [1, | {'a' 1} | a b | 1 == | 'a
1 +* 2 | {{ 1 | a.b.1.c | [[1, 2], [3]][0][1] | [1, 2,] | {'a': 1,} | (1, 2,) | range(3)[::-1]|list | 'a' not in 'b' == true | 1 ! 2
"""
EXPRESSIONS = [e for line in EXPRESSIONS.strip().splitlines() for e in line.split(" | ")]


# Right for Jinja, refused by name here.
REFUSED = {
    "dict(a=1)": "'dict' is not known here", "joiner(',')": "'joiner' is not known here",
    "'x'.center(5)": "str.center is not known here", "{1: 2}.items": "dict.items that is not called",
    "''.__class__": "'__class__' is not known here", "[2, 1]|sort": "the filter 'sort' is not known here",
    "1 is sameas 1": "the test 'sameas' is not known here", "'%s' % 1": "str % int is not known here",
    "{(1, 2): 3}[1, 2]": "several subscripts", "2 ** 64": "does not fit 64 bits", "range(*[1])": "'*' before an argument",
    "[1].index": "list.index that is not called", "é": "unexpected 'é'", "'straße'|upper": "upper and lower case of 'ß'",
    "[1]|map('string')": "iterator is not printed", "range(2)": "a range is not printed", "{}.items()": "a view is not",
    "99999999999999999999": "does not fit 64 bits", "'\\N{DIGIT ONE}'": "an escape that is not known here",
}  # fmt: skip


class Grammar:
    """Templates of a seed: nested statements, expressions that mostly fit, white space around tags."""

    CASES = "trim", "upper", "capitalize", "title", "lower", "replace('a', 'bc')", "indent(1)"
    METHODS = "strip()", "upper()", "rstrip('d ')", "capitalize()", "replace('a', 'b')", "lower()"
    SPLITS = "", "','", "'a', 1", "none, 1"
    LISTS = "reverse", "select", "map('string')", "select('string')", "map('length')", "reject('none')"
    MESSAGES = "map(attribute='role')", "rejectattr('role', 'eq', 'user')", "selectattr('content')"
    TESTS = ("defined", "none", "string", "number", "mapping", "iterable", "sequence", "true", "boolean", "integer", "eq 1")
    SPELLED = "string", "tojson", "tojson(indent=1)", "trim"
    FAILING = ".role", "[0]", " + 1", "|default('d', true)", "|first", "|items|list", " < 2", ".items()|list", "|abs"  # mostly

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def words(self, depth):
        """A text; as `number`, `items` and `truth`."""
        t, d = self.words, depth - 1
        if depth <= 0:
            return self.pick("''", "'a'", "'  b '", "'Hello World'", "'x,y'", '"it\'s"', "'\\n'", "'é☃'", "bos_token", "m.role", "a")
        return self.pick(
            lambda: f"{self.any(d)} ~ {self.any(d)}",
            lambda: f"({t(d)} + {t(d)})",
            lambda: f"{t(d)}|{self.pick(*self.CASES)}",
            lambda: f"({t(d)}).{self.pick(*self.METHODS)}",
            lambda: f"({t(d)})[{self.pick('1:', ':1', '-1:', '::-1', ':', '1:3', '::2')}]",
            lambda: f"({self.any(d)})|{self.pick(*self.SPELLED)}",
            lambda: f"({self.items(d)})|join({t(0)})",
            lambda: f"({t(d)} if {self.truth(d)} else {t(d)})",
            lambda: f"messages[{self.pick('0', '-1', '1')}].{self.pick('role', 'content')}",
            lambda: f"{t(0)} * {self.pick('0', '2')}",
        )()

    def number(self, depth):
        n, d = self.number, depth - 1
        if depth <= 0:
            return self.pick("0", "1", "2", "7", "1.5", "loop.index", "loop.index0", "loop.length", "ns.a", "true")
        return self.pick(
            lambda: f"({n(d)} {self.pick('+', '-', '*')} {n(d)})",
            lambda: f"({n(d)} {self.pick('//', '%', '/')} {self.pick('2', '-3', '1.5')})",
            lambda: f"-{n(0)}",
            lambda: f"({self.items(d)})|length",
            lambda: f"({self.words(d)})|{self.pick('length', 'int', 'float', 'int(3)')}",
            lambda: f"({self.words(d)}).find({self.words(0)})",
        )()

    def items(self, depth):
        i, d = self.items, depth - 1
        if depth <= 0:
            return self.pick("messages", "[]", "[1, 'a', none]", "c", "range(3)|list")
        return self.pick(
            lambda: f"[{self.any(d)}, {self.any(d)}]",
            lambda: f"({i(d)} + {i(d)})",
            lambda: f"({i(d)})[{self.pick('1:', ':1', '-1:', '::-1', '1:3')}]",
            lambda: f"({self.words(d)}).split({self.pick(*self.SPLITS)})",
            lambda: f"({i(d)})|{self.pick(*self.LISTS)}|list",
            lambda: f"messages|{self.pick(*self.MESSAGES)}|list",
            lambda: f"({self.words(d)})|list",
            lambda: f"{{'k': {self.any(d)}, {self.words(0)}: 1}}.{self.pick('items()', 'keys()')}|list",
        )()

    def truth(self, depth):
        b, d = self.truth, depth - 1
        if depth <= 0:
            return self.pick("true", "false", "add_generation_prompt", "loop.first", "loop.last", "nothing", "m")
        return self.pick(
            lambda: f"{self.number(d)} {self.pick('==', '!=', '<', '<=', '>', '>=')} {self.number(d)}",
            lambda: f"{self.words(d)} {self.pick('==', '!=', '<', 'in', 'not in')} {self.words(d)}",
            lambda: f"{self.any(d)} in {self.items(d)}",
            lambda: f"({b(d)} {self.pick('and', 'or')} {b(d)})",
            lambda: f"not {b(d)}",
            lambda: f"({self.any(d)}) is {self.pick('', 'not ')}{self.pick(*self.TESTS)}",
            lambda: f"({self.words(d)}).startswith({self.words(0)})",
        )()

    def any(self, depth):
        if self.rng.random() < 0.03:
            return f"({self.any(depth)}){self.pick(*self.FAILING)}"
        kinds = self.words, self.words, self.number, self.items, self.truth
        return self.pick("a", "b", "x", "none", "m.role") if self.rng.random() < 0.1 else self.pick(*kinds)(depth)

    def tag(self, text, ends="{%%}"):
        left, right = self.pick("", "", "-", "+"), self.pick("", "", "-", "+" if ends == "{%%}" else "")
        return f"{ends[:2]}{left} {text} {right}{ends[2:]}"

    def text(self):
        return self.pick("", "x", " ", "\n", "  \n  ", "a\n", "\n\tb ", "\r\n", "{ % }", "{# c #}", "  {#- d -#}\n", "é\u00a0",
                         "{% raw %}{{ r }}{% endraw %}\n", " \u2028\x1c ")  # fmt: skip

    def statement(self, depth):
        kind = int(self.rng.integers(12 if depth > 0 else 5))
        if kind < 4:
            return self.tag(self.any(2), "{{}}")
        if kind == 4:
            return self.tag(f"set {self.pick('a', 'b', 'ns.a', 'x')} = {self.number(1)}")
        other = self.tag("else") + self.body(depth - 1) if self.rng.random() < 0.5 else ""
        if kind < 7:
            middle = self.tag(f"elif {self.truth(2)}") + self.body(depth - 1) if self.rng.random() < 0.3 else ""
            return self.tag(f"if {self.truth(2)}") + self.body(depth - 1) + middle + other + self.tag("endif")
        if kind < 10:
            over = self.pick("messages", "[1, 2, 3]", "range(2)", "'ab'", self.items(1))
            names, over = ("k, a", "{'a': 1, 'b': 2}.items()") if self.rng.random() < 0.2 else (self.pick("a", "m", "m"), over)
            test = f" if {self.truth(0)}" if self.rng.random() < 0.2 else ""
            return self.tag(f"for {names} in {over}{test}") + self.body(depth - 1) + other + self.tag("endfor")
        what = self.pick("set a", "set b|upper", "filter upper", "filter trim|title")
        return self.tag(what) + self.body(depth - 1) + self.tag("end" + what.split()[0])

    def body(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(int(self.rng.integers(1, 4)))) + self.text()

    def template(self):
        start = "{% set ns = namespace(a=1) %}{% set a = 'v' %}{% set c = [1, 'two', none] %}{% set m = {'role': 'R'} %}"
        if self.rng.random() < 0.2:
            return self.body(2)
        macro = self.tag("macro f(a, m={'role': b})") + self.body(1) + self.tag("endmacro")
        return f"{start}{macro}{{% for once in [0] %}}{self.body(2)}{{{{ f(a) }}}}{{% endfor %}}"
