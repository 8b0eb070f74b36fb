"""SmolLM2 against transformers' LlamaForCausalLM in float32: llama_oracle.npz, which llama_oracle.py wrote."""

import numpy as np
import opgraft
import pytest
from opgraft import rewrite
from opgraft.generation import Text, TextModel

pytest.importorskip("gguf")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")
from small_llama import ROOT, graph_of, llama, smollm2  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("planned"),
    pytest.mark.skipif(not smollm2(), reason="./build.sh test --all fetches the model"),
]
ORACLE = np.load(ROOT / "tests" / "python" / "llama_oracle.npz")
PROMPTS = [ids[:n].tolist() for ids, n in zip(ORACLE["ids"], ORACLE["lengths"])]
CLOSE = 1e-3  # of logits up to 30; no token was a nearer tie than twice that
CONTEXT = 256


def test_the_oracle_has_no_near_tie():
    assert ORACLE["greedy"].shape == (20, 64) and ORACLE["margins"].min() > 2 * CLOSE


def test_prompts_become_the_ids_of_transformers():
    tokenizer = llama.LlamaTokenizer(llama.Checkpoint(smollm2()))
    for prompt, ids in zip(ORACLE["prompts"], PROMPTS):
        assert tokenizer.chat([{"role": "user", "content": str(prompt)}]) == ids, prompt


def close(logits, k):
    np.testing.assert_allclose(logits[ORACLE["picked"]], ORACLE["logits"][k], rtol=0, atol=CLOSE)


def test_the_plain_model_is_the_oracle():
    """Concatenated caches. Where each token of the oracle's text is the likeliest after those before it, a greedy text
    is the oracle's, token by token."""
    net = llama.load(smollm2(), last_only=False)
    empty = [np.zeros((1, net.config.num_key_value_heads, 0, net.config.head_dim), np.float32)] * (
        2 * net.config.num_hidden_layers
    )
    for k, ids in enumerate(PROMPTS):
        whole = np.array([[*ids, *ORACLE["greedy"][k][:-1]]], np.int32)
        logits = net(whole, np.arange(whole.shape[1], dtype=np.int32), *empty)[0].asnumpy()[0, len(ids) - 1 :]
        close(logits[0], k)
        assert logits.argmax(-1).tolist() == ORACLE["greedy"][k].tolist()


@pytest.fixture(scope="module")
def grafted(tmp_path_factory):
    """The exported and optimised file, loaded."""
    opgraft.set_context(mode=opgraft.GRAPH_MODE)
    net, info = llama.build(smollm2(), "float32", rows=CONTEXT)
    graph = graph_of(net)
    rewrite.substitute(graph)
    graph.user_info = info
    file = tmp_path_factory.mktemp("llama") / "grafted.mindir"
    opgraft._core.write_mindir(graph, str(file))
    return TextModel(opgraft.load(file), Text.of(info))


@pytest.mark.parametrize("k", range(len(PROMPTS)))
def test_greedy_texts_are_the_oracles(grafted, k):
    grafted.session.reset()
    ids, position, text = PROMPTS[k], 0, []
    for _ in ORACLE["greedy"][k]:
        logits = grafted.logits(ids, position)
        if not text:
            close(logits, k)
        position += len(ids)
        ids = [int(logits.argmax())]
        text += ids
    assert text == ORACLE["greedy"][k].tolist()
