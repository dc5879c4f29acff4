#include "tests/acceptance/evaluation_case.h"

namespace assay {
namespace {

TEST(Evaluation, AMeasurementThatIsNotGoodEnoughRejects) {
  const auto second_rank = [](RunRecord& run, const char* job, const char* kind,
                              const std::function<void(Json&)>& change) {
    for (auto& event : run.jobs[job].ranks[1]) {
      if (event["kind"] == kind) change(event);
    }
  };
  const std::vector<Case> cases{
      {"one byte more",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "memory", [](Json& e) { e["measured_allocated_bytes"] = 1001; });
       },
       "memory.allocated",
       Status::fail,
       {1}},
      {"one byte less in a category",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "memory", [](Json& e) { e["by_category"]["optimizer"] = 499; });
       },
       "memory.by_category",
       Status::fail,
       {1}},
      {"one byte in a phase",
       [&](RunRecord& run) { second_rank(run, "twin-1", "memory", [](Json& e) { e["by_phase"]["load"] = 901; }); },
       "memory.by_phase",
       Status::fail,
       {1}},
      {"a wrong sum",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[1][0]["max_abs_error"] = 1.0; },
       "collective.all_reduce_ones",
       Status::fail,
       {1}},
      {"one wrong element",
       [](RunRecord& run) { run.jobs["collective-1"].ranks[0][0]["num_wrong"] = 1; },
       "collective.all_reduce_ones",
       Status::fail,
       {0}},
      {"a last bit of a loss after the resume",
       [&](RunRecord& run) {
         second_rank(run, "train-1", "step", [](Json& e) {
           if (e["step"] == 9) e["loss"] = std::nextafter(5 - 9 / 4.0, 9);
         });
       },
       "train.resume",
       Status::fail,
       {1}},
      {"another final state",
       [&](RunRecord& run) { second_rank(run, "train-1", "end", [](Json& e) { e["state_hash"] = "other"; }); },
       "train.resume",
       Status::fail,
       {1}},
      {"NaN loss",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "step", [](Json& e) {
           if (e["step"] == 3) e["loss"] = nullptr;
         });
       },
       "train.forward_backward",
       Status::fail,
       {1}},
      {"fewer tokens",
       [](RunRecord& run) { for_events(run.jobs["train-1"], "step", [](Json& e) { e["tokens"] = 64; }); },
       "train.shape",
       Status::fail,
       {}},
      {"another dtype",
       [&](RunRecord& run) { second_rank(run, "train-1", "run", [](Json& e) { e["param_dtype"] = "bf16"; }); },
       "train.precision",
       Status::fail,
       {1}},
      {"another model",
       [](RunRecord& run) { for_events(run.jobs["train-1"], "run", [](Json& e) { e["parameters"] = 101; }); },
       "train.load",
       Status::fail,
       {}},
      {"updates without effect",
       [](RunRecord& run) {
         for_events(run.jobs["twin-1"], "end", [](Json& e) { e["parameters_hash"] = "parameters of state0"; });
       },
       "train.accumulate_update",
       Status::fail,
       {0, 1}},
      {"a rank with its own loss",
       [&](RunRecord& run) { second_rank(run, "twin-1", "step", [](Json& e) { e["loss"] = 1.0; }); },
       "train.all_ranks",
       Status::fail,
       {1}},
      {"a sum that is no number",
       [](RunRecord& run) {
         run.jobs["collective-1"].ranks[1][0]["max_abs_error"] = nullptr;
         run.jobs["collective-1"].ranks[1][0]["num_wrong"] = 3;
       },
       "collective.all_reduce_ones",
       Status::fail,
       {1}},
      {"another model on the first rank alone",
       [](RunRecord& run) {
         for (auto& event : run.jobs["train-1"].ranks[0]) {
           if (event["kind"] == "run") event["parameters"] = 101;
         }
       },
       "train.load",
       Status::fail,
       {0}},
      {"bytes in a phase that must have none",
       [](RunRecord& run) { run.estimate["dry_run"]["by_phase"]["accumulate"] = 0; },
       "memory.by_phase",
       Status::fail,
       {0, 1}},
      {"a core at half the clock",  // shares and fractions are as before
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "end", [](Json& e) {
           e["gemm_gflops"] = e["gemm_gflops"].get<double>() / 2;
           e["compute_seconds"] = e["compute_seconds"].get<double>() * 2;
           e["compute_cpu_seconds"] = e["compute_cpu_seconds"].get<double>() * 2;
         });
       },
       "utilization.gemm_gflops_of_median",
       Status::fail,
       {1}},
      {"a core that is slow in the model alone",
       [&](RunRecord& run) {
         second_rank(run, "twin-1", "end", [](Json& e) {
           e["compute_seconds"] = e["compute_seconds"].get<double>() * 2;
           e["compute_cpu_seconds"] = e["compute_cpu_seconds"].get<double>() * 2;
         });
       },
       "utilization.model_gflops_of_median",
       Status::fail,
       {1}},
      {"a loss that rises",
       [](RunRecord& run) {
         for (const char* job : {"train-1", "twin-1"})
           for_events(run.jobs[job], "step", [](Json& e) { e["loss"] = e["step"]; });
       },
       "train.loss_slope",
       Status::fail,
       {}},
      {"a loss that stays",
       [](RunRecord& run) {
         for (const char* job : {"train-1", "twin-1"})
           for_events(run.jobs[job], "step", [](Json& e) { e["loss"] = 2.5; });
       },
       "train.loss_slope",
       Status::fail,
       {}},
      {"a rank that waits in its computing",
       [&](RunRecord& run) { second_rank(run, "twin-1", "end", [](Json& e) { e["compute_seconds"] = 40.0; }); },
       "utilization.compute_share_of_median",
       Status::fail,
       {1}},
      {"cores that do something else",
       [](RunRecord& run) {
         for_events(run.jobs["twin-1"], "end", [](Json& e) {
           e["compute_cpu_seconds"] = 8000.0;
           e["compute_seconds"] = 8000.0;
         });
       },
       "utilization.ceiling_fraction",
       Status::fail,
       {0, 1}},
      {"no room on the disk",
       [](RunRecord& run) { run.machine["disk"]["free_bytes"] = 7199; },
       "machine.disk",
       Status::fail,
       {}},
      {"no memory",
       [](RunRecord& run) { run.machine["memory"]["available_bytes"] = 1999; },
       "machine.memory",
       Status::fail,
       {}},
      {"another rank is named",
       [](RunRecord& run) { run.jobs["train-1"].launcher[2]["root_cause"]["rank"] = 0; },
       "train.failure_named",
       Status::fail,
       {}},
  };
  for (const auto& row : cases) expect_case(row);
}

}  // namespace
}  // namespace assay
