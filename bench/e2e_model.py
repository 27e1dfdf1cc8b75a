"""Makes the model of the end-to-end measurement: a Llama of random bf16 weights and a tokenizer of plain words. Run by the engine's Python.

    python e2e_model.py FOLDER

The same seed gives the same bytes each time. The weights mean nothing; what counts is that a prompt costs what a prompt of a model of this
size costs, and that its KV cache has the shape of a real one (grouped queries: 4 KV heads for 12 heads).
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file

SEED = 20261121
WORDS = 8192
SHAPE = {
    "hidden_size": 768,
    "intermediate_size": 2560,
    "num_hidden_layers": 18,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": WORDS,
    **SHAPE,
}


def weights():
    generator = torch.Generator().manual_seed(SEED)
    hidden, wide = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    heads, kv_heads = (SHAPE[key] * SHAPE["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))

    def matrix(rows, columns, scale=1.0):
        return (torch.randn(rows, columns, generator=generator) * (scale * columns**-0.5)).to(torch.bfloat16)

    yield "model.embed_tokens.weight", matrix(WORDS, hidden, hidden**0.5)
    yield "lm_head.weight", matrix(WORDS, hidden, 3.0)
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    for layer in range(SHAPE["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", torch.ones(hidden, dtype=torch.bfloat16)
        yield name + "post_attention_layernorm.weight", torch.ones(hidden, dtype=torch.bfloat16)
        # Sharp attention: a changed key or value then shows in the answer, as it does in a trained model.
        yield name + "self_attn.q_proj.weight", matrix(heads, hidden, 2.0)
        yield name + "self_attn.k_proj.weight", matrix(kv_heads, hidden, 2.0)
        yield name + "self_attn.v_proj.weight", matrix(kv_heads, hidden)
        yield name + "self_attn.o_proj.weight", matrix(hidden, heads)
        yield name + "mlp.gate_proj.weight", matrix(wide, hidden)
        yield name + "mlp.up_proj.weight", matrix(wide, hidden)
        yield name + "mlp.down_proj.weight", matrix(hidden, wide)


def tokenizer():
    words = {"<unk>": 0, "<s>": 1, "</s>": 2}
    words.update({f"w{number}": number for number in range(len(words), WORDS)})
    special = [
        {"id": number, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for word, number in list(words.items())[:3]
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(weights())
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    for file, content in (("config.json", CONFIG), ("tokenizer.json", tokenizer()), ("tokenizer_config.json", names)):
        (folder / file).write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps({"parameters": sum(tensor.numel() for tensor in tensors.values())}))


if __name__ == "__main__":
    main()
