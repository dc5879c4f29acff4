#include "harness/recipe/resolve.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string_view>

#include "harness/core/nearest.h"
#include "harness/core/units.h"
#include "harness/recipe/enum_names.h"
#include "harness/recipe/not_built.h"

namespace assay {
namespace {

constexpr std::array<std::string_view, 8> kStages{"machine", "estimate", "collective",  "single",
                                                  "train",   "memory",   "utilization", "drill"};

class Resolver {
 public:
  Resolver(LoadedRecipe& loaded, const ResolveFacts& facts, const Places& places, const Place& whole,
           Problems& problems)
      : loaded_(loaded), recipe_(loaded.recipe), facts_(facts), places_(places), whole_(whole), problems_(problems) {}

  void run() {
    if (recipe_.device == DeviceChoice::automatic) {
      resolve("device", recipe_.device, facts_.cuda_available ? DeviceChoice::cuda : DeviceChoice::cpu);
    }
    check_quantization();  // before the next: these say more about a value than that its part is missing
    check_stages();
    refuse_not_built();
    resolve_choices();
    resolve_data();
    check_parallel();
    check_precision();
    check_steps();
    check_allocator();
    check_name();
    refuse_not_built();  // what was only resolved to such a value
  }

 private:
  void refuse(const std::string& key, const std::string& what) {
    const auto found = places_.find(key);
    problems_.add(found == places_.end() ? whole_ : found->second, key, what);
  }

  void refuse_not_built() {
    for (const auto& [key, what] : find_not_built(recipe_, facts_.runs)) {
      if (good({key})) refuse(key, what);
    }
  }

  void warn(const std::string& sentence) { loaded_.warnings.push_back(sentence); }
  bool given(const std::string& key) const { return places_.contains(key); }
  bool good(const std::vector<std::string>& keys) const { return problems_.all_good(keys); }

  template <class Member, class Value>
  void resolve(const std::string& key, Member& member, const Value& value) {
    member = value;
    auto& origin = loaded_.origins[key];
    origin = origin == "default" ? "resolved" : origin + ", resolved";
  }

  std::int64_t world_size() const { return facts_.world_size.value_or(recipe_.parallel.nproc_per_node); }

  void resolve_choices() {
    auto& r = recipe_;
    const bool cuda = r.device == DeviceChoice::cuda;
    if (!r.model.init) {
      const bool from_nothing = r.mode == Mode::pretrain || r.mode == Mode::inference;
      resolve("model.init", r.model.init, from_nothing ? ModelInit::random : ModelInit::load);
    }
    resolve_attention();
    if (good({"train.precision"}) && !r.optimizer.moment_dtype) {
      resolve("optimizer.moment_dtype", r.optimizer.moment_dtype,
              r.train.precision == Precision::pure_bf16 ? FloatType::bf16 : FloatType::fp32);
    }
    if (!r.parallel.strategy) {
      resolve("parallel.strategy", r.parallel.strategy, world_size() == 1 ? StrategyName::none : StrategyName::ddp);
    }
    if (good({"device"}) && r.parallel.backend == BackendChoice::automatic) {
      resolve("parallel.backend", r.parallel.backend, cuda ? BackendChoice::nccl : BackendChoice::gloo);
    }
    if (!r.accept.limits)
      resolve("accept.limits", r.accept.limits, cuda ? "recipes/limits/cuda.yaml" : "recipes/limits/cpu.yaml");
  }

  void resolve_attention() {
    auto& attention = recipe_.model.attention;
    if (!good({"device", "model.attention", "train.precision"})) return;
    const bool cuda = recipe_.device == DeviceChoice::cuda;
    const bool flash_lacks = cuda && recipe_.train.precision == Precision::fp32;
    if (attention == AttentionChoice::automatic) {
      resolve("model.attention", attention, flash_lacks ? AttentionChoice::efficient : AttentionChoice::flash);
    } else if (attention == AttentionChoice::flash && flash_lacks) {
      refuse("model.attention", "flash has no fp32 kernel on cuda; write efficient, or another train.precision");
    } else if (attention == AttentionChoice::efficient && !cuda) {
      refuse("model.attention", "efficient has no kernel on cpu; write flash");
    }
  }

