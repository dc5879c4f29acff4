"""Published peaks of GPU memory beside what this project says before a run: the table of docs/published_peaks.md.

python3 bench/memory_peaks.py > docs/published_peaks.md

Runs `assay estimate --json` for every row of tests/data/memory/peaks.csv (dense models, no compiler, training of all
weights; one published value a row). Needs no GPU. ASSAY_PROGRAM names another `assay` than build/bin/assay.
"""
import csv
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ASSAY = pathlib.Path(os.environ.get("ASSAY_PROGRAM", ROOT / "build/bin/assay"))
ROWS = ROOT / "tests/data/memory/peaks.csv"
GIB = 2**30
TIMEOUT_SECONDS = 60

# Why the dry run is more than 10 % away from the published value, by row.
REASONS = {}


def chunk_tokens(row):
    """Tokens whose logits exist at once in the published run."""
    tokens = int(row["sequence_length"]) * int(row["micro_batch_size"])
    if "128 tokens" in row["logits"]:
        return 128
    whole = "chunked" not in row["logits"] and "fused linear" not in row["logits"]
    return tokens if whole else min(tokens, 1024)


def config_of(row):
    number = {key: int(row[key]) for key in
              ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
               "vocab_size")}
    if row["arch"] == "two-matrix-mlp":
        return {"model_type": "gpt2", "n_embd": number["hidden_size"], "n_layer": number["num_hidden_layers"],
                "n_head": number["num_attention_heads"], "n_inner": number["intermediate_size"],
                "n_positions": int(row["sequence_length"]), "vocab_size": number["vocab_size"],
                "tie_word_embeddings": row["tie_word_embeddings"] == "1"}
    return {"model_type": "llama", "head_dim": int(row["head_dim"]), **number, "max_position_embeddings": 1 << 20,
            "tie_word_embeddings": row["tie_word_embeddings"] == "1"}


def recipe_of(row, checkpointing, model):
    precision = "bf16" if row["weight_dtype"] == "fp32" or row["grad_dtype"] == "fp32" else "pure_bf16"
    ranks = int(row["world_size"])
    strategy = "none" if ranks == 1 else "zero1" if "dist-opt" in row["sharding"] else "fsdp"
    return {"mode": row["mode"], "device": "cuda", "model": {"path": str(model), "init": "random"},
            "data": {"format": "synthetic", "sequence_length": int(row["sequence_length"])},
            "train": {"micro_batch_size": int(row["micro_batch_size"]), "gradient_accumulation_steps": 1,
                      "precision": precision, "activation_checkpointing": checkpointing,
                      "loss_chunk_tokens": chunk_tokens(row)},
            "parallel": {"nproc_per_node": ranks, "strategy": strategy}}


def estimate(row, checkpointing):
    with tempfile.TemporaryDirectory(prefix="assay-peaks-") as folder:
        folder = pathlib.Path(folder)
        (folder / "config.json").write_text(json.dumps(config_of(row)))
        recipe = folder / "recipe.yaml"
        recipe.write_text(json.dumps(recipe_of(row, checkpointing, folder)))
        done = subprocess.run([ASSAY, "estimate", recipe, "--json"], cwd=ROOT, capture_output=True, text=True,
                              timeout=TIMEOUT_SECONDS)
        if not done.stdout:
            raise SystemExit(f"row {row['row']}: assay estimate ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)


def bytes_of(row, report):
    """(dry run, formula) in bytes, each as the published figure counts; the dry run may be None."""
    formula = report["formula"]
    # The allocator's figures do not know context and communicators.
    outside = formula["overhead"] if row["peak_kind"] == "device-used" else 0
    by_formula = formula["total"] - formula["overhead"] + outside
    dry_run = report["dry_run"]
    whole = ("peak_allocated_bytes" if row["peak_kind"] in ("allocated", "active") else "peak_reserved_bytes")
    peak = dry_run.get(whole) or dry_run.get("peak_allocated_bytes")
    if "offload" in row["optimizer"]:  # moments and gradients are in the memory of the host
        by_formula -= formula["optimizer"] + formula["gradients"]
        if peak is not None:
            peak -= dry_run["by_category"]["optimizer"] + dry_run["by_category"]["gradients"]
    return None if peak is None else peak + outside, by_formula


def predict(row):
    if row["tp"] not in ("", "1") or row["pp"] not in ("", "1"):
        return None, None
    kinds = {"none": ["none"], "full": ["full"], "selective-op": ["selective"], "every-2nd-layer": ["none", "full"]}
    each = [bytes_of(row, estimate(row, kind)) for kind in kinds[row["activation_checkpointing"]]]
    dry_runs, formulas = zip(*each)
    return None if None in dry_runs else statistics.mean(dry_runs), statistics.mean(formulas)


def cell(value, published):
    return "" if value is None else f"{value / GIB:.1f} ({100 * (value / GIB / published - 1):+.0f} %)"


def main():
    print("# Published peaks\n\nMade by `python3 bench/memory_peaks.py`. GiB on the fullest rank, with the difference to "
          "the published value. The dry run is\nthe program itself for `device: cuda`; the formula is "
          "[the closed form](memory_formula.md).\n")
    print("| Row | Model | Setting | Published | Dry run | Formula | Remark |\n| --- | --- | --- | --- | --- | --- | --- |")
    errors = {"dry run": [], "formula": []}
    for row in csv.DictReader(ROWS.open()):
        published = float(row["peak_GiB"])
        dry_run, formula = predict(row)
        setting = (f"{row['sharding']}, {row['micro_batch_size']} x {row['sequence_length']}, checkpointing "
                   f"{row['activation_checkpointing']}, {row['optimizer_state_bytes']}-byte states")
        remark = REASONS.get(row["row"], "")
        if formula is None:
            remark = "tensor or pipeline parallelism: tests/memory/megatron_formula_test.cpp"
        for name, value in (("dry run", dry_run), ("formula", formula)):
            if value is not None:
                errors[name].append(abs(value / GIB / published - 1))
        below = dry_run is not None and dry_run / GIB < 0.9 * published
        if below and not remark:
            remark = "**no reason known**"
        print(f"| {row['row']} | {row['model_key']} | {setting} | {published:.1f} {row['peak_kind']} | "
              f"{cell(dry_run, published)} | {cell(formula, published)} | {remark} |")
    for name, values in errors.items():
        if values:
            print(f"\nMedian absolute error of the {name}: {100 * statistics.median(values):.1f} % over {len(values)} rows.")


if __name__ == "__main__":
    main()
