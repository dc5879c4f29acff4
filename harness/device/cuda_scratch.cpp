#include "harness/device/cuda_scratch.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace assay {
namespace {

constexpr std::int64_t kWarp = 32;

bool is_hopper_or_newer(const CudaCard& card) { return card.compute_capability >= 90; }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t multiple) { return ceil_div(a, multiple) * multiple; }

std::int64_t power_of_two_up_to(std::int64_t value, std::int64_t most) {
  return value < most
             ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1))))
             : most;
}

// CUB aligns each of its arrays, and leaves room to align the first.
constexpr std::int64_t kCubAlignment = 256;

std::int64_t cub_scan_bytes(std::int64_t tiles) {
  constexpr std::int64_t bytes_per_tile = 16;
  return round_up((tiles + kWarp) * bytes_per_tile, kCubAlignment) + kCubAlignment + kCubAlignment - 1;
}

}  // namespace

CudaCard cuda_card(int compute_capability) {
  // T4, A100, A40, L40S, H100 SXM, B200, RTX PRO 6000. Multiprocessors from the data sheets, threads from the table of
  // compute capabilities in the CUDA programming guide.
  static constexpr CudaCard kCards[] = {{75, 40, 1024},  {80, 108, 2048},  {86, 84, 1536},  {89, 142, 1536},
                                        {90, 132, 2048}, {100, 148, 2048}, {120, 188, 1536}};
  CudaCard card = kCards[0];
  for (const auto& known : kCards) {
    if (known.compute_capability <= compute_capability) card = known;
  }
  card.compute_capability = compute_capability;
  return card;
}

std::int64_t cublas_workspace_bytes(const CudaCard& card) {
  constexpr std::int64_t kib = 1024;
  return is_hopper_or_newer(card) ? 8 * 4096 * kib : 2 * 4096 * kib + 8 * 16 * kib;
}

CudaReductionScratch cuda_reduction_scratch(const CudaReduction& reduction, const CudaCard& card) {
  constexpr std::int64_t most_threads = 512;
  constexpr std::int64_t fewest_values = 16;
  constexpr std::int64_t most_values = 256;
  const std::int64_t output_vector = reduction.along_rows ? 1 : reduction.vector;
  const std::int64_t threads = most_threads / output_vector;
  const std::int64_t fast = reduction.along_rows ? reduction.inputs_per_output : reduction.num_outputs;
  const std::int64_t slow = reduction.along_rows ? reduction.num_outputs : reduction.inputs_per_output;

  const std::int64_t most_wide = power_of_two_up_to(fast / reduction.vector, threads);
  const std::int64_t height = std::min(power_of_two_up_to(slow, threads), threads / std::min(most_wide, kWarp));
  const std::int64_t width = std::min(most_wide, threads / height);

  std::int64_t values = ceil_div(reduction.inputs_per_output, reduction.along_rows ? width : 1);
  if (values < std::min(16 * height, most_values)) return {};  // each warp has outputs of its own
  values = ceil_div(reduction.inputs_per_output, (reduction.along_rows ? width : 1) * height);
  const std::int64_t grid = ceil_div(reduction.num_outputs / output_vector, reduction.along_rows ? 1 : width);
  const std::int64_t most_blocks = card.num_multiprocessors * (card.threads_per_multiprocessor / (width * height));
  if (values < most_values || grid > most_blocks) return {};
  const std::int64_t blocks =
      std::max(std::min(ceil_div(most_blocks, grid), ceil_div(values, fewest_values)), ceil_div(values, most_values));
  if (blocks <= 1) return {};
  const std::int64_t lanes = reduction.along_rows ? 1 : width * output_vector;
  return {reduction.accumulator_bytes * reduction.num_outputs * blocks * lanes,
          static_cast<std::int64_t>(sizeof(int)) * grid};
}

std::int64_t flash_rounded_head_dim(std::int64_t head_dim) { return round_up(head_dim, head_dim <= 128 ? 32 : 64); }

