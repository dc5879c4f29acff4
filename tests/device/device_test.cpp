#include "harness/device/device.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>

#include "harness/memory/tracking_allocator.h"

namespace assay {
namespace {

TEST(CpuDevice, ValuesGoUpAndComeBack) {
  const auto device = make_cpu_device(2);
  EXPECT_EQ(at::get_num_threads(), 2);
  EXPECT_EQ(device->read(device->upload({1.5, -2, 1e300})), (std::vector<double>{1.5, -2, 1e300}));
  const at::Tensor floats = device->upload(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_TRUE(at::equal(floats, at::arange(1, 7, at::kFloat).view({2, 3})));
  const at::Tensor ids = device->upload(std::vector<std::int64_t>{7, -100}, {2});
  EXPECT_TRUE(at::equal(ids, at::tensor({7, -100}, at::kLong)));
  const at::Tensor computed = device->upload([] { return std::vector<float>{1, 2}; }, {2, 1});
  EXPECT_TRUE(at::equal(computed, at::arange(1, 3, at::kFloat).view({2, 1})));
  EXPECT_EQ(make_cpu_device(1)->torch_device().type(), c10::kCPU);
}

TEST(MetaDevice, HasShapesAndTypesAndReadsZeros) {
  const auto device = make_meta_device({});
  const at::Tensor doubles = device->upload({1, 2, 3});
  const at::Tensor floats = device->upload(std::vector<float>(6), {2, 3});
  const at::Tensor ids = device->upload(std::vector<std::int64_t>(4), {4});
  for (const auto& tensor : {doubles, floats, ids}) EXPECT_TRUE(tensor.is_meta());
  EXPECT_EQ(doubles.scalar_type(), at::kDouble);
  EXPECT_EQ(floats.sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(floats.scalar_type(), at::kFloat);
  EXPECT_EQ(ids.scalar_type(), at::kLong);
  EXPECT_EQ(device->read(doubles), (std::vector<double>{0, 0, 0}));
  const auto not_called = []() -> std::vector<float> { throw std::logic_error("values of a dry run"); };
  EXPECT_EQ(device->upload(not_called, {2, 3}).sizes(), floats.sizes());
}

// What one operator allocates and gives back, in order, and the shapes and strides of its results.
std::string trace(Device& device, const std::function<std::vector<at::Tensor>(c10::Device)>& call) {
  install_tracking_allocators();
  const auto ledger = std::make_shared<MemoryLedger>();
  const LedgerScope scope(ledger);
  ledger->record_events(true);
  std::ostringstream text;
  {
    const auto results = call(device.torch_device());
    for (const auto& result : results) text << result.sizes() << " by " << result.strides() << "\n";
  }
  for (const auto& event : ledger->events()) text << event.bytes << "\n";
  return text.str();
}

void expect_same_trace(int num_threads, const std::function<std::vector<at::Tensor>(c10::Device)>& call) {
  const auto cpu = make_cpu_device(num_threads);
  const auto meta = make_meta_device({.num_threads = num_threads});
  const std::string on_cpu = trace(*cpu, call);
  EXPECT_EQ(trace(*meta, call), on_cpu);
  EXPECT_GT(on_cpu.size(), 8U);
}

struct Shape {
  std::int64_t batch, length, heads, kv_heads, head_dim;
};

// The query lengths where the kernel changes its block size are 192 and 768.
const Shape kShapes[] = {{1, 1, 1, 1, 8},    {2, 17, 4, 2, 16},  {1, 191, 2, 1, 32}, {1, 192, 2, 1, 32},
                         {3, 193, 2, 2, 64}, {1, 767, 1, 1, 16}, {1, 768, 1, 1, 16}, {1, 1100, 2, 1, 16}};

// The same blocks in the same order as the CPU's kernels, scratch for each thread included.
TEST(MetaKernels, AttentionAllocatesAsTheCpuDoes) {
  for (const Shape& shape : kShapes) {
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE("length " + std::to_string(shape.length) + ", " + std::to_string(threads) + " threads");
      expect_same_trace(threads, [&](c10::Device device) {
        const auto tensor = [&](std::int64_t heads) {
          return at::zeros({shape.batch, shape.length, heads, shape.head_dim}, at::device(device).dtype(at::kFloat))
              .transpose(1, 2);
        };
        const at::Tensor query = tensor(shape.heads);
        const at::Tensor key = tensor(shape.kv_heads);
        const at::Tensor value = tensor(shape.kv_heads);
        auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, true);
        auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
            tensor(shape.heads), query, key, value, output, logsumexp, 0.0, true);
        return std::vector<at::Tensor>{output, logsumexp, grad_query, grad_key, grad_value};
      });
    }
  }
}

TEST(MetaKernels, EmbeddingAllocatesAsTheCpuDoes) {
  for (const std::int64_t tokens : {1, 33, 5000}) {
    expect_same_trace(1, [&](c10::Device device) {
      const at::Tensor weight = at::zeros({50, 24}, at::device(device).dtype(at::kFloat));
      const at::Tensor ids = at::zeros({tokens}, at::device(device).dtype(at::kLong));
      const at::Tensor rows = at::embedding(weight, ids);
      weight.index_add_(0, ids, rows);
      return std::vector<at::Tensor>{rows, at::index_select(weight, 0, ids)};
    });
  }
}

TEST(MetaKernels, AdamWAllocatesAsTheCpuDoes) {
  expect_same_trace(2, [](c10::Device device) {
    const auto fp32 = at::device(device).dtype(at::kFloat);
    std::vector<at::Tensor> parameters{at::zeros({1000}, fp32), at::zeros({16}, fp32)};
    std::vector<at::Tensor> gradients{at::zeros({1000}, fp32), at::zeros({16}, fp32)};
    std::vector<at::Tensor> means{at::zeros({1000}, fp32), at::zeros({16}, fp32)};
    std::vector<at::Tensor> squares{at::zeros({1000}, fp32), at::zeros({16}, fp32)};
    const at::Tensor step = at::ones({1}, fp32);
    at::_fused_adamw_(parameters, gradients, means, squares, {}, {step, step}, 0.1, 0.9, 0.95, 0.1, 1e-8, false, false,
                      at::ones({1}, fp32), {});
    return parameters;
  });
}

}  // namespace
}  // namespace assay
