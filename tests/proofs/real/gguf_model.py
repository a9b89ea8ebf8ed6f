"""Write a tiny random Llama with its tokenizer as a GGUF file: `python gguf_model.py FILE`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACE = "\u2581"
"""What SentencePiece writes for a space."""

PIECES = 1000
CONTEXT, WIDTH, HEADS, LAYERS, FEED_FORWARD = 4096, 128, 4, 2, 256
CHAT_TEMPLATE = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}\n{% endfor %}<assistant>"


def make_pieces() -> list[str]:
    """Single letters and made-up syllables, with and without a space before them."""
    generator = random.Random(0)
    pieces = dict.fromkeys([SPACE, *LETTERS])
    while len(pieces) < PIECES:
        pieces[generator.choice(("", SPACE)) + "".join(generator.choices(LETTERS, k=generator.randint(1, 3)))] = None
    return list(pieces)


def write_model(path: str) -> None:
    """Write vocabulary, sizes and random weights."""
    import gguf  # type: ignore[import-not-found]  # in an environment of its own
    import numpy

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    tokens = _write_vocabulary(writer, gguf.TokenType)
    generator = numpy.random.default_rng(0)
    for name, shape in _shapes(tokens):
        values = generator.standard_normal(shape) * 0.05 if len(shape) > 1 else numpy.ones(shape)
        writer.add_tensor(name, values.astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_vocabulary(writer: Any, kinds: Any) -> int:
    """Special tokens, single bytes and pieces; how many there are."""
    special = {"<unk>": kinds.UNKNOWN, "<s>": kinds.CONTROL, "</s>": kinds.CONTROL}
    single = {f"<0x{byte:02X}>": kinds.BYTE for byte in range(256)}
    vocabulary = {**special, **single, **dict.fromkeys(make_pieces(), kinds.NORMAL)}
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(list(vocabulary))
    writer.add_token_types(list(vocabulary.values()))
    # The longest piece is the best.
    writer.add_token_scores([float(len(token)) if kind == kinds.NORMAL else 0.0 for token, kind in vocabulary.items()])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
    return len(vocabulary)


def _shapes(tokens: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (tokens, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (tokens, WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for norm in ("attn_norm", "ffn_norm"):
            yield f"{block}.{norm}.weight", (WIDTH,)
        for projection in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}.{projection}.weight", (WIDTH, WIDTH)
        for projection in ("ffn_gate", "ffn_up"):
            yield f"{block}.{projection}.weight", (FEED_FORWARD, WIDTH)
        yield f"{block}.ffn_down.weight", (WIDTH, FEED_FORWARD)


if __name__ == "__main__":
    write_model(sys.argv[1])
