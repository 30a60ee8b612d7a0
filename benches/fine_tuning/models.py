"""Writes a folder in the layout of Hugging Face with random weights, in the size of a published model.

    python models.py gpt2|qwen2 FOLDER --tokenizer FOLDER

`gpt2` is the size of GPT-2 (124 million parameters), in float32; `qwen2` the size of Qwen2.5-0.5B (494 million), in
bfloat16. The tokenizer is copied from another folder; its tokens must be below 50,257.

Needs torch and transformers.
"""

import argparse
import pathlib
import shutil

import torch
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

SIZES = {
    "gpt2": (GPT2Config(), torch.float32),
    "qwen2": (
        Qwen2Config(
            vocab_size=151_936,
            hidden_size=896,
            intermediate_size=4_864,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            max_position_embeddings=32_768,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
        ),
        torch.bfloat16,
    ),
}

parser = argparse.ArgumentParser()
parser.add_argument("size", choices=SIZES)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
args = parser.parse_args()

config, dtype = SIZES[args.size]
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(config).to(dtype)
model.save_pretrained(args.folder)
for name in ["tokenizer.json", "tokenizer_config.json"]:
    shutil.copy(args.tokenizer / name, args.folder / name)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters in {dtype}")
