#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "harness/device/cuda_scratch.h"
#include "harness/device/device.h"
#include "harness/memory/tracking_allocator.h"

// tests/data/memory/cuda_operators.csv: what PyTorch 2.11's CUDA operators ask from its caching allocator, recorded
// from its own host code on a pretend device of compute capability 9.0 (132 multiprocessors) and 8.0 (108). Each row is
// one call, attention and norms with their backward pass; then the results die.

namespace assay {
namespace {

using at::Tensor;
using Arguments = std::vector<std::int64_t>;
using Results = std::vector<Tensor>;
/// Makes its inputs and gives back the call.
using Operator = std::function<std::function<Results()>(const Arguments&)>;

Tensor empty(at::IntArrayRef shape, std::int64_t bits = 16) {
  const auto dtype = bits == 16 ? at::kBFloat16 : bits == 32 ? at::kFloat : at::kDouble;
  return at::empty(shape, at::device(at::kMeta).dtype(dtype));
}

Tensor by_head(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t head_dim, std::int64_t bits) {
  return empty({batch, length, heads, head_dim}, bits).transpose(1, 2);
}

std::function<Results()> flash(const Arguments& a) {
  const Tensor q = by_head(a[0], a[1], a[2], a[4], 16);
  const Tensor k = by_head(a[0], a[1], a[3], a[4], 16);
  const Tensor v = by_head(a[0], a[1], a[3], a[4], 16);
  const Tensor grad = by_head(a[0], a[1], a[2], a[4], 16);
  return [=] {
    auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, mask] =
        at::_scaled_dot_product_flash_attention(q, k, v, 0.0, true);
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, out, lse, cum_q, cum_k,
                                                                         q.size(2), k.size(2), 0.0, true, seed, offset);
    return Results{out, lse, seed, offset, dq, dk, dv};
  };
}

std::function<Results()> efficient(const Arguments& a) {
  const Tensor q = by_head(a[0], a[1], a[2], a[3], a[4]);
  const Tensor k = by_head(a[0], a[1], a[2], a[3], a[4]);
  const Tensor v = by_head(a[0], a[1], a[2], a[3], a[4]);
  const Tensor grad = by_head(a[0], a[1], a[2], a[3], a[4]);
  return [=] {
    auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(q, k, v, {}, true, 0.0, true);
    auto [dq, dk, dv, bias] = at::_scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, {}, out, lse, seed, offset, 0.0, {true, true, true, false}, true);
    return Results{out, lse, seed, offset, dq, dk, dv};
  };
}

std::function<Results()> layer_norm(const Arguments& a) {
  const Tensor x = empty({a[0], a[1]}, a[2]);
  const Tensor weight = empty({a[1]}, a[2]);
  const Tensor grad = empty({a[0], a[1]}, a[2]);
  const std::vector<std::int64_t> shape{a[1]};
  return [=] {
    auto [out, mean, rstd] = at::native_layer_norm(x, shape, weight, weight, 1e-5);
    auto [dx, dw, db] = at::native_layer_norm_backward(grad, x, shape, mean, rstd, weight, weight, {true, true, true});
    return Results{out, mean, rstd, dx, dw, db};
  };
}

std::function<Results()> rms_norm(const Arguments& a) {
  const Tensor x = empty({a[0], a[1]}, a[2]);
  const Tensor weight = empty({a[1]}, a[2]);
  const Tensor grad = empty({a[0], a[1]}, a[2]);
  const std::vector<std::int64_t> shape{a[1]};
  return [=] {
    auto [out, rstd] = at::_fused_rms_norm(x, shape, weight, 1e-5);
    auto [dx, dw] = at::_fused_rms_norm_backward(grad, x, shape, rstd, weight, {true, true});
    return Results{out, rstd, dx, dw};
  };
}

std::function<Results()> embedding(const Arguments& a) {
  const Tensor ids = at::empty({a[0]}, at::device(at::kMeta).dtype(at::kLong));
  const Tensor grad = empty({a[0], a[2]}, a[3]);
  return [=, rows = a[1]] { return Results{at::embedding_dense_backward(grad, ids, rows, -1, false)}; };
}

std::vector<std::int64_t> dims_of(std::int64_t mask) {
  std::vector<std::int64_t> dims;
  for (const std::int64_t dim : {0, 1, 2}) {
    if ((mask >> dim & 1) != 0) dims.push_back(dim);
  }
  return dims;
}

std::function<Results()> sum3(const Arguments& a) {
  return [x = empty({a[0], a[1], a[2]}, a[4]), dims = dims_of(a[3])] { return Results{x.sum(dims)}; };
}
std::function<Results()> mean3(const Arguments& a) {
  return [x = empty({a[0], a[1], a[2]}, a[4]), dims = dims_of(a[3])] { return Results{x.mean(dims)}; };
}
std::function<Results()> sum_turned(const Arguments& a) {
  return [x = empty({a[2], a[1], a[0]}, a[4]).transpose(0, 2), dims = dims_of(a[3])] { return Results{x.sum(dims)}; };
}

