#include "harness/memory/operation_labels.h"

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace assay {
namespace {

thread_local std::shared_ptr<MemoryLedger> labelled_ledger;
thread_local int depth = 0;

// A name that outlives the call: not all of LibTorch's do.
const char* kept_name(const char* name) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> names;
  const std::lock_guard lock(mutex);
  auto found = names.find(std::string_view(name));
  if (found == names.end()) found = names.insert(name).first;
  return found->c_str();
}

std::unique_ptr<at::ObserverContext> begin_operation(const at::RecordFunction& function) {
  if (depth++ == 0 && labelled_ledger) labelled_ledger->set_operation(kept_name(function.name()));
  return nullptr;
}

void end_operation(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  if (--depth == 0 && labelled_ledger) labelled_ledger->set_operation(nullptr);
}

}  // namespace

OperationLabels::OperationLabels(std::shared_ptr<MemoryLedger> ledger)
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(begin_operation, end_operation).scopes({at::RecordScope::FUNCTION}))),
      outer_(std::exchange(labelled_ledger, std::move(ledger))) {}

OperationLabels::~OperationLabels() {
  at::removeCallback(handle_);
  labelled_ledger = std::move(outer_);
}

}  // namespace assay
