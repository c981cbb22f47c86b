#!/usr/bin/env python3
"""Writes the Llama, Mistral and Qwen2 models of tests/golden, with logits by PyTorch and transformers in float64.

    tools/reference/make_golden_llama.py [--out tests/golden]

Beside make_golden.py, whose format this shares. transformers computes norms, rotary angles and the softmax of these
families in float32 whatever the model's type, and rounds the logits to it; here these are made to keep float64, and
everything else is as it is.
Every option is checked to matter: with it undone the logits must move.
"""

import argparse
import json
import os
import sys
import zlib

import numpy as np
import torch
import transformers
from make_golden import write_safetensors
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "intermediate_size": 20, "vocab_size": 23, "max_position_embeddings": 26, "rope_theta": 50.0}
FAMILIES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, "LlamaForCausalLM"),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, "MistralForCausalLM"),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, "Qwen2ForCausalLM"),
}
# name -> (family, what differs from SIZES, what to undo to show that it matters)
MODELS = {
    "llama": ("llama", {}, {"rope_theta": 10000.0}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
                          {"rms_norm_eps": 1e-6}),
    "llama-all-heads-biases": ("llama", {"num_key_value_heads": 4, "attention_bias": True, "hidden_act": "gelu"},
                               {"hidden_act": "silu"}),
    "llama-linear-rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 3.0}}, {"rope_scaling": None}),
    "mistral-window": ("mistral", {"sliding_window": 8}, {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}, {"rope_theta": 10000.0}),
}


def norm_in_float64(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def frequencies(module):
    exponents = torch.arange(0, module.dim, 2, dtype=torch.float64) / module.dim
    return 1.0 / (module.base**exponents) / getattr(module, "scaling_factor", 1.0)


def llama_rotary(self, x, position_ids, seq_len=None):
    angles = position_ids[:, :, None].double() * frequencies(self)[None, None, :]
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def cached_rotary(self, x, seq_len=None):
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies(self))
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def keep_float64():
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = lambda self: self  # the logits at the end
    for norm in (modeling_llama.LlamaRMSNorm, modeling_mistral.MistralRMSNorm, modeling_qwen2.Qwen2RMSNorm):
        norm.forward = norm_in_float64
    modeling_llama.LlamaRotaryEmbedding.forward = llama_rotary
    modeling_llama.LlamaLinearScalingRotaryEmbedding.forward = llama_rotary
    modeling_mistral.MistralRotaryEmbedding.forward = cached_rotary
    modeling_qwen2.Qwen2RotaryEmbedding.forward = cached_rotary
    softmax = torch.nn.functional.softmax
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None: softmax(x, dim=dim)


def make_config(name, changes):
    kind = FAMILIES[MODELS[name][0]][0]
    config = kind(**{**SIZES, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **changes})
    config._attn_implementation = "eager"
    return config


def random_weights(model, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in model.named_parameters():
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        values = 1 + 0.2 * values if "norm" in name else (0.1 if name.endswith("bias") else 0.4) * values
        weights[name] = values.to(torch.float32)
    return weights


def torch_logits(name, changes, weights, ids):
    config = make_config(name, changes)
    model = FAMILIES[MODELS[name][0]][1](config).double().eval()
    state = {key: tensor.double() for key, tensor in weights.items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=False)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


def make(name, out):
    family, changes, undo = MODELS[name]
    seed = zlib.crc32(name.encode())
    config = make_config(name, changes)
    weights = random_weights(FAMILIES[family][1](config), seed)
    ids = [int(i) for i in np.random.default_rng(seed).integers(0, config.vocab_size, config.max_position_embeddings)]
    logits = torch_logits(name, changes, weights, ids)
    moved = ((torch_logits(name, {**changes, **undo}, weights, ids) - logits).abs().max() / logits.abs().max()).item()
    if moved < 1e-4:
        sys.exit(f"make_golden_llama: {name}: undoing {undo} moves the logits by {moved:.1e} only")
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    config.architectures = [FAMILIES[family][2]]
    config.torch_dtype = "float32"
    config.save_pretrained(folder)
    write_safetensors(os.path.join(folder, "model.safetensors"), weights)
    rows = ",\n  ".join(json.dumps(row) for row in logits.tolist())
    head = json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "ids": ids})
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        file.write(f'{head[:-1]},\n "logits": [\n  {rows}\n ]}}\n')
    print(f"{name}: {len(ids)} x {config.vocab_size}, largest logit {logits.abs().max():.3f}, undone {moved:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden"))
    options = parser.parse_args()
    keep_float64()
    for name in MODELS:
        make(name, options.out)


if __name__ == "__main__":
    main()