std::function<Results()> norm(const Arguments& a) {
  return [x = empty({a[0], a[1]}, a[2]), dtype = empty({0}, a[3]).scalar_type()] {
    return Results{at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, false, dtype)};
  };
}

std::function<Results()> mm(const Arguments& a) {
  return [x = empty({a[0], a[1]}, a[3]), w = empty({a[1], a[2]}, a[3])] { return Results{at::mm(x, w)}; };
}

// The second product of its thread: cuBLAS has its workspace already.
std::function<Results()> addmm(const Arguments& a) {
  const Tensor x = empty({a[0], a[1]}, a[3]);
  const Tensor w = empty({a[1], a[2]}, a[3]);
  at::mm(x, w);
  return [=, bias = empty({a[2]}, a[3])] { return Results{at::addmm(bias, x, w)}; };
}

const std::map<std::string, Operator> kOperators = {
    {"flash", flash}, {"efficient", efficient},   {"layer_norm", layer_norm}, {"rms_norm", rms_norm}, {"sum3", sum3},
    {"mean3", mean3}, {"sum_turned", sum_turned}, {"embedding", embedding},   {"norm", norm},         {"mm", mm},
    {"addmm", addmm},
};

/// The order in which blocks die between two allocations has no meaning.
std::string text_of(std::vector<std::int64_t> bytes) {
  for (auto begin = bytes.begin(); begin != bytes.end();) {
    const bool is_release = *begin < 0;
    const auto end = std::find_if(begin, bytes.end(), [&](std::int64_t value) { return (value < 0) != is_release; });
    if (is_release) std::sort(begin, end);
    begin = end;
  }
  std::ostringstream text;
  for (const auto value : bytes) text << value << ' ';
  return text.str();
}

std::vector<std::int64_t> numbers(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::int64_t>(stream), {}};
}

struct Row {
  int compute_capability = 0;
  std::string name;
  std::string arguments;
  std::string bytes;
};

std::vector<Row> read_rows() {
  std::ifstream file(ASSAY_SOURCE_DIR "/tests/data/memory/cuda_operators.csv");
  std::vector<Row> rows;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string capability;
    Row row;
    std::getline(fields, capability, ',');
    std::getline(fields, row.name, ',');
    std::getline(fields, row.arguments, ',');
    std::getline(fields, row.bytes, ',');
    row.compute_capability = std::stoi(capability);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string dry_run(const Row& row) {
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  const auto device = make_meta_device({.cuda = true, .compute_capability = row.compute_capability});
  const auto call = kOperators.at(row.name)(numbers(row.arguments));
  const std::size_t begin = ledger->events().size();
  ledger->record_events(true);
  call();
  ledger->record_events(false);
  std::vector<std::int64_t> bytes;
  for (std::size_t i = begin; i < ledger->events().size(); ++i) bytes.push_back(ledger->events()[i].bytes);
  return text_of(std::move(bytes));
}

TEST(CudaOperators, TakeWhatPyTorchsHostCodeTakes) {
  install_tracking_allocators();
  const auto rows = read_rows();
  EXPECT_GT(rows.size(), 300U);
  for (const auto& row : rows) {
    EXPECT_EQ(dry_run(row), text_of(numbers(row.bytes)))
        << row.name << " " << row.arguments << " on " << row.compute_capability;
  }
}

TEST(CudaOperators, AreRefusedByADryRunOfTheCpu) {
  const auto is_refused = [] {
    try {
      flash({1, 16, 2, 2, 32})();
      return false;
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("target cuda") != std::string::npos;
    }
  };
  EXPECT_TRUE(is_refused());
  const auto cuda = make_meta_device({.cuda = true});
  EXPECT_FALSE(is_refused());
  {
    const auto cpu = make_meta_device({});
    EXPECT_TRUE(is_refused());
  }
  EXPECT_FALSE(is_refused());
}

// Where a tensor is used twice, gradients are added in place, as the engine does on a device.
TEST(CudaOperators, GradientsOfATensorUsedTwiceTakeNoThirdBlock) {
  install_tracking_allocators();
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  const auto device = make_meta_device({.cuda = true});
  const Tensor x = empty({1024}, 32).requires_grad_();
  Tensor y = x * 2;
  Tensor loss = (y * 3 + y * 5).sum();
  const std::int64_t before = ledger->num_events();
  loss.backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  // The root's gradient, those of the two products, their sum times 2, which becomes x's.
  const std::int64_t allocated = 4;
  const std::int64_t kept = 1;
  EXPECT_EQ(ledger->num_events() - before, 2 * allocated - kept);
}

TEST(CudaOperators, TheTableIsInTheDocuments) {
  std::ifstream file(ASSAY_SOURCE_DIR "/docs/cuda_scratch.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  for (const auto& row : kCudaScratchRows) {
    std::ostringstream line;
    line << "| " << row.operators << " | " << row.scratch << " | " << row.source << " |\n";
    EXPECT_NE(page.find(line.str()), std::string::npos) << line.str();
  }
}

}  // namespace
}  // namespace assay
