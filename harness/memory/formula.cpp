#include "harness/memory/formula.h"

#include <algorithm>

#include "harness/memory/activation_formula.h"
#include "harness/memory/lora_formula.h"

namespace assay {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kBf16 = 2;

/// Bytes of one element of each kind, and over how many ranks it is spread.
struct Layout {
  std::int64_t weight = kFp32;  ///< as the network reads it
  std::int64_t master = 0;      ///< beside it, or instead of it under fsdp; 0: the weight is the master
  std::int64_t gradient = kFp32;
  std::int64_t moment = kFp32;
  std::int64_t wire = kFp32;
  std::int64_t world_size = 1;
  StrategyName strategy = StrategyName::none;

  bool shards_parameters() const { return strategy == StrategyName::fsdp; }
  bool shards_gradients() const { return shards_parameters() || strategy == StrategyName::zero2; }
  bool shards_optimizer() const { return shards_gradients() || strategy == StrategyName::zero1; }
  bool copies_to_send() const { return world_size > 1 && wire != gradient; }
};

std::int64_t bytes_of(FloatType type) { return type == FloatType::bf16 ? kBf16 : kFp32; }

Layout layout_of(const Recipe& recipe, std::int64_t world_size) {
  Layout layout;
  layout.world_size = world_size;
  layout.strategy = recipe.parallel.strategy.value_or(StrategyName::none);
  const bool pure = recipe.train.precision == Precision::pure_bf16;
  layout.moment = bytes_of(recipe.optimizer.moment_dtype.value_or(FloatType::fp32));
  layout.wire = bytes_of(recipe.parallel.reduce_dtype);
  if (recipe.train.precision == Precision::fp32) return layout;
  layout.weight = kBf16;
  if (pure) {
    layout.gradient = layout.wire = kBf16;
  } else {
    layout.master = kFp32;
  }
  return layout;
}

/// What a unit is made of.
struct UnitSize {
  std::int64_t frozen_bytes = 0;
  std::int64_t trained = 0;  ///< parameters
};

struct Units {
  UnitSize embedding;
  UnitSize block;   ///< the largest
  UnitSize blocks;  ///< all of them
  UnitSize head;
};

std::int64_t frozen_block_bytes(const Recipe& recipe, const ModelConfig& config, const Layout& layout) {
  if (recipe.quantization.type != QuantizationType::nf4) return config.num_block_parameters() * layout.weight;
  std::int64_t others = config.num_block_parameters();
  std::int64_t bytes = 0;
  for (const auto& matrix : config.block_matrices()) {
    others -= matrix.in * matrix.out;
    bytes += nf4_bytes(recipe.quantization, matrix.in * matrix.out);
  }
  return bytes + others * layout.weight;
}

Units units_of(const Recipe& recipe, const ModelConfig& config, const Layout& layout) {
  const std::int64_t embedding = config.num_embedding_parameters();
  const std::int64_t block = config.num_block_parameters();
  const std::int64_t head = config.num_head_parameters();
  const std::int64_t layers = config.num_hidden_layers;
  if (recipe.mode == Mode::pretrain || recipe.mode == Mode::full) {
    return {{0, embedding}, {0, block}, {0, layers * block}, {0, head}};
  }
  const std::int64_t frozen_block = frozen_block_bytes(recipe, config, layout);
  Units units{{embedding * layout.weight, 0}, {frozen_block, 0}, {layers * frozen_block, 0}, {head * layout.weight, 0}};
  if (!trains_adapters(recipe.mode)) return units;
  const std::int64_t table = config.vocab_size * config.hidden_size;
  if (trains_embedding(recipe)) units.embedding.trained = table;
  if (trains_head(recipe)) units.head.trained = table;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    std::int64_t trained = 0;
    for (const auto& adapter : block_adapters(recipe.lora, config, layer)) trained += adapter.num_parameters();
    units.block.trained = std::max(units.block.trained, trained);
    units.blocks.trained += trained;
  }
  return units;
}

FormulaTerms state_terms(const Units& units, const Layout& layout) {
  const auto part = [&](std::int64_t whole, bool sharded) {
    return sharded ? (whole + layout.world_size - 1) / layout.world_size : whole;
  };
  const std::int64_t trained = units.embedding.trained + units.blocks.trained + units.head.trained;
  const std::int64_t frozen = units.embedding.frozen_bytes + units.blocks.frozen_bytes + units.head.frozen_bytes;
  const bool masters_only = layout.shards_parameters() && layout.master > 0;
  FormulaTerms terms;
  terms.weights = (masters_only ? layout.master : layout.weight) * part(trained, layout.shards_parameters()) +
                  part(frozen, layout.shards_parameters());
  terms.gradients = layout.gradient * part(trained, layout.shards_gradients());
  terms.optimizer = (2 * layout.moment + (masters_only ? 0 : layout.master)) * part(trained, layout.shards_optimizer());
  return terms;
}

/// Communication's bytes of units; see formula_bytes().
class Traffic {
 public:
  Traffic(const Recipe& recipe, const ModelConfig& config, const Units& units, const Layout& layout)
      : recipe_(recipe), config_(config), units_(units), layout_(layout) {}

