"""A GPT-2 folder of seeded random weights, of any size: a model for comparisons that nobody has to download. NumPy only."""

import json
import os

import numpy as np


def tensor_shapes(config):
    """Name -> shape of every tensor of a tied GPT-2, in Hugging Face's names without a prefix."""
    width = config["n_embd"]
    shapes = {"wte.weight": (config["vocab_size"], width), "wpe.weight": (config["n_positions"], width)}
    linears = {
        "attn.c_attn": (width, 3 * width),
        "attn.c_proj": (width, width),
        "mlp.c_fc": (width, 4 * width),
        "mlp.c_proj": (4 * width, width),
    }
    for layer in range(config["n_layer"]):
        for name, (rows, columns) in linears.items():
            shapes.update({f"h.{layer}.{name}.weight": (rows, columns), f"h.{layer}.{name}.bias": (columns,)})
        for name in ("ln_1", "ln_2"):
            shapes.update({f"h.{layer}.{name}.weight": (width,), f"h.{layer}.{name}.bias": (width,)})
    shapes.update({"ln_f.weight": (width,), "ln_f.bias": (width,)})
    return shapes


def random_tensor(random, name, shape, width):
    """Matrices are scaled so that attention is sharp and activations are far from linear; norms scale by about 1."""
    values = random.standard_normal(shape, dtype=np.float32)
    if len(shape) == 2:
        return values * np.float32(1.4 / np.sqrt(width))
    is_scale = "ln_" in name and name.endswith(".weight")
    return values * np.float32(0.1) + np.float32(1 if is_scale else 0)


def write_random_folder(folder, seed, **sizes):
    """Writes config.json and model.safetensors (f32). `sizes` has n_embd, n_head, n_layer, n_positions and vocab_size."""
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": None,
        "eos_token_id": None,
        **sizes,
    }
    random, header, arrays, offset = np.random.default_rng(seed), {}, [], 0
    for name, shape in tensor_shapes(config).items():
        array = random_tensor(random, name, shape, config["n_embd"])
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + array.nbytes]}
        arrays.append(array)
        offset += array.nbytes
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays:
            file.write(array.astype("<f4").tobytes())