std::int64_t flash_num_splits(const CudaAttention& attention, const CudaCard& card) {
  constexpr std::int64_t most_splits = 128;
  constexpr std::int64_t queries_per_block = 64;
  // Two thread blocks of 128 threads a multiprocessor.
  const std::int64_t slots = 2 * card.num_multiprocessors;
  const std::int64_t keys_per_block = attention.head_dim <= 64 ? 256 : attention.head_dim <= 128 ? 128 : 64;
  const std::int64_t key_blocks = ceil_div(attention.key_length, keys_per_block);
  const std::int64_t blocks = attention.batch * attention.heads * ceil_div(attention.query_length, queries_per_block);
  if (static_cast<float>(blocks) >= 0.8F * static_cast<float>(slots)) return 1;

  const auto is_eligible = [&](std::int64_t splits) {
    return splits == 1 || ceil_div(key_blocks, splits) != ceil_div(key_blocks, splits - 1);
  };
  const auto efficiency = [&](std::int64_t splits) {
    const float waves = static_cast<float>(blocks * splits) / static_cast<float>(slots);
    return waves / std::ceil(waves);
  };
  const std::int64_t last = std::min({most_splits, slots, key_blocks});
  float best = 0;
  for (std::int64_t splits = 1; splits <= last; ++splits) {
    if (is_eligible(splits)) best = std::max(best, efficiency(splits));
  }
  for (std::int64_t splits = 1; splits <= last; ++splits) {
    if (is_eligible(splits) && efficiency(splits) >= 0.85 * best) return splits;
  }
  return 1;
}

std::int64_t efficient_workspace_bytes(const CudaAttention& attention, bool is_half) {
  constexpr std::int64_t float_bytes = 4;
  constexpr std::int64_t lock_and_counter_bytes = 16;
  constexpr std::int64_t most_in_registers = 128;
  const std::int64_t head_dim = attention.head_dim;
  const std::int64_t block_queries = head_dim <= 64 ? 64 : 128;
  const std::int64_t block_keys = is_half && head_dim > 64 && head_dim <= most_in_registers ? 128 : 64;
  const std::int64_t tiles = ceil_div(attention.query_length, block_queries) * ceil_div(head_dim, block_keys);
  std::int64_t bytes = tiles * (lock_and_counter_bytes + float_bytes * block_queries * block_keys);
  const std::int64_t sequences = attention.batch * attention.heads;
  if (is_half && head_dim > most_in_registers) {
    constexpr std::int64_t most_blocks = 200;
    constexpr std::int64_t enough_sequences = 256;
    std::int64_t splits = ceil_div(attention.key_length, block_keys);
    if (sequences >= enough_sequences && attention.key_length <= 2 * block_keys) splits = 1;
    splits = std::max<std::int64_t>(std::min(splits, most_blocks / sequences), 1);
    const std::int64_t keys_and_values = 2;
    bytes += keys_and_values * float_bytes * splits * block_keys * round_up(head_dim, block_queries);
  }
  return sequences * bytes;
}

std::int64_t norm_backward_partial_rows(std::int64_t rows, std::int64_t columns, const CudaCard& card) {
  constexpr std::int64_t many_rows = 64 * 1024;
  constexpr std::int64_t rows_per_block = 32;
  constexpr std::int64_t most_sums = std::int64_t{1} << 20;
  if (rows <= many_rows || columns / kWarp >= card.num_multiprocessors / 2) return 0;
  return std::min(ceil_div(rows, rows_per_block), most_sums / columns);
}

std::int64_t cub_sort_pairs_bytes(std::int64_t count, const CudaCard& card) {
  const std::int64_t pairs_per_tile = is_hopper_or_newer(card) ? 4608 : 3840;
  constexpr std::int64_t digits = 256;
  constexpr std::int64_t passes = 8;
  const std::int64_t second_copy = 2 * round_up(8 * count, kCubAlignment);
  const std::int64_t histograms = 8 * passes * digits;
  const std::int64_t tile_counters = 4 * digits * ceil_div(count, pairs_per_tile);
  return second_copy + histograms + tile_counters + kCubAlignment + kCubAlignment - 1;
}

std::int64_t cub_unique_bytes(std::int64_t count, const CudaCard& card) {
  const std::int64_t numbers_per_tile = is_hopper_or_newer(card) ? 4480 : 1792;
  return cub_scan_bytes(ceil_div(count, numbers_per_tile));
}

std::int64_t cub_sum_bytes(std::int64_t count) {
  constexpr std::int64_t numbers_per_tile = 896;
  return cub_scan_bytes(ceil_div(count, numbers_per_tile));
}

std::int64_t embedding_max_partial_sums(std::int64_t tokens, std::int64_t num_rows) {
  constexpr std::int64_t tokens_per_thread = 10;
  return tokens / tokens_per_thread + std::min(tokens, num_rows);
}

bool embedding_adds_into_rows(std::int64_t tokens, std::int64_t num_rows, std::int64_t columns, const CudaCard& card) {
  constexpr std::int64_t most_threads = 1024;
  constexpr std::int64_t waves = 4;
  const std::int64_t threads = round_up(columns, kWarp);
  const std::int64_t blocks = ceil_div(num_rows * threads, std::min(threads, most_threads));
  return blocks < waves * card.num_multiprocessors && embedding_max_partial_sums(tokens, num_rows) > waves * blocks;
}

}  // namespace assay