  /// What the names say: *.safetensors are batches, *.jsonl is jsonl, *.bin may be several formats, all else is text.
  DataFormat format_by_name() {
    std::set<DataFormat> formats;
    for (const auto& entry : recipe_.data.path) {
      const auto extension = std::filesystem::path(entry.path).extension();
      if (extension == ".bin") {
        refuse("data.format", "auto cannot tell which format " + entry.path + " has; write llmc, nanogpt or llmq");
      }
      formats.insert(extension == ".safetensors" ? DataFormat::batches
                     : extension == ".jsonl"     ? DataFormat::jsonl
                                                 : DataFormat::text);
    }
    if (formats.size() > 1)
      refuse("data.format", "the files of data.path have several formats; write the one that is meant");
    return formats.empty() ? DataFormat::text : *formats.begin();
  }

  void resolve_data() {
    auto& data = recipe_.data;
    if (good({"model.path"}) && !given("model.path"))
      refuse("model.path", "is missing; name the folder with the model's config.json");
    if (!good({"data.path", "data.format"})) return;
    const bool synthetic = data.format == DataFormat::synthetic;
    if (data.path.empty() && !synthetic) {
      refuse("data.path", "is missing; name a file or folder, or write data.format: synthetic");
      return;
    }
    if (!data.path.empty() && synthetic) warn("data.path is not used: data.format is synthetic");
    if (data.format == DataFormat::automatic) resolve("data.format", data.format, format_by_name());
    if (!good({"data.format", "tokenizer.path"})) return;
    if (data.format == DataFormat::text && !recipe_.tokenizer.path) {
      refuse("tokenizer.path", "is missing, and data.format text needs a tokenizer; write tokenizer: {path: bytes}");
    }
    const bool has_tokens = synthetic || data.format == DataFormat::batches;
    if (has_tokens && recipe_.tokenizer.path) {
      warn("tokenizer.path is not used: data.format " + std::string(name_of(data.format)) + " holds tokens");
    }
  }

  void check_quantization() {
    const auto type = recipe_.quantization.type;
    if (!good({"mode", "quantization.type"})) return;
    if (type == QuantizationType::nf4 && (recipe_.mode == Mode::full || recipe_.mode == Mode::pretrain)) {
      refuse("quantization.type", "nf4 weights are frozen, mode " + std::string(name_of(recipe_.mode)) +
                                      " trains all weights; use mode qlora or quantization type none");
    } else if (type == QuantizationType::nf4 && recipe_.mode == Mode::lora) {
      refuse("quantization.type", "nf4 with mode lora is called mode qlora");
    } else if (type == QuantizationType::none && recipe_.mode == Mode::qlora) {
      refuse("quantization.type", "mode qlora needs quantization type nf4");
    }
  }

  void check_parallel() {
    auto& train = recipe_.train;
    const auto world = world_size();
    if (!good({"parallel.nproc_per_node"})) return;
    if (good({"parallel.strategy"}) && recipe_.parallel.strategy == StrategyName::none && world > 1) {
      refuse("parallel.strategy", "none with " + std::to_string(world) +
                                      " ranks would train separate models; write ddp, or nproc_per_node 1");
    }
    const std::vector<std::string> factors{"train.micro_batch_size", "train.gradient_accumulation_steps"};
    if (!good(factors) || !good({"train.global_batch_size"})) return;
    const auto product = train.micro_batch_size * train.gradient_accumulation_steps * world;
    if (!train.global_batch_size) {
      resolve("train.global_batch_size", train.global_batch_size, product);
    } else if (*train.global_batch_size != product) {
      refuse("train.global_batch_size", std::to_string(*train.global_batch_size) + " is not micro_batch_size " +
                                            std::to_string(train.micro_batch_size) + " x gradient_accumulation_steps " +
                                            std::to_string(train.gradient_accumulation_steps) + " x ranks " +
                                            std::to_string(world) + " = " + std::to_string(product));
    }
  }

