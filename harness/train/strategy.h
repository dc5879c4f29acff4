#pragma once

#include "harness/recipe/recipe.h"
#include "model/transformer.h"
#include "sharding/sharded_adamw.h"

namespace assay {

/// What a resolved recipe's parallel.strategy, train.precision and the keys beside them mean for flat units.
ShardingOptions sharding_options(const Recipe& recipe);

AdamWOptions adamw_options(const Recipe& recipe);

/// The network's settings, with the operators that the recipe's device has for its model.attention.
TransformerOptions transformer_options(const Recipe& recipe);

}  // namespace assay
