#include "harness/device/meta_target.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <memory>
#include <vector>

#include "harness/core/memory_scope.h"
#include "harness/device/meta_kernels.h"

namespace assay {
namespace {

thread_local MetaTargetScope* newest = nullptr;

constexpr int kNotInBackward = -1;

// The backward passes of this thread's nodes that run now; a node may start another pass.
thread_local std::vector<int> passes_of_nodes;

std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& /*node*/) {
  passes_of_nodes.push_back(torch::autograd::get_current_graph_task_id());
  return nullptr;
}
void end_node(const at::RecordFunction& /*node*/, at::ObserverContext* /*context*/) { passes_of_nodes.pop_back(); }

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  register_cpu_kernels(library);
  register_gradient_sum(library);
  register_cuda_attention(library);
  register_cuda_norms(library);
  register_cuda_embedding(library);
  register_cuda_products(library);
  register_cuda_reductions(library);
}

}  // namespace

const MetaTarget& meta_target() {
  static const MetaTarget cpu;
  return newest != nullptr ? newest->target_ : cpu;
}

const std::optional<CudaCard>& meta_card() {
  static const std::optional<CudaCard> none;
  return newest != nullptr ? newest->card_ : none;
}

c10::DataPtr meta_scratch(std::int64_t bytes) {
  return c10::GetAllocator(c10::kMeta)->allocate(static_cast<std::size_t>(bytes));
}

void take_matrix_workspace(bool has_bias) {
  if (!meta_card()) return;
  const MemoryScope scope(MemoryCategory::temporaries);  // kept for good, but of no tensor
  auto& workspaces =
      torch::autograd::get_current_graph_task_id() == kNotInBackward ? newest->forward_ : newest->backward_;
  if (!workspaces.cublas) workspaces.cublas = meta_scratch(cublas_workspace_bytes(*newest->card_));
  if (has_bias && !workspaces.cublaslt) workspaces.cublaslt = meta_scratch(kCublasLtWorkspaceBytes);
}

bool is_between_nodes() {
  const int pass = torch::autograd::get_current_graph_task_id();
  return newest != nullptr && pass != kNotInBackward && (passes_of_nodes.empty() || passes_of_nodes.back() != pass);
}

MetaTargetScope::MetaTargetScope(const MetaTarget& target)
    : target_(target),
      node_callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(begin_node, end_node).scopes({at::RecordScope::BACKWARD_FUNCTION}))),
      older_(newest) {
  if (target.cuda) card_ = cuda_card(target.compute_capability);
  newest = this;
}

MetaTargetScope::~MetaTargetScope() {
  at::removeCallback(node_callback_);
  MetaTargetScope** place = &newest;
  while (*place != this) place = &(*place)->older_;
  *place = older_;
}

}  // namespace assay
