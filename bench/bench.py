"""Measures this project beside PyTorch on this machine, in interleaved runs. `./dev bench` builds first, then runs this.

step    CPU time of one training step on one thread, three model sizes, beside peers/torch_step.py
launch  wall time of a whole two-process job of three steps, beside torchrun and DDP

ASSAY_PEER_PYTHON is a Python with torch 2.11. bench/README.md says how the figures are made and read.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASSAY = ROOT / "build/bin/assay"
PEERS = ROOT / "bench/peers"
WARMUP_STEPS = 3
TIMEOUT_SECONDS = 600

# name: (steps timed in one process, arguments of the peer, highest good ratio)
STEP_CASES = {
    "nano": (200, "--hidden 64 --layers 2 --heads 4 --kv-heads 4 --intermediate 176 --vocab 256 --seq 64", 0.70),
    "tiny": (20, "--preset tiny", 1.05),
    "25m": (10, "--preset 25m", 0.97),
}
LAUNCH_TARGET = 0.25


class Failed(Exception):
    """A program under measurement did not do its work."""


def run(command):
    """Runs a program to its end; returns its output and its wall time in seconds. Failed if it does not end with 0."""
    start = time.perf_counter()
    try:
        done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True,
                              timeout=TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from error
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout, seconds


def train(recipe, *overrides):
    """`assay train` into a temporary folder; returns its step events of rank 0 and its wall time."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as folder:
        output = pathlib.Path(folder) / "run"
        _, seconds = run([ASSAY, "train", f"bench/recipes/{recipe}.yaml", *overrides, "--output", output])
        lines = (output / "events/rank_00000.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "step"], seconds


def our_step(size):
    steps = STEP_CASES[size][0] + WARMUP_STEPS
    events, _ = train(f"step_{size}", f"train.max_steps={steps}")
    if len(events) != steps:
        raise Failed(f"assay train recorded {len(events)} steps instead of {steps}")
    return statistics.median(event["cpu_seconds"] for event in events[WARMUP_STEPS:])


def peer_step(python, size):
    steps, arguments, _ = STEP_CASES[size]
    output, _ = run([python, PEERS / "torch_step.py", *arguments.split(), "--batch", 4, "--threads", 1, "--rounds", 1,
                     "--steps", steps, "--warmup", WARMUP_STEPS - 1, "--ceiling-n", 0])
    return json.loads(output.splitlines()[-1])["step_cpu_s"]


def our_launch():
    return train("step_tiny", "train.max_steps=3", "parallel.nproc_per_node=2")[1]


def peer_launch(python):
    return run([python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, PEERS / "dist_step.py",
                "--mode", "ddp", "--preset", "tiny", "--warmup", 2, "--rounds", 0])[1]


def compare(name, rounds, ours, peer, target):
    """ABBA rounds: ours, peer, peer, ours. Prints one row and returns the median over rounds of ours / peer."""
    ratios, our_times, peer_times = [], [], []
    for number in range(rounds):
        times = [ours(), peer(), peer(), ours()]
        our_times.append(statistics.mean((times[0], times[3])))
        peer_times.append(statistics.mean(times[1:3]))
        ratios.append(our_times[-1] / peer_times[-1])
        print(f"{name} round {number + 1} of {rounds}: {ratios[-1]:.3f}", file=sys.stderr, flush=True)
    ratio = statistics.median(ratios)
    print(f"{name:<8}{statistics.median(our_times):>12.6f}{statistics.median(peer_times):>12.6f}{ratio:>9.3f}"
          f"{min(ratios):>9.3f}{max(ratios):>9.3f}{target:>9.2f}  {'met' if ratio <= target else 'NOT MET'}", flush=True)
    return ratio


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="step|launch|" + "|".join(STEP_CASES), help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=9, help="ABBA rounds of each case (9)")
    parser.add_argument("--json", action="store_true", help='last line {"case": ratio}')
    options = parser.parse_args()
    python = os.environ.get("ASSAY_PEER_PYTHON", sys.executable)
    names = []
    for case in options.cases or ["step", "launch"]:
        if case not in ("step", "launch", *STEP_CASES):
            parser.error(f"there is no case {case!r}")
        names += [name for name in (STEP_CASES if case == "step" else [case]) if name not in names]

    print(f"{'case':<8}{'ours s':>12}{'peer s':>12}{'ratio':>9}{'min':>9}{'max':>9}{'target':>9}", flush=True)
    ratios = {}
    for name in names:
        if name == "launch":
            ratio = compare(name, options.rounds, our_launch, lambda: peer_launch(python), LAUNCH_TARGET)
        else:
            ratio = compare(name, options.rounds, lambda: our_step(name), lambda: peer_step(python, name),
                            STEP_CASES[name][2])
        ratios[name] = round(ratio, 4)
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(3)
