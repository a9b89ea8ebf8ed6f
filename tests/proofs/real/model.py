"""Write a tiny Llama and its tokenizer to a folder: `python model.py FOLDER VOCABULARY`."""

from __future__ import annotations

import random
import sys

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")
CHAT_TEMPLATE = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}\n{% endfor %}<assistant>"


def make_texts() -> list[str]:
    """Text of made-up words, enough to train a tokenizer on."""
    generator = random.Random(0)
    lexicon = ["".join(generator.choices(LETTERS, k=generator.randint(2, 9))) for _ in range(4000)]
    return [" ".join(generator.choices(lexicon, k=60)) for _ in range(600)]


def write_model(folder: str, vocabulary: int) -> None:
    """Write tokenizer and configuration; fails when the texts do not yield the vocabulary asked for."""
    from tokenizers import ByteLevelBPETokenizer  # type: ignore[import-not-found]  # in the engine's environment
    from transformers import LlamaConfig, PreTrainedTokenizerFast  # type: ignore[import-not-found]

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        make_texts(), vocab_size=vocabulary, min_frequency=1, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    beginning, end, padding = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token=beginning, eos_token=end, pad_token=padding
    )
    assert len(tokenizer) == vocabulary, f"the texts yield {len(tokenizer)} tokens, wanted {vocabulary}"
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    ).save_pretrained(folder)


if __name__ == "__main__":
    write_model(sys.argv[1], int(sys.argv[2]))
