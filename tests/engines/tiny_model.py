"""Make a tiny language model with random weights: its text is noise, its life in an engine is real.

Run it with the interpreter that an engine is installed in (it needs torch, transformers and tokenizers):

    ENGINE_PYTHON tests/engines/tiny_model.py FOLDER [--context 512] [--layers 2] [--shards 1]

A Llama of two layers in bfloat16 with a byte-level tokenizer of 512 entries and a chat template, 0.3 MB. Loads in
vLLM 0.32 and SGLang 0.5.23.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

SENTENCES = (
    "A stoker tends an engine: lights it, feeds it, watches it, banks it down, and never walks off leaving it burning.",
    "What is one times two? Two. Tell me about servers, prompts, tokens and answers.",
)
"""What the tokenizer is trained on. 512 entries are the 256 bytes, the special ones, and what is common here."""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(folder: Path, *, context: int = 512, layers: int = 2, shards: int = 1) -> None:
    """Write config, weights, tokenizer and chat template to `folder`.

    Args:
        context: longest sequence in tokens (`max_position_embeddings`); 131072 allows streams that last minutes.
        layers: hidden layers; another number is another model for a compile cache.
        shards: weight files, at least; an engine shows its progress in them.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch  # the engine's own, not ours
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    model.save_pretrained(folder, max_shard_size=size // shards + 1)
    make_tokenizer(folder, context)


def make_tokenizer(folder: Path, context: int) -> None:
    """Train and save a byte-level BPE tokenizer of exactly 512 entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    missing = 512 - tokenizer.get_vocab_size()
    tokenizer.add_tokens([f"<|spare-{number}|>" for number in range(missing)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|begin|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        model_max_length=context,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--context", type=int, default=512, help="longest sequence in tokens")
    parser.add_argument("--layers", type=int, default=2, help="hidden layers")
    parser.add_argument("--shards", type=int, default=1, help="weight files, at least")
    given = parser.parse_args()
    make_model(given.folder, context=given.context, layers=given.layers, shards=given.shards)
    print(given.folder)


if __name__ == "__main__":
    main()