  std::int64_t at_loss() const {
    const bool tied = config_.tie_word_embeddings;
    const std::int64_t blocks = recipe_.parallel.reshard_after_forward ? 0 : gathered(units_.blocks);
    const bool embedding = tied || !recipe_.parallel.reshard_after_forward;
    return gathered(units_.head) + blocks + (embedding ? gathered(units_.embedding) : 0) +
           gradient(tied ? units_.embedding : units_.head);
  }

  /// While the block is differentiated that is the `number`-th from the embedding.
  std::int64_t in_block(std::int64_t number) const {
    const std::int64_t in_flight = recipe_.parallel.units_in_flight;
    const bool reshard = recipe_.parallel.reshard_after_forward;
    const std::int64_t blocks = reshard ? std::min(in_flight, number) : number;
    const std::int64_t ahead = reshard && in_flight <= number ? 0 : gathered(units_.embedding);
    return blocks * gathered(units_.block) + ahead + gradient(units_.block) + tied() +
           pending(config_.num_hidden_layers - number);
  }

  /// While the gradient of the head or of a block is summed, with nothing else in flight.
  std::int64_t in_sum(const UnitSize& unit) const { return in_reduction(unit) + tied(); }

  std::int64_t in_embedding() const {
    const std::int64_t before = gathered(units_.embedding) + pending(config_.num_hidden_layers);
    const std::int64_t after = in_reduction(units_.embedding) - gradient(units_.embedding);
    return gradient(units_.embedding) + std::max(before, after);
  }

 private:
  std::int64_t tied() const { return config_.tie_word_embeddings ? gradient(units_.embedding) : 0; }
  /// Gradients on their way when the head and so many blocks have been differentiated.
  std::int64_t pending(std::int64_t num_blocks) const {
    const std::int64_t most = recipe_.parallel.units_in_flight - 1;
    const std::int64_t head = num_blocks < most ? in_reduction(units_.head) : 0;
    // ddp keeps copies that it sent until all ranks' sums are back.
    const bool keeps_sent = layout_.copies_to_send() && !layout_.shards_optimizer();
    const std::int64_t returning = keeps_sent ? std::clamp<std::int64_t>(num_blocks - most, 0, most) : 0;
    return head + std::min(num_blocks, most) * in_reduction(units_.block) +
           returning * layout_.wire * units_.block.trained;
  }
  std::int64_t gathered(const UnitSize& unit) const {
    return layout_.shards_parameters() ? layout_.weight * unit.trained + unit.frozen_bytes : 0;
  }
  std::int64_t gradient(const UnitSize& unit) const {
    return layout_.shards_gradients() ? layout_.gradient * unit.trained : 0;
  }
  std::int64_t in_reduction(const UnitSize& unit) const {
    // Ranks on a CPU receive all parts and add them up; NCCL sums in place.
    const bool receives = layout_.world_size > 1 && recipe_.device != DeviceChoice::cuda;
    const std::int64_t buffers = (receives ? 1 : 0) + (layout_.copies_to_send() ? 1 : 0);
    return gradient(unit) + buffers * layout_.wire * unit.trained;
  }

  const Recipe& recipe_;
  const ModelConfig& config_;
  const Units& units_;
  const Layout& layout_;
};

}  // namespace

std::int64_t FormulaTerms::total() const {
  return weights + gradients + optimizer + activations + communication + overhead;
}

FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t world_size,
                           const Overhead& overhead) {
  const Layout layout = layout_of(recipe, world_size);
  const Units units = units_of(recipe, config, layout);
  const Traffic traffic(recipe, config, units, layout);
  const auto live = activation_bytes(recipe, config, layout.weight, layout.gradient);
  FormulaTerms fullest = state_terms(units, layout);
  fullest.overhead = overhead.total();
  const auto consider = [&, states = fullest](FormulaMoment moment, std::int64_t activations,
                                              std::int64_t communication) {
    FormulaTerms terms = states;
    terms.moment = moment;
    terms.activations = activations;
    terms.communication = communication;
    if (terms.total() > fullest.total()) fullest = terms;
  };
  consider(FormulaMoment::forward, live.batches + live.kept + live.at_loss, traffic.at_loss());
  if (recipe.mode == Mode::inference) return fullest;
  consider(FormulaMoment::backward, live.batches + live.kept, traffic.in_sum(units.head));
  for (std::int64_t number = config.num_hidden_layers; number > 0; --number) {
    const std::int64_t below = live.batches + live.kept / config.num_hidden_layers * (number - 1);
    const std::int64_t own = live.kept / config.num_hidden_layers + live.in_block;
    consider(FormulaMoment::backward, below + own, traffic.in_block(number));
    consider(FormulaMoment::backward, below, traffic.in_sum(units.block));
  }
  consider(FormulaMoment::backward, live.batches + live.in_embedding, traffic.in_embedding());
  consider(FormulaMoment::update, live.in_update, 0);
  return fullest;
}

FormulaTerms formula_bytes(const Recipe& recipe, const ModelConfig& config, std::int64_t world_size) {
  OverheadFacts facts;
  facts.world_size = world_size;
  return formula_bytes(recipe, config, world_size, overhead_of(recipe, facts));
}

}  // namespace assay
