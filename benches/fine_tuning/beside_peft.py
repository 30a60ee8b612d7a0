"""Fine-tunes an adapter, or all weights, with autobwd and with PyTorch and peft, from the same values on the same batch,
step by step.

    python beside_peft.py MODEL [--autobwd PATH] [--full] [--dtype float32|bfloat16] [--quantize nf4|int8] [--threads N]
                         [--steps N] [--rows N] [--length N]

MODEL is a folder in the layout of Hugging Face. Every row has the same number of tokens, and all rows are one batch, so
that the order of rows does not matter. Weights that are quantised for autobwd are rounded to the same values for
PyTorch, which then computes in 32 bits. With `--full`, parameters are float32, and products have the dtype. Prints one JSON line: losses of both before each step, median seconds of a step
without the first, and the largest resident memory of each process in MB.

Needs torch, transformers and peft.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

NF4 = [-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0, 0.0795803, 0.1609302,
       0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295696, 1]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--autobwd", default="autobwd")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantize")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--worker", help="the folder of the run, in the process of PyTorch")
    return parser.parse_args()


def rounded(weight, kind):
    import torch

    block = 64 if kind == "nf4" else 32
    parts = weight.float().reshape(-1, block)
    largest = parts.abs().amax(1, keepdim=True)
    if kind == "nf4":
        codes = torch.tensor(NF4)
        nearest = (parts / largest).unsqueeze(-1).sub(codes).abs().argmin(-1)
        values = codes[nearest] * largest
    else:
        # The number of the largest magnitude has the lowest code, -128.
        extreme = parts.gather(1, parts.abs().argmax(1, keepdim=True))
        scale = -extreme / 128
        values = (parts / scale).round().clamp(-128, 127) * scale
    return values.reshape(weight.shape).to(weight.dtype)


def prepared(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.full:
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    if args.quantize:
        for name, module in model.named_modules():
            if name.rsplit(".")[-1] in TARGETS:
                module.weight.data = rounded(module.weight.data, args.quantize)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM"))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.01)
    return model


def worker(args):
    """Saves the adapter, waits for the batch, and trains."""
    import torch

    model = prepared(args)
    if not args.full and not os.path.exists(f"{args.worker}/adapter"):
        return model.save_pretrained(f"{args.worker}/adapter")
    ids = torch.tensor(json.load(open(f"{args.worker}/ids.json")))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.rate, weight_decay=0.0)
    losses, seconds = [], []
    for _ in range(args.steps):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.full and args.dtype == "bfloat16"):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"losses": losses, "seconds": sorted(seconds[1:])[len(seconds[1:]) // 2]}))


def measured(command):
    """The output of a process, and its largest resident memory in MB."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            sys.exit(f"{command} failed")
        out.seek(0)
        return out.read().decode(), usage.ru_maxrss / 1e3


def main():
    args = arguments()
    if args.worker:
        return worker(args)
    with tempfile.TemporaryDirectory() as folder:
        peer = [sys.executable, __file__, *sys.argv[1:], "--worker", folder]
        if not args.full:
            subprocess.run(peer, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(args.model)
        words = ["the sea", "a lamp", "old bread", "the moon", "a clock", "one boat", "cold rain", "some salt"]
        with open(f"{folder}/data.jsonl", "w") as lines:
            rows = []
            for row in range(args.rows):
                text = " and ".join(words[(row * 3 + at * at) % len(words)] for at in range(args.length))
                text = tokenizer.decode(tokenizer(text)["input_ids"][: args.length - 1])
                rows.append(tokenizer(text)["input_ids"] + [tokenizer.eos_token_id])
                lines.write(json.dumps({"text": text}) + "\n")
        assert all(len(row) == args.length for row in rows), "rows of different lengths"
        json.dump(rows, open(f"{folder}/ids.json", "w"))
        own = [args.autobwd, "tune", args.model, f"{folder}/data.jsonl"]
        own += [] if args.full else ["--adapter", f"{folder}/adapter"]
        own += ["--rate", str(args.rate), "--constant", "--warmup", "0", "--clip", "0", "--batch", str(args.rows)]
        own += ["--epochs", str(args.steps), "--no-packing", "--threads", str(args.threads), "--dtype", args.dtype]
        own += ["-o", f"{folder}/result"] + (["--quantize", args.quantize] if args.quantize else [])
        result, own_memory = measured(own)
        result = json.loads(result)
        log = [json.loads(line) for line in open(f"{folder}/result/log.jsonl")][1:]
        times = [b["time_s"] - a["time_s"] for a, b in zip(log, log[1:])]
        output, peer_memory = measured(peer)
        other = json.loads(output.splitlines()[-1])
        losses = [line["values"]["loss"] for line in log]
        print(json.dumps({
            "dtype": args.dtype, "quantize": args.quantize, "threads": args.threads,
            "losses": losses, "peer_losses": other["losses"],
            "largest_difference": max(abs(a - b) for a, b in zip(losses, other["losses"])),
            "seconds": sorted(times)[len(times) // 2], "peer_seconds": other["seconds"],
            "planned_mb": result["planned_bytes"] / 1e6, "resident_mb": own_memory, "peer_resident_mb": peer_memory,
        }))


main()