  void check_precision() {
    const auto& train = recipe_.train;
    if (!good({"train.precision", "optimizer.moment_dtype"})) return;
    if (train.precision == Precision::fp32 && recipe_.optimizer.moment_dtype == FloatType::bf16) {
      refuse("optimizer.moment_dtype",
             "bf16 with train.precision fp32 would lose what fp32 is chosen for; write fp32, or another precision");
    }
    const auto& scale = train.loss_scale;
    if (scale.initial < scale.minimum) {
      refuse("train.loss_scale.initial",
             format_number(scale.initial) + " is below train.loss_scale.minimum " + format_number(scale.minimum));
    }
    const LossScaleOptions defaults;
    if (train.precision != Precision::fp16 && scale != defaults) {
      warn("train.loss_scale is not used: train.precision is " + std::string(name_of(train.precision)));
    }
  }

  void check_steps() {
    const auto& train = recipe_.train;
    if (good({"schedule.warmup_steps", "train.max_steps"}) && recipe_.schedule.warmup_steps >= train.max_steps) {
      warn("schedule.warmup_steps " + std::to_string(recipe_.schedule.warmup_steps) + " is not below train.max_steps " +
           std::to_string(train.max_steps) + ": the run ends inside its warm-up");
    }
    if (!good({"train.eval_interval", "data.eval_path"})) return;
    if (train.eval_interval > 0 && !recipe_.data.eval_path) {
      refuse("data.eval_path",
             "is missing, and train.eval_interval " + std::to_string(train.eval_interval) + " needs held-out data");
    } else if (train.eval_interval == 0 && recipe_.data.eval_path) {
      warn("data.eval_path is not used: train.eval_interval is 0");
    } else if (train.eval_interval > 0 && good({"data.format"}) && recipe_.data.format != DataFormat::text) {
      refuse("data.eval_path", "is read as text, and data.format is " + std::string(name_of(recipe_.data.format)) +
                                   "; write train.eval_interval: 0");
    }
  }

  void check_allocator() {
    const auto divisions = recipe_.allocator.roundup_power2_divisions;
    if (!divisions || std::has_single_bit(static_cast<std::uint64_t>(*divisions))) return;
    refuse("allocator.roundup_power2_divisions", std::to_string(*divisions) + " is no power of two");
  }

  void check_name() {
    if (good({"name"}) && (recipe_.name.find('/') != std::string::npos || recipe_.name.starts_with("."))) {
      refuse("name", recipe_.name + " is part of the run folder's name: no '/', and no '.' in front");
    }
  }

  void check_stages() {
    if (!good({"accept.stages"})) return;
    const std::vector<std::string> known(kStages.begin(), kStages.end());
    std::set<std::string> seen;
    for (const auto& stage : recipe_.accept.stages) {
      const auto nearest = nearest_name(stage, known);
      if (std::find(known.begin(), known.end(), stage) == known.end()) {
        refuse("accept.stages", "unknown stage " + stage + (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
      } else if (!seen.insert(stage).second) {
        refuse("accept.stages", "the stage " + stage + " is named twice");
      }
    }
    if (recipe_.accept.stages.empty()) refuse("accept.stages", "the list is empty; leave the key out for all stages");
  }

  LoadedRecipe& loaded_;
  Recipe& recipe_;
  const ResolveFacts& facts_;
  const Places& places_;
  const Place& whole_;
  Problems& problems_;
};

}  // namespace

void resolve_recipe(LoadedRecipe& loaded, const ResolveFacts& facts, const Places& places, const Place& whole,
                    Problems& problems) {
  Resolver(loaded, facts, places, whole, problems).run();
}

}  // namespace assay
