"""gpt-nano-sort's recorded PyTorch intermediates beside those of the NumPy forward."""

import base64
import json

import numpy as np

from checks import Failure, hold

RECORDED_LIMIT = 2e-6  # PyTorch's f32 against float64, absolute

# llm-viz's names of its recorded tensors -> Gpt2.forward's.
RECORDED = {
    "tok_emb": "tokens",
    "pos_emb": "positions",
    "x": "embedding",
    "ln1": "h.0.ln_1",
    "q": "h.0.q",
    "k": "h.0.k",
    "v": "h.0.v",
    "qkv": "h.0.qkv",
    "att": "h.0.scores",
    "attSm": "h.0.weights",
    "y": "h.0.mixed",
    "yProj": "h.0.attention",
    "attnResid": "h.0.after_attention",
    "ln2": "h.0.ln_2",
    "fc": "h.0.fc",
    "gelu": "h.0.activation",
    "mlp": "h.0.mlp",
    "mlpResid": "h.0.out",
    "block0": "h.0.out",
    "block1": "h.1.out",
    "block2": "h.2.out",
    "ln_f": "ln_f",
    "lm_head": "logits",
    "probs": "probabilities",
}


def read_recorded(path):
    """llm-viz's recording: name -> array; everything in it is f32, ids included."""
    with open(path, encoding="utf-8") as file:
        recorded = json.load(file)
    recorded.pop("config")
    return {
        name: np.frombuffer(base64.b64decode(entry["data"]), "<f4").reshape(entry["shape"]).astype(np.float64)
        for name, entry in recorded.items()
    }


def numpy_intermediates(model, sequences):
    """What forward() records, stacked over sequences, with the logits and their softmax."""
    records = []
    for ids in sequences:
        record = {}
        record["logits"] = model.forward(ids, record)
        exponentials = np.exp(record["logits"])
        record["probabilities"] = exponentials / exponentials.sum(axis=-1, keepdims=True)
        records.append(record)
    return {name: np.stack([record[name] for record in records]) for name in records[0]}


def compare_recorded(recorded, computed):
    unknown = set(recorded) - set(RECORDED) - {"idx"}
    if unknown:
        raise Failure(f"no counterpart for {sorted(unknown)}")
    worst = (0.0, "")
    for name, array in recorded.items():
        if name == "idx":
            continue
        mine = computed[RECORDED[name]]
        mine = mine[:1] if name == "pos_emb" else mine
        if mine.shape != array.shape:
            raise Failure(f"{name}: shape {mine.shape} instead of {array.shape}")
        hidden = np.isneginf(array)  # keys in the future
        if not np.array_equal(hidden, np.isneginf(mine)):
            raise Failure(f"{name}: other positions are masked")
        worst = max(worst, (np.abs(mine[~hidden] - array[~hidden]).max(), name))
    return hold(worst[0], RECORDED_LIMIT, f"in {len(recorded) - 1} intermediates (worst: {worst[1]})")
