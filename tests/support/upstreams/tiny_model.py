"""Makes a tiny model file with random weights, for a real llama.cpp server to serve."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
