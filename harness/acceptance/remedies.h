#pragma once

#include <string>
#include <vector>

#include "harness/core/json.h"
#include "harness/recipe/recipe.h"

namespace assay {

/// One change that lowers what a plan needs.
struct Remedy {
  std::string change;       ///< as it is typed: "train.micro_batch_size=1 train.gradient_accumulation_steps=8"
  std::string cost;         ///< what is paid for it, in a sentence
  Recipe recipe;            ///< the plan with the change
  bool by_formula = false;  ///< another kind of training, which the dry run cannot do yet
};

/// The changes there are for a recipe, in the guides' order (requirements, rows 1.4 and 2.3): batch, length, activation
/// checkpointing, attention, quantized base, LoRA and QLoRA, more cards with sharding; then smallest batch and full
/// checkpointing together.
std::vector<Remedy> possible_remedies(const Recipe& recipe);

/// These two together on more and more cards: for when nothing else fits.
std::vector<Remedy> last_remedies(const Recipe& recipe);

/// Each of them with its peak: [{"change", "peak_bytes", "cost", "fits", "by": "dry run" | "formula"}], in their order,
/// of the numbers of cards up to the first that fits; last_remedies only if no dry run of the others fits. Peaks are
/// reserved bytes of the fullest rank. Starts one process, or two. Throws Error, Interrupted after a signal.
Json evaluate_remedies(const Recipe& recipe);

/// The first of an estimate's remedies that fits by its dry run, as a sentence: its change, its peak; "" if there is
/// none.
std::string nearest_remedy(const Json& estimate);

}  // namespace assay
