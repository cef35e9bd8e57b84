"""Language models from small configs: the same in evaluation mode, random in training mode."""

import pytest
import torch
from torch import nn

import kasuri

transformers = pytest.importorskip("transformers")

COMMON = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "GPT2": NO_DROPOUT,  # its head is its embedding, and its linear layers have weights (in, out)
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Mixtral": {"num_local_experts": 3},  # experts (E, out, in)
    "Gemma2": {"head_dim": 8},  # its head is its embedding, which has a padding row
    "OPT": {"ffn_dim": 32, "word_embed_proj_dim": 16, "dropout": 0.0},
    "GPTNeoX": {"rotary_pct": 1.0},
    "Mamba": {"state_size": 4},  # parameters of its own beside layers, no attention
}
IDS = torch.arange(3, 17).reshape(2, 7)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    name = request.param
    config = getattr(transformers, f"{name}Config")(**COMMON, **MODELS[name])
    kind = "GPT2LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    return getattr(transformers, kind)(config).eval()


@pytest.mark.parametrize("estimator", ["shared", "auto"])
def test_converted_models_run_train_and_generate(model: nn.Module, estimator: str) -> None:
    bnn = kasuri.bayesianize(model, kasuri.KTied(rank=2, scale=0.05), estimator=estimator)
    assert isinstance(bnn, type(model))
    assert not [name for name, _ in kasuri.named_posteriors(bnn) if "norm" in name]
    with torch.no_grad():
        assert torch.equal(bnn.eval()(IDS).logits, model(IDS).logits)
    bnn.train()
    loss = bnn(input_ids=IDS, labels=IDS).loss
    assert not torch.equal(loss, bnn(input_ids=IDS, labels=IDS).loss)
    loss.backward()
    assert all(p.grad is not None for p in bnn.parameters())
    drawn = kasuri.collapse(bnn, "sample", seed=1).eval()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad(), kasuri.frozen(bnn.eval(), seed=1):
        assert torch.equal(bnn.generate(IDS, **options), drawn.generate(IDS, **options))


def test_fan_in_of_experts(model: nn.Module) -> None:
    bnn = kasuri.bayesianize(model, kasuri.KTied(rank=1))
    for name, q in kasuri.named_posteriors(bnn):
        if "experts" in name:
            assert len(q.shape) == 3
            assert kasuri.HeNormal().scale_for(q.shape) == (2 / q.shape[-1]) ** 0.5
