#!/usr/bin/env python3
"""Trains the bundled character model and writes it as an ordinary Hugging Face GPT-2 folder.

    OMP_NUM_THREADS=2 tools/train_shakespeare.py --data tinyshakespeare.txt

The text's bytes are the tokens (token id = byte value). The first 90 % train, the rest validates. Everything is seeded: a
batch depends on the seed and the step number alone, so an interrupted run that is resumed sees the same batches.
Needs PyTorch (1.13 or later) and NumPy.
"""

import argparse
import json
import math
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

CONTEXT, WIDTH, LAYERS, HEADS, INNER, VOCAB = 128, 128, 4, 4, 512, 256
EPSILON = 1e-5
START = ord("\n")


def initial_weights(seed):
    """GPT-2's initialisation under Hugging Face's names; linear weights are Conv1D, that is [in, out]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, std=0.02):
        return torch.randn(*shape, generator=generator) * std

    weights = {"wte.weight": normal(VOCAB, WIDTH), "wpe.weight": normal(CONTEXT, WIDTH)}
    residual_std = 0.02 / math.sqrt(2 * LAYERS)
    for i in range(LAYERS):
        for norm in ("ln_1", "ln_2"):
            weights[f"h.{i}.{norm}.weight"] = torch.ones(WIDTH)
            weights[f"h.{i}.{norm}.bias"] = torch.zeros(WIDTH)
        linears = {
            "attn.c_attn": (WIDTH, 3 * WIDTH, 0.02),
            "attn.c_proj": (WIDTH, WIDTH, residual_std),
            "mlp.c_fc": (WIDTH, INNER, 0.02),
            "mlp.c_proj": (INNER, WIDTH, residual_std),
        }
        for name, (rows, columns, std) in linears.items():
            weights[f"h.{i}.{name}.weight"] = normal(rows, columns, std=std)
            weights[f"h.{i}.{name}.bias"] = torch.zeros(columns)
    weights["ln_f.weight"] = torch.ones(WIDTH)
    weights["ln_f.bias"] = torch.zeros(WIDTH)
    return {"transformer." + name: tensor.requires_grad_() for name, tensor in weights.items()}


def forward(weights, ids, dropout=0.0):
    """Logits [batch, time, VOCAB] of ids [batch, time]."""
    batch, length = ids.shape
    mask = torch.full((length, length), float("-inf")).triu(1)

    def linear(x, name):
        flat = torch.addmm(weights[name + ".bias"], x.reshape(-1, x.shape[-1]), weights[name + ".weight"])
        return flat.view(batch, length, -1)

    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), weights[name + ".weight"], weights[name + ".bias"], EPSILON)

    def split_heads(x):
        return x.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

    embedding = weights["transformer.wte.weight"]
    x = F.embedding(ids, embedding) + weights["transformer.wpe.weight"][:length]
    x = F.dropout(x, dropout)
    for i in range(LAYERS):
        block = f"transformer.h.{i}."
        q, k, v = linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(WIDTH, dim=2)
        scores = split_heads(q) @ split_heads(k).transpose(2, 3) / math.sqrt(WIDTH // HEADS) + mask
        heads = scores.softmax(-1) @ split_heads(v)
        heads = heads.transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + F.dropout(linear(heads, block + "attn.c_proj"), dropout)
        inner = F.gelu(linear(norm(x, block + "ln_2"), block + "mlp.c_fc"), approximate="tanh")
        x = x + F.dropout(linear(inner, block + "mlp.c_proj"), dropout)
    return norm(x, "transformer.ln_f") @ embedding.T


def sample_batch(text, batch, seed, step):
    """Windows [batch, CONTEXT + 1] at random places: inputs and, one later, their targets."""
    starts = np.random.default_rng([seed, step]).integers(0, len(text) - CONTEXT, batch)
    return torch.from_numpy(np.stack([text[s : s + CONTEXT + 1] for s in starts]).astype(np.int64))


def loss_of(weights, windows, dropout=0.0, reduction="mean"):
    logits = forward(weights, windows[:, :-1], dropout)
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction=reduction)


@torch.no_grad()
def evaluate(weights, text, max_windows=None):
    """Mean nats a character over text cut into windows of CONTEXT that do not overlap (the last one may be shorter)."""
    windows = [text[s : s + CONTEXT + 1] for s in range(0, len(text) - 1, CONTEXT)]
    if max_windows:
        windows = windows[:: max(1, len(windows) // max_windows)]
    full = [w for w in windows if len(w) == CONTEXT + 1]
    groups = [np.stack(full[i : i + 64]) for i in range(0, len(full), 64)]
    groups += [w[None] for w in windows if len(w) != CONTEXT + 1]
    total = sum(loss_of(weights, torch.from_numpy(g.astype(np.int64)), reduction="sum").item() for g in groups)
    return total / sum(len(w) - 1 for w in windows)


def learning_rate(step, options):
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    progress = (step - options.warmup) / max(1, options.steps - options.warmup)
    return options.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def write_atomically(path, data):
    temporary = f"{path}.tmp{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def safetensors_bytes(tensors):
    """The safetensors encoding of f32 arrays by name: header length, JSON header padded to 8 bytes, the data."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(a, dtype="<f4").tobytes() for a in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def byte_characters():
    """GPT-2's map from byte to printable character: printable bytes stand for themselves, the others count up from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def model_config():
    return {
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.0,
        "bos_token_id": START,
        "embd_pdrop": 0.0,
        "eos_token_id": None,
        "initializer_range": 0.02,
        "layer_norm_epsilon": EPSILON,
        "model_type": "gpt2",
        "n_ctx": CONTEXT,
        "n_embd": WIDTH,
        "n_head": HEADS,
        "n_inner": INNER,
        "n_layer": LAYERS,
        "n_positions": CONTEXT,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": VOCAB,
    }


def write_folder(folder, weights):
    os.makedirs(folder, exist_ok=True)
    vocabulary = {character: byte for byte, character in sorted(byte_characters().items())}
    tokenizer = {
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": None,
        "errors": "replace",
        "model_max_length": CONTEXT,
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": None,
    }
    texts = {
        "config.json": json.dumps(model_config(), indent=2) + "\n",
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False) + "\n",
        "merges.txt": "#version: 0.2\n",
        "tokenizer_config.json": json.dumps(tokenizer, indent=2) + "\n",
    }
    for name, text in texts.items():
        write_atomically(os.path.join(folder, name), text.encode("utf-8"))
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    write_atomically(os.path.join(folder, "model.safetensors"), safetensors_bytes(arrays))


def save_checkpoint(path, step, weights, optimizer):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.tmp{os.getpid()}"
    torch.save({"step": step, "weights": weights, "optimizer": optimizer.state_dict()}, temporary)
    os.replace(temporary, path)


def make_optimizer(weights, options):
    """AdamW; weight decay on matrices only."""
    groups = [
        {"params": [w for w in weights.values() if w.dim() >= 2], "weight_decay": options.weight_decay},
        {"params": [w for w in weights.values() if w.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.99))


def train(options, training_text, validation_text):
    weights = initial_weights(options.seed)
    optimizer = make_optimizer(weights, options)
    first = 0
    if options.resume:
        state = torch.load(options.checkpoint)
        first = state["step"]
        for name, tensor in weights.items():
            tensor.data.copy_(state["weights"][name])
        optimizer.load_state_dict(state["optimizer"])
    torch.manual_seed(options.seed + first)  # dropout only
    began, average = time.time(), None
    for step in range(first, options.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        loss = loss_of(weights, sample_batch(training_text, options.batch, options.seed, step), options.dropout)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        done = step + 1
        if done % 50 == 0 or done == 1:
            seconds = (time.time() - began) / (done - first)
            left = seconds * (options.steps - done) / 60
            progress = f"step {done}/{options.steps} train {average:.4f}"
            print(f"{progress} {1e3 * seconds:.0f} ms/step, {left:.1f} min left", flush=True)
        if done % options.save_every == 0 and done < options.steps:
            print(f"step {done} validation {evaluate(weights, validation_text, 200):.4f} (a sample)", flush=True)
            write_folder(options.out, weights)
            save_checkpoint(options.checkpoint, done, weights, optimizer)
    write_folder(options.out, weights)
    return weights


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="the text, for example tinyshakespeare.txt")
    parser.add_argument("--out", default="models/shakespeare-char", help="folder to write (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32, help="windows of %d characters in a step" % CONTEXT)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=150, help="steps until the peak")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--save-every", type=int, default=250, help="write folder and checkpoint every N steps")
    parser.add_argument("--checkpoint", default="build/train_shakespeare.pt", help="state for --resume (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


def main():
    options = parse_arguments()
    try:
        text = np.fromfile(options.data, dtype=np.uint8)
    except OSError as error:
        sys.exit(f"train_shakespeare: {error}")
    split = int(0.9 * len(text))
    training_text, validation_text = text[:split], text[split:]
    if len(validation_text) <= CONTEXT:
        sys.exit(f"train_shakespeare: {options.data}: {len(text)} bytes are too few for windows of {CONTEXT}")
    weights = train(options, training_text, validation_text)
    print(f"validation loss {evaluate(weights, validation_text):.4f} nats/char over {len(validation_text)} characters")
    print(f"training loss   {evaluate(weights, training_text, 2000):.4f} nats/char on a sample of the training text")


if __name__ == "__main__":
    main()
