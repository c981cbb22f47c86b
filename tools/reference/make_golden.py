#!/usr/bin/env python3
"""Writes tests/golden: small random GPT-2 models, and their logits by PyTorch and transformers in float64.

    tools/reference/make_golden.py [--out tests/golden]

Needs torch and transformers (the versions used are recorded in each golden.json). The weights are seeded by the folder's
name. Every variant is checked to matter: with the option back at its default the logits must move.
"""

import argparse
import json
import os
import sys
import zlib

import numpy as np
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

DEFAULTS = {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 12, "vocab_size": 23}

# name -> (what differs from DEFAULTS and GPT-2's own config, how the weights are stored)
MODELS = {
    "plain": ({}, {}),
    "gelu-erf": ({"activation_function": "gelu"}, {}),
    "gelu-pytorch-tanh": ({"activation_function": "gelu_pytorch_tanh"}, {}),
    "relu": ({"activation_function": "relu"}, {}),
    "n-inner": ({"n_inner": 20}, {}),
    "epsilon": ({"layer_norm_epsilon": 1e-3}, {}),
    "inverse-layer": ({"scale_attn_by_inverse_layer_idx": True, "n_embd": 12, "n_layer": 3}, {}),
    "unscaled": ({"scale_attn_weights": False}, {}),
    "unscaled-inverse-layer": ({"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True}, {}),
    "untied": ({"tie_word_embeddings": False}, {}),
    "odd-sizes": ({"n_embd": 12, "n_head": 3, "vocab_size": 19, "n_positions": 37}, {}),
    "one-wide-heads": ({"n_embd": 5, "n_head": 5, "n_layer": 1, "vocab_size": 2, "n_positions": 7}, {}),
    "stored-f16": ({}, {"dtype": torch.float16}),
    "stored-bf16": ({}, {"dtype": torch.bfloat16}),
    "stored-f64": ({"n_embd": 12}, {"dtype": torch.float64}),
    "sharded": ({"tie_word_embeddings": False}, {"shards": 3}),
    "sharded-bf16": ({}, {"shards": 2, "dtype": torch.bfloat16}),
    "bare-names": ({}, {"prefix": ""}),
    "mask-buffers": ({}, {"prefix": "", "mask_buffers": True}),
    "everything": (
        {
            "activation_function": "gelu",
            "n_inner": 21,
            "layer_norm_epsilon": 1e-3,
            "scale_attn_by_inverse_layer_idx": True,
            "tie_word_embeddings": False,
            "n_embd": 12,
            "n_head": 3,
            "n_layer": 3,
            "vocab_size": 29,
        },
        {"dtype": torch.float16, "shards": 2, "prefix": ""},
    ),
}

# Options that leave the weights' shapes alone: undone one at a time to show that the golden logits depend on them.
# (gelu_pytorch_tanh is gelu_new by another name and cannot differ.)
UNDO = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}

TYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8"}


def make_config(changes):
    """Token ids of start and end are null: GPT-2's own 50256 lies outside these vocabularies."""
    return GPT2Config(**{**DEFAULTS, "bos_token_id": None, "eos_token_id": None, **changes})


def random_weights(config, seed, dtype):
    """Hugging Face names -> tensors of dtype, large enough that norms, softmax and activations are far from linear."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, tensor in GPT2LMHeadModel(config).named_parameters():
        values = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if ".ln_" in name and name.endswith("weight"):
            values = 1 + 0.2 * values
        elif name.endswith("bias"):
            values = 0.1 * values
        else:
            values = 0.4 * values
        weights[name] = values.to(dtype)
    return weights


def torch_logits(config, weights, ids):
    model = GPT2LMHeadModel(config).double().eval()
    state = {name: tensor.double() for name, tensor in weights.items()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def check_that_options_matter(name, changes, weights, ids, logits):
    for option, default in UNDO.items():
        if changes.get(option, default) == default or changes[option] == "gelu_pytorch_tanh":
            continue
        undone = dict(weights)
        if option == "tie_word_embeddings":
            del undone["lm_head.weight"]
        other = torch_logits(make_config({**changes, option: default}), undone, ids)
        moved = ((other - logits).abs().max() / logits.abs().max()).item()
        if moved < 1e-4:
            sys.exit(f"make_golden: {name}: undoing {option} moves the logits by {moved:.1e} only")


def tensor_bytes(tensor):
    if tensor.dtype == torch.bfloat16:
        return (tensor.contiguous().view(torch.int16)).numpy().astype("<i2").tobytes()
    array = tensor.contiguous().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor_bytes(tensor)
        shape = list(tensor.shape)
        header[name] = {"dtype": TYPE_NAMES[tensor.dtype], "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def stored_tensors(config, weights, storage):
    """The tensors as they go to disk: renamed, and with the mask buffers that old exports carry if wanted."""
    prefix = storage.get("prefix", "transformer.")
    stored = {name.replace("transformer.", prefix): tensor for name, tensor in weights.items()}
    if storage.get("mask_buffers"):
        square = torch.ones(config.n_positions, config.n_positions).tril()[None, None]
        for layer in range(config.n_layer):
            stored[f"{prefix}h.{layer}.attn.bias"] = square if layer == 0 else square.to(torch.uint8)
            stored[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    return stored


def write_weights(folder, tensors, shards):
    if shards == 1:
        write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
        return
    # Dealt out in turn, so that neighbours never share a file.
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        weight_map.update({name: file for name in part})
        write_safetensors(os.path.join(folder, file), {name: tensors[name] for name in part})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}, file, indent=1)
        file.write("\n")


def make(name, out):
    changes, storage = MODELS[name]
    seed = zlib.crc32(name.encode())
    config = make_config(changes)
    weights = random_weights(config, seed, storage.get("dtype", torch.float32))
    length = config.n_positions
    ids = [int(i) for i in np.random.default_rng(seed).integers(0, config.vocab_size, length)]
    logits = torch_logits(config, weights, ids)
    check_that_options_matter(name, changes, weights, ids, logits)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    config.architectures = ["GPT2LMHeadModel"]
    config.torch_dtype = str(storage.get("dtype", torch.float32)).removeprefix("torch.")
    config.save_pretrained(folder)
    write_weights(folder, stored_tensors(config, weights, storage), storage.get("shards", 1))
    golden = {"torch": torch.__version__, "transformers": transformers.__version__, "ids": ids, "logits": logits.tolist()}
    rows = ",\n  ".join(json.dumps(row) for row in golden["logits"])
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        head = json.dumps({key: golden[key] for key in ("torch", "transformers", "ids")})
        file.write(f'{head[:-1]},\n "logits": [\n  {rows}\n ]}}\n')
    print(f"{name}: {len(ids)} x {config.vocab_size}, largest logit {logits.abs().max():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.join(os.path.dirname(__file__), "..", "..", "tests", "golden"))
    options = parser.parse_args()
    for name in MODELS:
        make(name, options.out)


if __name__ == "__main__":
    main()
