"""Makes tiny models with random weights, for real servers to serve."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
# Tokens of one character each, so that a test can count them; "▁" is how a space is spelled.
_CHARACTERS: Final = [chr(code) for code in range(33, 127)] + ["▁"]
_SPECIAL: Final = ["<unk>", "<s>", "</s>"]
_BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]
_WIDTH, _INNER, _LAYERS, _HEADS = 64, 128, 2, 4


def write_tiny_model(path: Path) -> None:
    """Writes a Llama of two layers, about half a megabyte, that babbles printable characters.

    One character is one token, and a beginning-of-text token comes first: the usage that llama.cpp
    counts can be told beforehand. The output weights of all other tokens are zero, so that an end
    of text is, in practice, never drawn, and each answer is as long as its limit.
    """
    numbers = numpy.random.default_rng(7)
    tokens = [*_SPECIAL, *_BYTES, *_CHARACTERS]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * len(_BYTES) + [gguf.TokenType.NORMAL] * len(_CHARACTERS)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    def random(*shape: int) -> numpy.ndarray:
        return numbers.normal(0, 0.1, shape).astype(numpy.float32)

    def ones() -> numpy.ndarray:
        return numpy.ones(_WIDTH, dtype=numpy.float32)

    output = random(len(tokens), _WIDTH) * 20
    output[: len(_SPECIAL) + len(_BYTES)] = 0
    writer.add_tensor("token_embd.weight", random(len(tokens), _WIDTH))
    writer.add_tensor("output_norm.weight", ones())
    writer.add_tensor("output.weight", output)
    for layer in range(_LAYERS):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", ones())
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", ones())
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", random(_WIDTH, _WIDTH))
        writer.add_tensor(f"blk.{layer}.ffn_gate.weight", random(_INNER, _WIDTH))
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", random(_INNER, _WIDTH))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", random(_WIDTH, _INNER))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_tiny_folder(path: Path) -> None:
    """Writes the same model as a folder of Hugging Face's: each character is a token."""
    path.mkdir()
    tokens = ["<unk>", "</s>", *map(chr, range(32, 127)), "\n"]
    end = {
        "id": 1, "content": "</s>", "special": True,
        **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
    }  # fmt: skip
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated"}
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": {**split, "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    names = {"eos_token": "</s>", "unk_token": "<unk>", "chat_template": CHAT_TEMPLATE}
    settings = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": _WIDTH,
        "intermediate_size": _INNER, "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS, "rms_norm_eps": 1e-5, "vocab_size": len(tokens),
        "max_position_embeddings": 512, "rope_theta": 10_000.0, "eos_token_id": 1,
        "tie_word_embeddings": False,
    }  # fmt: skip
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names}),
        ("config.json", settings),
    ):
        (path / name).write_text(json.dumps(content))
    _write_weights(path / "model.safetensors", len(tokens))


def write_tiny_encoder(path: Path, *, ranks: bool = False) -> None:
    """Writes a BERT that embeds, or one that ranks, as a folder: each character is a token."""
    path.mkdir()
    characters = [chr(code) for code in range(33, 127)]
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *characters, *(f"##{each}" for each in characters)]
    (path / "vocab.txt").write_text("\n".join(names))
    labels = {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}} if ranks else {}
    settings = {
        "model_type": "bert", "hidden_size": _WIDTH, "intermediate_size": _INNER,
        "architectures": ["BertForSequenceClassification" if ranks else "BertModel"],
        "num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS, "vocab_size": len(names),
        "max_position_embeddings": 512, "type_vocab_size": 2, **labels,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(settings))
    names_of = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (path / "tokenizer_config.json").write_text(json.dumps(names_of))
    layers = [f"encoder.layer.{layer}" for layer in range(_LAYERS)]
    shapes = {
        "embeddings.word_embeddings": (len(names), _WIDTH), "pooler.dense": (_WIDTH, _WIDTH),
        "embeddings.position_embeddings": (512, _WIDTH),
        "embeddings.token_type_embeddings": (2, _WIDTH),
    }  # fmt: skip
    for place in layers:
        for each in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{place}.attention.{each}"] = (_WIDTH, _WIDTH)
        shapes[f"{place}.intermediate.dense"] = (_INNER, _WIDTH)
        shapes[f"{place}.output.dense"] = (_WIDTH, _INNER)
    if ranks:
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
        shapes["classifier"] = (1, _WIDTH)
    numbers = numpy.random.default_rng(7)
    weights = {f"{name}.weight": numbers.standard_normal(shape) * 0.3
               for name, shape in shapes.items()}  # fmt: skip
    for name, shape in shapes.items():
        if "embeddings" not in name:
            weights[f"{name}.bias"] = numpy.zeros(shape[0])
    prefix = "bert." if ranks else ""
    norms = [f"{place}.{each}" for place in layers for each in ("attention.output", "output")]
    for name in ("embeddings", *norms):
        weights[f"{prefix}{name}.LayerNorm.weight"] = numpy.ones(_WIDTH)
        weights[f"{prefix}{name}.LayerNorm.bias"] = numpy.zeros(_WIDTH)
    _write_tensors(path / "model.safetensors", weights)


def _write_weights(path: Path, tokens: int) -> None:
    numbers = numpy.random.default_rng(7)
    shapes = {"model.embed_tokens": (tokens, _WIDTH), "lm_head": (tokens, _WIDTH)}
    for layer in range(_LAYERS):
        place = f"model.layers.{layer}"
        shapes |= {f"{place}.self_attn.{each}_proj": (_WIDTH, _WIDTH) for each in "qkvo"}
        shapes |= {f"{place}.mlp.{each}_proj": (_INNER, _WIDTH) for each in ("gate", "up")}
        shapes[f"{place}.mlp.down_proj"] = (_WIDTH, _INNER)
    weights = {name: numbers.standard_normal(shape) * 0.3 for name, shape in shapes.items()}
    # An end of text is, in practice, never drawn.
    weights["lm_head"][:2] = 0
    norms = [f"model.layers.{layer}" for layer in range(_LAYERS)]
    for name in ("model.norm", *(f"{each}.input_layernorm" for each in norms),
                 *(f"{each}.post_attention_layernorm" for each in norms)):  # fmt: skip
        weights[name] = numpy.ones(_WIDTH)
    _write_tensors(path, {f"{name}.weight": values for name, values in weights.items()})


def _write_tensors(path: Path, weights: Mapping[str, numpy.ndarray]) -> None:
    head: dict[str, Any] = {}
    body = b""
    for name, values in weights.items():
        data = values.astype("<f4").tobytes()
        place = [len(body), len(body) + len(data)]
        head[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": place}
        body += data
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
