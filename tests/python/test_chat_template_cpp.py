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
from chat_grammar import REFUSED, Grammar  # noqa: E402
from small_llama import llama, smollm2  # noqa: E402

# Those of model families are in our own words, after the public formats.
FOLDER = pathlib.Path(__file__).parent / "chat_templates"
FAMILIES = {file.stem: file.read_text() for file in sorted(FOLDER.glob("*.jinja"))}
EXPRESSIONS = [e for line in (FOLDER / "expressions.txt").read_text().splitlines() for e in line.split(" | ")]
STATEMENTS = [json.loads(line) for line in (FOLDER / "statements.txt").read_text().splitlines()]
ENVIRONMENT = llama.tokenizer.environment()
PROGRAM = pathlib.Path(opgraft.__file__).parents[2] / "tests" / "render"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="it needs PCRE2 and a build of the C++ tests")


def talk(*contents, system=None):
    said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return ([{"role": "system", "content": system}] if system is not None else []) + said


TALKS = [talk("Hi"), talk("  Hi\n", "Hello! <|x|>", "é☃ {{ 1 }}"), talk("a", "b", system=" Be brief. "),
         talk("a", system="")]  # fmt: skip


def case(template, messages=TALKS[2], prompt=True):
    return {"template": template, "messages": messages, "bos_token": "<s>", "eos_token": "</s>",
            "add_generation_prompt": prompt}  # fmt: skip


def by_jinja(given):
    """The text, or None and the error."""
    given = dict(given)
    try:
        return ENVIRONMENT.from_string(given.pop("template")).render(**given), None
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


def test_statements():
    assert compare([case(t) for t in STATEMENTS]) == 35


def test_random_templates():
    grammar = Grammar(np.random.default_rng(4))
    assert compare([case(grammar.template(), TALKS[i % len(TALKS)]) for i in range(300)]) > 150


def test_every_character():
    """Its case, and whether it is white space, as Python has them; where a text would become longer, or shorter, it is
    refused."""
    known = [chr(c) for c in (*range(1, 0xD800), *range(0xE000, 0x20000)) if chr(c).isprintable() or chr(c).isspace()]
    rest = "{{ m.content|upper }}\n{{ m.content|lower }}\n{{ (m.content ~ 'x')|trim|length }}"
    known = [c for c in known if c.lower() != c.upper() or c.isspace()]
    cases = [case("{% for m in messages %}" + rest + "{% endfor %}", talk(c)) for c in known]
    got = by_program(cases)
    refused = [g["error"] for g in got if "text" not in g]
    assert len(cases) > 2500 and len(refused) < 300 and all("case of" in error for error in refused)
    want = [f"{c.upper()}\n{c.lower()}\n{len((c + 'x').strip())}" for c in known]
    assert [(c, g) for c, g, w in zip(known, got, want) if "text" in g and g["text"] != w] == []


N = 10_000
DEEP = ["(" * N + ")" * N, "not " * N + "1", "[" * N + "]" * N, "-" * N + "1", "a" + ".a" * N, "a" + "+a" * N,
        "a" + "|a" * N, "a if " * N + "a", "{1:" * N + "}" * N]  # fmt: skip
LARGE = {
    "a" + " or a" * N: "", "[" + "1," * 50_000 + "]|length": "50000", "'a' * 100000000": "a text of more than",
    "[1] * 100000000": "a list of more than", "'ab' * 9000000000000000000": "a text of more than",
    "1" + " " * 300_000: "must be at most", "9223372036854775807 + 1": "does not fit",
    "-9223372036854775807 - 2": "does not fit", "3 ** 50": "does not fit",
    "range(9223372036854775807)": "more than 100000", "'a'.replace('', 'b' * 4000000)": "steps",
    "'x'|indent(100000)": "more than 1000", "[1]|tojson(indent=1000000)": "more than 100",
    "('a' * 1000000 ~ 'b') in 'a' * 2000000": "False",
}  # fmt: skip
SPACE = "{% set n = namespace(a=[1], b=[1], t=(1,), s='ab', l=[]) %}"
MANY, FEW, END = "{% for i in range(99999) %}", "{% for i in range(90) %}", "{% endfor %}"
GROWING = {
    "{% if 1 %}" * N: "nested deeper than", "{% for a in b %}" * N: "nested deeper than",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "nested deeper than",
    MANY + "{% set n.l = [n.l] %}" + END: "lists nested deeper than", FEW + "{% set n.s = n.s ~ n.s %}" + END: "steps",
    MANY + MANY + END + END: "steps", MANY + "{{ 'a' * 10000 }}" + END: "steps",
    # what is small, but large when it is spelled or compared
    FEW + "{% set n.a = [n.a, n.a] %}" + END + "{{ n.a }}": "steps",
    FEW + "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}" + END + "{{ n.a == n.b }}": "steps",
    FEW + "{% set n.t = (n.t, n.t) %}" + END + "{{ {n.t: 1}[n.t] }}": "1",
    "{% set n.n = [n] %}{% set m = namespace(n=n) %}{% set n.m = m %}{{ n.n == [n] }}": "True",
}  # fmt: skip


def test_limits():
    """What is too deep, too large or too long is an error, soon; what only looks so is none."""
    wanted = {"{{ " + e + " }}": "nested deeper than" for e in DEEP}
    wanted |= {"{{ " + e + " }}": error for e, error in LARGE.items()} | {SPACE + t: e for t, e in GROWING.items()}
    for got, (template, error) in zip(by_program([case(t) for t in wanted]), wanted.items()):
        assert error in (got.get("error") or got["text"]), (template[:100], got)


def test_a_long_talk():
    """What a real template needs is far from any limit."""
    talks = [talk(*["Some words, and <|more|> of them. " * 20] * 1001), talk("a" * 2_000_000, "b")]
    assert compare([case(FAMILIES[name], t) for name in ("chatml", "llama2", "mistral", "smollm2") for t in talks]) == 8


@pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model")
def test_the_template_of_smollm2():
    template = llama.Checkpoint(smollm2()).metadata("tokenizer.chat_template", str)
    assert compare([case(template, m, p) for m in TALKS for p in (True, False)]) == 8
