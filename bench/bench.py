"""Measures this project beside PyTorch on this machine, in interleaved runs. `./dev bench` builds first, then runs this.

step    CPU time of one training step on one thread, three model sizes, beside peers/torch_step.py
launch  wall time of a whole two-process job of three steps, beside torchrun and DDP
dist    wall time of one step of two processes under ddp and fsdp, beside DDP and FSDP2
estimate  wall time of a whole `assay estimate` of Llama-3-8B, beside PyTorch's FakeTensorMode and MemTracker
tracking  user CPU time of steps with the tracking allocators and without
bf16    CPU time of one step in bf16 beside our own in fp32

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
ASSAY = pathlib.Path(os.environ.get("ASSAY_PROGRAM", ROOT / "build/bin/assay"))
PEERS = ROOT / "bench/peers"
WARMUP_STEPS = 3
TIMEOUT_SECONDS = 600

# name: (steps timed in one process, arguments of the peer, highest good ratio)
STEP_CASES = {
    "nano": (200, "--hidden 64 --layers 2 --heads 4 --kv-heads 4 --intermediate 176 --vocab 256 --seq 64", 0.70),
    "tiny": (20, "--preset tiny", 1.05),
    "25m": (10, "--preset 25m", 0.97),
}
# strategy: (mode of the peer, highest good ratio)
DIST_CASES = {"ddp": ("ddp", 1.0), "fsdp": ("fsdp2", 0.8)}
DIST_STEPS = 8
LAUNCH_TARGET = 0.25
BF16_TARGET = 2.5
ESTIMATE_TARGET = 1 / 30
TRACKING_TARGET = 1.02
TRACKING_STEPS = 40


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


def our_steps(recipe, num_steps, field, *overrides):
    """Median over the steps of one field of rank 0's step events."""
    steps = num_steps + WARMUP_STEPS
    events, _ = train(recipe, f"train.max_steps={steps}", *overrides)
    if len(events) != steps:
        raise Failed(f"assay train recorded {len(events)} steps instead of {steps}")
    return statistics.median(event[field] for event in events[WARMUP_STEPS:])


def our_step(size, *overrides):
    return our_steps(f"step_{size}", STEP_CASES[size][0], "cpu_seconds", *overrides)


def peer_step(python, size):
    steps, arguments, _ = STEP_CASES[size]
    output, _ = run([python, PEERS / "torch_step.py", *arguments.split(), "--batch", 4, "--threads", 1, "--rounds", 1,
                     "--steps", steps, "--warmup", WARMUP_STEPS - 1, "--ceiling-n", 0])
    return json.loads(output.splitlines()[-1])["step_cpu_s"]


def torchrun_two(python, mode, preset, *arguments):
    return run([python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, PEERS / "dist_step.py",
                "--mode", mode, "--preset", preset, *arguments])


def our_dist_step(strategy):
    return our_steps("step_25m", DIST_STEPS, "step_seconds", "parallel.nproc_per_node=2",
                     f"parallel.strategy={strategy}")


def peer_dist_step(python, mode):
    output, _ = torchrun_two(python, mode, "25m", "--batch", 4, "--threads", 1, "--rounds", 1, "--steps", DIST_STEPS,
                             "--warmup", WARMUP_STEPS - 1)
    return json.loads(output.splitlines()[-1])["step_s"]


def our_launch():
    return train("step_tiny", "train.max_steps=3", "parallel.nproc_per_node=2")[1]


def peer_launch(python):
    return torchrun_two(python, "ddp", "tiny", "--warmup", 2, "--rounds", 0)[1]


def our_estimate():
    return run([ASSAY, "estimate", "bench/recipes/estimate.yaml", "--json"])[1]


def peer_estimate(python):
    return run([python, PEERS / "estimate.py", "--steps", 1])[1]


def tracking(mode):
    output, _ = run([ASSAY.parent / "bench_tracking", mode, TRACKING_STEPS])
    return json.loads(output)["user_seconds"]


def all_cases(python):
    """name: (group, ours, peer, target); ours and peer are measured by a call."""
    cases = {}
    for size, (_, _, target) in STEP_CASES.items():
        cases[size] = ("step", lambda size=size: our_step(size), lambda size=size: peer_step(python, size), target)
    cases["launch"] = ("launch", our_launch, lambda: peer_launch(python), LAUNCH_TARGET)
    for strategy, (mode, target) in DIST_CASES.items():
        cases[strategy] = ("dist", lambda strategy=strategy: our_dist_step(strategy),
                           lambda mode=mode: peer_dist_step(python, mode), target)
    cases["bf16"] = ("bf16", lambda: our_step("25m", "train.precision=bf16"), lambda: our_step("25m"), BF16_TARGET)
    cases["estimate"] = ("estimate", our_estimate, lambda: peer_estimate(python), ESTIMATE_TARGET)
    cases["tracking"] = ("tracking", lambda: tracking("tracked"), lambda: tracking("untracked"), TRACKING_TARGET)
    return cases


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
          f"{min(ratios):>9.3f}{max(ratios):>9.3f}{target:>9.3f}  {'met' if ratio <= target else 'NOT MET'}", flush=True)
    return ratio


def main():
    cases = all_cases(os.environ.get("ASSAY_PEER_PYTHON", sys.executable))
    known = list(dict.fromkeys([group for group, *_ in cases.values()] + list(cases)))
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="|".join(known), help="all, if none is named")
    parser.add_argument("--rounds", type=int, default=9, help="ABBA rounds of each case (9)")
    parser.add_argument("--json", action="store_true", help='last line {"case": ratio}')
    options = parser.parse_args()
    for case in options.cases:
        if case not in known:
            parser.error(f"there is no case {case!r}")

    print(f"{'case':<8}{'ours s':>12}{'peer s':>12}{'ratio':>9}{'min':>9}{'max':>9}{'target':>9}", flush=True)
    ratios = {}
    for name, (group, ours, peer, target) in cases.items():
        if options.cases and name not in options.cases and group not in options.cases:
            continue
        ratios[name] = round(compare(name, options.rounds, ours, peer, target), 4)
    if options.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    try:
        main()
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(3)
