"""Continues a text with a published model, by autobwd, by PyTorch, and by llama.cpp if it is given a file.

    python beside_peers.py MODEL [--gguf FILE] [--autobwd PATH] [--threads N] [--runs N]

MODEL is a folder in the layout of Hugging Face, FILE the same model for llama.cpp. The time of a token is the time of
97 tokens less the time of one, divided by 96. Runs take turns. Prints one JSON line with the median of the milliseconds
of a token for each.

Needs torch and transformers, and llama-cpp-python for `--gguf`.
"""

import argparse
import json
import statistics
import subprocess
import time

PROMPT = "Once upon a time, there was a"
OWN = {
    "autobwd float32": [],
    "autobwd bfloat16": ["--dtype", "bfloat16"],
    "autobwd int8, head int8": ["--quantize", "int8", "--quantize-head", "int8"],
    "autobwd int4, head int8": ["--quantize", "int4", "--quantize-head", "int8"],
}


def own(args, options):
    def run(tokens):
        command = [args.autobwd, "generate", args.model, "--prompt", PROMPT, "--greedy", "--json", *options]
        command += ["--threads", str(args.threads), "--max-tokens", str(tokens)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result = json.loads(output)
        return result["seconds"], result["texts"][0]["new_tokens"]

    return run


def torch_peer(args, dtype):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(args.threads)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    ids = AutoTokenizer.from_pretrained(args.model)(PROMPT, return_tensors="pt")

    def run(tokens):
        start = time.perf_counter()
        model.generate(**ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return time.perf_counter() - start, tokens

    return run


def llama_peer(args):
    from llama_cpp import Llama

    model = Llama(args.gguf, n_threads=args.threads, n_threads_batch=args.threads, n_ctx=256, verbose=False)

    def run(tokens):
        start = time.perf_counter()
        result = model(PROMPT, max_tokens=tokens, temperature=0)
        return time.perf_counter() - start, result["usage"]["completion_tokens"]

    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--gguf")
    parser.add_argument("--autobwd", default="autobwd")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    peers = {name: own(args, options) for name, options in OWN.items()}
    peers |= {f"PyTorch {dtype}": torch_peer(args, dtype) for dtype in ["float32", "bfloat16"]}
    if args.gguf:
        peers["llama.cpp"] = llama_peer(args)
    times = {name: [] for name in peers}
    for run in peers.values():
        run(2)
    for _ in range(args.runs):
        for name, run in peers.items():
            (first, one), (whole, count) = run(1), run(97)
            times[name].append((whole - first) * 1e3 / (count - one))
    medians = {name: round(statistics.median(values), 1) for name, values in times.items()}
    print(json.dumps({"threads": args.threads, "ms_per_token": medians}))


main()
