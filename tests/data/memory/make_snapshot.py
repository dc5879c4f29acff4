"""Makes memory snapshots with PyTorch's own caching allocator, and beside each its memory_stats() as JSON.

    python make_snapshot.py FOLDER        needs torch 2.11 and a CUDA device, or one whose host code is pretended

Writes snapshot_{small,late,expandable,oom}.pickle.gz and .json. Each case is a process of its own.
"""

import gzip
import json
import os
import pickle
import subprocess
import sys

CASES = {"small": "", "late": "", "expandable": "expandable_segments:True", "oom": ""}


def step(model, optimizer, rows):
    import torch

    logits = model(torch.randn(rows, 256, device="cuda"))
    logits.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def other_stream():
    """A block that is freed while another stream uses it: its free completes later."""
    import torch

    stream = torch.cuda.Stream()
    shared = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(stream):
        shared.record_stream(stream)
        own = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    del shared
    return own


def record(stacks):
    import torch

    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history(context=stacks, stacks="python", max_entries=100000)


def run(case):
    import torch

    torch.cuda.init()
    if case != "late":
        record("all" if case == "small" else None)
    layers = [torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 3000)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    step(model, optimizer, 16)
    kept = other_stream()
    if case == "late":
        record(None)
    if case != "small":
        for rows in (700, 3000, 64):
            step(model, optimizer, rows)
        torch.cuda.empty_cache()
        step(model, optimizer, 1000)
    again = other_stream()
    if case == "oom":
        try:
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        step(model, optimizer, 32)
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    del kept, again
    return snapshot, stats


def without_folders(value):
    """Stack frames name files; their folders say nothing."""
    if isinstance(value, dict):
        return {k: os.path.basename(v) if k == "filename" else without_folders(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return value


def main():
    folder = sys.argv[1]
    if len(sys.argv) == 2:
        for case, settings in CASES.items():
            environment = {**os.environ, "PYTORCH_ALLOC_CONF": settings}
            subprocess.run([sys.executable, __file__, folder, case], check=True, env=environment)
        return
    case = sys.argv[2]
    snapshot, stats = run(case)
    with gzip.GzipFile(os.path.join(folder, f"snapshot_{case}.pickle.gz"), "wb", mtime=0) as file:
        file.write(pickle.dumps(without_folders(snapshot), protocol=4))
    with open(os.path.join(folder, f"snapshot_{case}.json"), "w") as file:
        json.dump({k: v for k, v in stats.items() if ".all." in k or k.startswith("num_")}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
