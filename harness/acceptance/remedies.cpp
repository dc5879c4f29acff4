#include "harness/acceptance/remedies.h"

#include <algorithm>
#include <utility>

#include "harness/acceptance/evaluate.h"
#include "harness/acceptance/rank_program.h"
#include "harness/acceptance/run_record.h"
#include "harness/core/error.h"
#include "harness/core/units.h"
#include "harness/memory/formula.h"
#include "harness/recipe/enum_names.h"
#include "model/model_config.h"

namespace assay {
namespace {

constexpr std::int64_t kShortestLength = 512;  // shorter texts are another task
constexpr std::int64_t kMostCards = 1024;
constexpr std::int64_t kMostRanks = 65536;  // of parallel.nproc_per_node

std::string key_value(const char* key, std::int64_t value) { return std::string(key) + "=" + std::to_string(value); }

void set_global_batch(Recipe& recipe) {
  recipe.train.global_batch_size =
      world_size_of(recipe) * recipe.train.micro_batch_size * recipe.train.gradient_accumulation_steps;
}

// The tokens of a step stay what they are.
void add_smaller_batches(const Recipe& recipe, std::vector<Remedy>& remedies) {
  for (std::int64_t divisor = 2; recipe.train.micro_batch_size % divisor == 0; divisor *= 2) {
    Remedy remedy{"", "the same tokens a step in more, smaller micro-steps: products are smaller, a step takes longer",
                  recipe};
    auto& train = remedy.recipe.train;
    train.micro_batch_size /= divisor;
    train.gradient_accumulation_steps *= divisor;
    remedy.change = key_value("train.micro_batch_size", train.micro_batch_size) + " " +
                    key_value("train.gradient_accumulation_steps", train.gradient_accumulation_steps);
    remedies.push_back(std::move(remedy));
  }
}

void add_shorter_sequences(const Recipe& recipe, std::vector<Remedy>& remedies) {
  for (std::int64_t length = recipe.data.sequence_length / 2; length >= kShortestLength; length /= 2) {
    Remedy remedy{key_value("data.sequence_length", length), "longer texts are cut; fewer tokens a step", recipe};
    remedy.recipe.data.sequence_length = length;
    remedies.push_back(std::move(remedy));
  }
}

void add_checkpointing(const Recipe& recipe, std::vector<Remedy>& remedies) {
  using Mode = ActivationCheckpointing;
  for (const auto& [mode, cost] : {std::pair(Mode::selective, "products are kept, the rest is computed again"),
                                   {Mode::full, "every block is computed again: by the guides 20 to 30 % more time"}}) {
    if (mode <= recipe.train.activation_checkpointing) continue;
    Remedy remedy{"train.activation_checkpointing=" + std::string(name_of(mode)), cost, recipe};
    remedy.recipe.train.activation_checkpointing = mode;
    remedies.push_back(std::move(remedy));
  }
}

void add_attention(const Recipe& recipe, std::vector<Remedy>& remedies) {
  const bool has_flash = recipe.device == DeviceChoice::cuda && recipe.train.precision != Precision::fp32;
  if (!has_flash || recipe.model.attention == AttentionChoice::flash) return;
  Remedy remedy{"model.attention=flash", "none: the same numbers but for rounding", recipe};
  remedy.recipe.model.attention = AttentionChoice::flash;
  remedies.push_back(std::move(remedy));
}

void add_adapters(const Recipe& recipe, std::vector<Remedy>& remedies) {
  const auto add = [&](Mode mode, const char* change, const char* cost) {
    Remedy remedy{change, cost, recipe, /*by_formula=*/true};
    remedy.recipe.mode = mode;
    if (mode == Mode::qlora) remedy.recipe.quantization.type = QuantizationType::nf4;
    remedies.push_back(std::move(remedy));
  };
  if (recipe.mode == Mode::full)
    add(Mode::lora, "mode=lora", "only adapters are trained: another result, if that will do");
  if (recipe.mode == Mode::full || recipe.mode == Mode::lora) {
    add(Mode::qlora, "mode=qlora quantization.type=nf4",
        "adapters on 4-bit weights: each is dequantized twice a step; another result, if that will do");
  }
}

Remedy on_cards(const Recipe& recipe, std::int64_t num_cards, const std::string& also) {
  Remedy remedy{key_value("parallel.nproc_per_node", num_cards) + " parallel.strategy=fsdp" + also,
                "so many cards of this size, and an interconnect that carries three times the weights a step", recipe};
  remedy.recipe.parallel.nproc_per_node = num_cards;
  remedy.recipe.parallel.strategy = StrategyName::fsdp;
  set_global_batch(remedy.recipe);
  return remedy;
}

void add_cards(const Recipe& recipe, const std::string& also, std::vector<Remedy>& remedies) {
  const bool sharded = recipe.parallel.strategy == StrategyName::fsdp;
  const std::int64_t now = world_size_of(recipe);
  for (std::int64_t cards = now > 1 && !sharded ? now : 2 * now;
       cards <= std::min(kMostRanks, std::max(kMostCards, 2 * now)); cards *= 2) {
    remedies.push_back(on_cards(recipe, cards, also));
  }
}

bool wants_cards(const Remedy& remedy) { return remedy.change.starts_with("parallel."); }

bool has_two_left(const Recipe& recipe) {
  return recipe.train.micro_batch_size > 1 && recipe.train.activation_checkpointing != ActivationCheckpointing::full;
}

// Smallest batch and full checkpointing: all that leaves the training what it is.
Remedy cheap_ones_together(const Recipe& recipe) {
  Remedy remedy{"", "both costs", recipe};
  auto& train = remedy.recipe.train;
  train.gradient_accumulation_steps *= train.micro_batch_size;
  train.micro_batch_size = 1;
  train.activation_checkpointing = ActivationCheckpointing::full;
  remedy.change = key_value("train.micro_batch_size", 1) + " " +
                  key_value("train.gradient_accumulation_steps", train.gradient_accumulation_steps) +
                  " train.activation_checkpointing=full";
  return remedy;
}

Json row_of(const Remedy& remedy, const Json& peak, const Json& fits) {
  Json row{{"change", remedy.change}, {"peak_bytes", peak}, {"cost", remedy.cost}, {"fits", fits}};
  row["by"] = remedy.by_formula ? "formula" : "dry run";
  return row;
}

Json formula_row(const Remedy& remedy) {
  const auto config = load_model_config(remedy.recipe.model.path, remedy.recipe.model.config);
  const auto total = formula_bytes(remedy.recipe, config, world_size_of(remedy.recipe)).total();
  const auto& memory = remedy.recipe.device_memory_bytes;
  return row_of(remedy, total, memory ? Json(total <= *memory) : Json());
}

}  // namespace

std::vector<Remedy> possible_remedies(const Recipe& recipe) {
  std::vector<Remedy> remedies;
  add_smaller_batches(recipe, remedies);
  add_shorter_sequences(recipe, remedies);
  add_checkpointing(recipe, remedies);
  add_attention(recipe, remedies);
  add_adapters(recipe, remedies);
  add_cards(recipe, "", remedies);
  if (has_two_left(recipe)) remedies.push_back(cheap_ones_together(recipe));
  return remedies;
}

std::vector<Remedy> last_remedies(const Recipe& recipe) {
  std::vector<Remedy> remedies;
  if (!has_two_left(recipe)) return remedies;
  const Remedy together = cheap_ones_together(recipe);
  add_cards(together.recipe, " " + together.change, remedies);
  return remedies;
}

namespace {

// Of the numbers of cards up to the first that fits.
Json evaluate(const std::vector<Remedy>& remedies) {
  if (remedies.empty()) return Json::array();
  std::vector<Recipe> recipes;
  for (const auto& remedy : remedies) {
    if (!remedy.by_formula) recipes.push_back(remedy.recipe);
  }
  const auto outcome = run_dry_run(recipes);
  if (!outcome.message.empty()) throw Error(outcome.error_kind, "the remedies could not be tried: " + outcome.message);
  Json rows = Json::array();
  std::size_t next = 0;
  bool enough_cards = false;
  for (const auto& remedy : remedies) {
    if (remedy.by_formula) {
      rows.push_back(formula_row(remedy));
      continue;
    }
    const Json& dry_run = outcome.rows[next++];
    if (wants_cards(remedy) && enough_cards) continue;
    rows.push_back(row_of(remedy, dry_run["peak_reserved_bytes"], dry_run["fits"]));
    enough_cards = enough_cards || (wants_cards(remedy) && dry_run["fits"] == true);
  }
  return rows;
}

}  // namespace

Json evaluate_remedies(const Recipe& recipe) {
  Json rows = evaluate(possible_remedies(recipe));
  const bool enough = std::any_of(rows.begin(), rows.end(),
                                  [](const Json& row) { return row["by"] == "dry run" && row["fits"] == true; });
  if (enough) return rows;
  for (auto& row : evaluate(last_remedies(recipe))) rows.push_back(row);
  return rows;
}

std::string nearest_remedy(const Json& estimate) {
  const Json* rows = member_of(estimate, "remedies");
  if (rows == nullptr || !rows->is_array()) return "";
  for (const auto& row : *rows) {
    const auto peak = number_in(&row, "peak_bytes");
    if (!row.contains("fits") || row["fits"] != true || !peak || text_in(&row, "by") != "dry run") continue;
    return text_in(&row, "change") + " (" + format_bytes(static_cast<std::int64_t>(*peak)) + " by dry run)";
  }
  return "";
}

}  // namespace assay
