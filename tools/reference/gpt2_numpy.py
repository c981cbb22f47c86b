#!/usr/bin/env python3
"""GPT-2's forward pass in float64 NumPy, written from the architecture alone: the independent reference for Stet's logits.

    gpt2_numpy.py FOLDER --ids 1,2,3 -o logits.npy

Reads a Hugging Face GPT-2 folder: config.json and model.safetensors (F64, F32, F16, BF16; also sharded by
model.safetensors.index.json), tensor names with or without the `transformer.` prefix, tied or untied head.
There is no cache and no batching: all positions of one sequence at once, so there is little that can be wrong.
Needs NumPy only.
"""

import argparse
import json
import math
import os

import numpy as np

STORED = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def widen(raw, dtype_name):
    """Stored numbers as float64, exactly. A bf16 is the upper half of an f32."""
    if dtype_name == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return raw.astype(np.float64)


def read_safetensors(path):
    """Float tensors of one file by name, as float64; tensors of other types (old mask buffers) are left out."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in STORED:
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[begin:end], STORED[entry["dtype"]])
        tensors[name] = widen(raw, entry["dtype"]).reshape(entry["shape"])
    return tensors


def read_folder(folder):
    """(config, tensors by name without the `transformer.` prefix) of a Hugging Face GPT-2 folder."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    index = os.path.join(folder, "model.safetensors.index.json")
    files = ["model.safetensors"]
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            files = sorted(set(json.load(file)["weight_map"].values()))
    tensors = {}
    for name in files:
        tensors.update(read_safetensors(os.path.join(folder, name)))
    return config, {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x):
    return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))


ACTIVATIONS = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": gelu_erf,
    "relu": lambda x: np.maximum(x, 0.0),
}


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


class Gpt2:
    """The model of one folder. `forward` is a pure function of the ids."""

    def __init__(self, folder):
        config, self.tensors = read_folder(folder)
        self.layers, self.heads, self.width = config["n_layer"], config["n_head"], config["n_embd"]
        self.context = config.get("n_positions", 1024)
        self.epsilon = config.get("layer_norm_epsilon", 1e-5)
        self.activation = ACTIVATIONS[config.get("activation_function", "gelu_new")]
        self.scale_weights = config.get("scale_attn_weights", True)
        self.scale_by_layer = config.get("scale_attn_by_inverse_layer_idx", False)
        tied = config.get("tie_word_embeddings", True)
        self.head = self.tensors["wte.weight" if tied else "lm_head.weight"]
        self.vocabulary = self.head.shape[0]

    def norm(self, x, name):
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + self.epsilon) * self.tensors[name + ".weight"] + self.tensors[name + ".bias"]

    def linear(self, x, name):
        """Conv1D: the weight is stored [in, out]."""
        return x @ self.tensors[name + ".weight"] + self.tensors[name + ".bias"]

    def split_heads(self, x):
        return x.reshape(x.shape[0], self.heads, -1).transpose(1, 0, 2)

    def attention(self, x, layer, keep):
        """Causal self-attention of normed x [tokens, width]."""
        prefix = f"h.{layer}.attn."
        fused = keep("qkv", self.linear(x, prefix + "c_attn"))
        q, k, v = (self.split_heads(part) for part in np.split(fused, 3, axis=-1))
        keep("q", q), keep("k", k), keep("v", v)
        scores = q @ k.transpose(0, 2, 1)
        if self.scale_weights:
            scores = scores / math.sqrt(self.width // self.heads)
        if self.scale_by_layer:
            scores = scores / (layer + 1)
        future = np.triu(np.ones(scores.shape[-2:], dtype=bool), 1)
        scores = keep("scores", np.where(future, -np.inf, scores))
        mixed = keep("weights", softmax(scores)) @ v
        mixed = keep("mixed", mixed.transpose(1, 0, 2).reshape(x.shape))
        return keep("attention", self.linear(mixed, prefix + "c_proj"))

    def block(self, x, layer, keep):
        normed = keep("ln_1", self.norm(x, f"h.{layer}.ln_1"))
        x = keep("after_attention", x + self.attention(normed, layer, keep))
        inner = keep("fc", self.linear(keep("ln_2", self.norm(x, f"h.{layer}.ln_2")), f"h.{layer}.mlp.c_fc"))
        inner = keep("activation", self.activation(inner))
        return keep("out", x + keep("mlp", self.linear(inner, f"h.{layer}.mlp.c_proj")))

    def forward(self, ids, record=None):
        """Logits [tokens, vocabulary] of ids, at most `context` of them.

        A dict given as `record` receives the intermediates, each with tokens as its first axis or, per head, its second:
        tokens, positions, embedding, ln_f, and for each layer h.I.: ln_1, qkv, q, k, v, scores, weights, mixed, attention,
        after_attention, ln_2, fc, activation, mlp, out.
        """
        if len(ids) > self.context:
            raise ValueError(f"{len(ids)} ids for a context of {self.context}")

        def keeper(prefix):
            def keep(name, value):
                if record is not None:
                    record[prefix + name] = value
                return value

            return keep

        keep = keeper("")
        tokens = keep("tokens", self.tensors["wte.weight"][np.asarray(ids)])
        positions = keep("positions", self.tensors["wpe.weight"][: len(ids)])
        x = keep("embedding", tokens + positions)
        for layer in range(self.layers):
            x = self.block(x, layer, keeper(f"h.{layer}."))
        return keep("ln_f", self.norm(x, "ln_f")) @ self.head.T


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--ids", required=True, help="token ids, separated by commas")
    parser.add_argument("-o", "--out", required=True, help=".npy file to write: tokens x vocabulary")
    options = parser.parse_args()
    np.save(options.out, Gpt2(options.folder).forward([int(i) for i in options.ids.split(",")]))


if __name__ == "__main__":
    main()
