"""op.yaml texts."""

GOOD = """name: Probe
version: 1.2.3
doc: all of it
inputs:
  - {name: x, dtype: T, doc: the first}
  - {name: s, dtype: int64, value: true}
  - {name: more, dtype: T, optional: true, variadic: true, state: true}
outputs: [{name: y, dtype: T}, {name: z, dtype: bool}]
attrs:
  - {name: b, type: bool, default: true}
  - {name: i, type: int, default: -3}
  - {name: f, type: float, default: 1e-5}
  - {name: t, type: str, default: "some text"}
  - {name: is, type: ints, default: [1, 2]}
  - {name: fs, type: floats, default: [.inf, .nan, 0.5]}
  - {name: i2, type: ints2d, default: [[1], [2, 3]]}
  - {name: f2, type: floats2d, default: [[1.5]], doc: rows}
  - {name: required, type: int}
dtypes:
  T: [float32, float16, bfloat16]
inplace: [{output: y, input: x}]
view:
  - output: z
    input: x
deterministic: false
commutative: no
moves_values: true
backward: ProbeGrad
mindir: [x, i, s]
replaces: [a_pattern]
align: 64
layout: |
  a block
  of text
"""
SMALL = "name: Probe\nversion: 1.0.0\noutputs: [{name: y, dtype: float32}]\n"
YAML = {
    "good": GOOD,
    "two": SMALL + "---\n" + SMALL.replace("name: P", "name: Q"),
    "twice": SMALL + "---\n" + SMALL,
    "flow": "{name: P, version: 1.0.0, outputs: [{name: y, dtype: int8}]}\n",
    "comments": "# first\n%YAML 1.2\n---\n" + SMALL + "# last\n...\n",
    "quoted": SMALL + "doc: 'it''s'\nbackward: \"\\u00e9\\n\\x41\"\n",
    "folded": SMALL + "doc: >-\n  a\n  b\n\n  c\n",
    "tagged": "!!map\n" + SMALL + "doc: !!str 7\n",
    "complex_key": "? name\n: P\n" + SMALL.replace("name: Probe\n", ""),
    "empty": "",
    "only_marks": "---\n---\n",
    "second_document_in_text": SMALL + "...\nmore: text\n",
    "no_map": "- a\n- b\n",
    "no_name": "version: 1.0.0\n",
    "bad_name": SMALL.replace("P", "P-q"),
    "map_name": SMALL.replace("P", "{a: b}"),
    "bad_version": SMALL.replace("1.0.0", "1.0"),
    "negative_version": SMALL.replace("1.0.0", "1.-1.0"),
    "no_outputs": "name: Probe\nversion: 1.0.0\noutputs: []\n",
    "unknown_field": SMALL + "color: red\n",
    "map_field": SMALL + "[a, b]: red\n",
    "bad_flag": SMALL + "deterministic: perhaps\n",
    "map_flag": SMALL + "commutative: [true]\n",
    "bad_dtype": SMALL.replace("float32", "float31"),
    "dtypes_list": SMALL + "dtypes: [float32]\n",
    "dtypes_unknown": SMALL + "dtypes: {T: [float31]}\n",
    "dtypes_text": SMALL + "dtypes: {T: float32}\n",
    "dtypes_nested": SMALL + "dtypes: {T: [[float32]]}\n",
    "dtypes_map_key": SMALL + "dtypes: {[T]: [float32]}\n",
    "inputs_text": SMALL + "inputs: x\n",
    "inputs_scalars": SMALL + "inputs: [x]\n",
    "inputs_variadic": SMALL + "inputs: [{name: x, dtype: int8, variadic: true}, {name: y, dtype: int8}]\n",
    "inputs_optional": SMALL + "inputs: [{name: x, dtype: int8, optional: true}, {name: y, dtype: int8}]\n",
    "attrs_text": SMALL + "attrs: x\n",
    "attrs_scalars": SMALL + "attrs: [x]\n",
    "attrs_type": SMALL + "attrs: [{name: x, type: real}]\n",
    **{
        f"attrs_{kind}": SMALL + f"attrs: [{{name: x, type: {kind}, default: {default}}}]\n"
        for kind, default in {
            "bool": "7",
            "int": "9223372036854775808",
            "float": "much",
            "str": "[a]",
            "ints": "7",
            "floats": "[a]",
            "ints2d": "7",
            "floats2d": "[7]",
        }.items()
    },
    "mindir_unknown": SMALL + "mindir: [x]\n",
    "pairs_text": SMALL + "inplace: y\n",
    "pairs_scalars": SMALL + "inplace: [y]\n",
    "pairs_output": SMALL + "inplace: [{output: z, input: y}]\n",
    "pairs_input": SMALL + "view: [{output: y, input: x}]\n",
    "alias": SMALL + "doc: &a text\nbackward: *a\n",
    "brackets": "doc: " + "[" * 70,
    "dashes": "- " * 70,
    "indent": " " * 260 + "a: b\n",
    "cut_quote": SMALL + 'doc: "',
    "cut_flow": SMALL + "inputs: [{name: x, dtype: float32",
    "bad_escape": SMALL + 'doc: "\\q"\n',
    "bad_tag": SMALL + "doc: !<\n",
    "bad_directive": "%YAML one\n---\n" + SMALL,
    "tab": "name:\tP\n\tversion: 1.0.0\n",
    "utf16": ("\ufeff" + SMALL).encode("utf-16-le"),
    "utf8_mark": b"\xef\xbb\xbf" + SMALL.encode(),
}
