"""What test_chat_template_cpp.py has no files for."""

# Right for Jinja, refused by name here.
REFUSED = {
    "dict(a=1)": "'dict' is not known here", "joiner(',')": "'joiner' is not known here",
    "'x'.center(5)": "str.center is not known here", "{1: 2}.items": "dict.items that is not called",
    "''.__class__": "'__class__' is not known here", "[2, 1]|sort": "the filter 'sort' is not known here",
    "1 is sameas 1": "the test 'sameas' is not known here", "'%s' % 1": "str % int is not known here",
    "{(1, 2): 3}[1, 2]": "several subscripts", "2 ** 64": "does not fit 64 bits",
    "range(*[1])": "'*' before an argument", "[1].index": "list.index that is not called", "é": "unexpected 'é'",
    "'straße'|upper": "upper and lower case of 'ß'", "[1]|map('string')": "iterator is not printed",
    "range(2)": "a range is not printed", "{}.items()": "a view is not", "'\\N{DIGIT ONE}'": "an escape that is not",
    "99999999999999999999": "does not fit 64 bits",
}  # fmt: skip


class Grammar:
    """Templates of a seed: nested statements, expressions that mostly fit, white space around tags."""

    CASES = "trim", "upper", "capitalize", "title", "lower", "replace('a', 'bc')", "indent(1)"
    METHODS = "strip()", "upper()", "rstrip('d ')", "capitalize()", "replace('a', 'b')", "lower()"
    SPLITS = "", "','", "'a', 1", "none, 1"
    LISTS = "reverse", "select", "map('string')", "select('string')", "map('length')", "reject('none')"
    MESSAGES = "map(attribute='role')", "rejectattr('role', 'eq', 'user')", "selectattr('content')"
    TESTS = ("defined", "none", "string", "number", "mapping", "iterable", "sequence", "true", "boolean", "integer",
             "eq 1")  # fmt: skip
    SPELLED = "string", "tojson", "tojson(indent=1)", "trim"
    FAILING = (".role", "[0]", " + 1", "|default('d', true)", "|first", "|items|list", " < 2", ".items()|list",
               "|abs")  # mostly  # fmt: skip

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *choices):
        return choices[int(self.rng.integers(len(choices)))]

    def words(self, depth):
        """A text; as `number`, `items` and `truth`."""
        t, d = self.words, depth - 1
        if depth <= 0:
            return self.pick(
                "''", "'a'", "'  b '", "'Hello World'", "'x,y'", '"it\'s"', "'\\n'", "'é☃'", "bos_token", "m.role", "a"
            )
        return self.pick(
            lambda: f"{self.any(d)} ~ {self.any(d)}",
            lambda: f"({t(d)} + {t(d)})",
            lambda: f"{t(d)}|{self.pick(*self.CASES)}",
            lambda: f"({t(d)}).{self.pick(*self.METHODS)}",
            lambda: f"({t(d)})[{self.pick('1:', ':1', '-1:', '::-1', ':', '1:3', '::2')}]",
            lambda: f"({self.any(d)})|{self.pick(*self.SPELLED)}",
            lambda: f"({self.items(d)})|join({t(0)})",
            lambda: f"({t(d)} if {self.truth(d)} else {t(d)})",
            lambda: f"messages[{self.pick('0', '-1')}].{self.pick('role', 'content')}",
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
        return self.pick("", "x", " ", "\n", "  \n  ", "a\n", "\n\tb ", "\r\n", "{ % }", "{# c #}", "  {#- d -#}\n",
                         "é\u00a0", "{% raw %}{{ r }}{% endraw %}\n", " \u2028\x1c ")  # fmt: skip

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
            names, over = (
                ("k, a", "{'a': 1, 'b': 2}.items()") if self.rng.random() < 0.2 else (self.pick("a", "m", "m"), over)
            )
            test = f" if {self.truth(0)}" if self.rng.random() < 0.2 else ""
            return self.tag(f"for {names} in {over}{test}") + self.body(depth - 1) + other + self.tag("endfor")
        what = self.pick("set a", "set b|upper", "filter upper", "filter trim|title")
        return self.tag(what) + self.body(depth - 1) + self.tag("end" + what.split()[0])

    def body(self, depth):
        return "".join(self.text() + self.statement(depth) for _ in range(int(self.rng.integers(1, 3)))) + self.text()

    def template(self):
        if self.rng.random() < 0.1:
            return self.body(2)
        start = "{% set ns = namespace(a=1) %}{% set a, b, c = 'v', 'w', [1, 'two', none] %}{% set m = {'role': 'R'} %}"
        macro = self.tag("macro f(a, m={'role': b})") + self.once(1) + self.tag("endmacro")
        return start + macro + self.once(2) + "{{ f(a) }}"

    def once(self, depth):
        return f"{{% for once in [0] %}}{self.body(depth)}{{% endfor %}}"
