#include "harness/core/memory_scope.h"

namespace assay {
namespace {

thread_local std::optional<MemoryCategory> current_category;
thread_local int untracked_depth = 0;

}  // namespace

MemoryScope::MemoryScope(MemoryCategory category) : outer_(current_category) { current_category = category; }
MemoryScope::~MemoryScope() { current_category = outer_; }
std::optional<MemoryCategory> MemoryScope::current() { return current_category; }

UntrackedScope::UntrackedScope() { ++untracked_depth; }
UntrackedScope::~UntrackedScope() { --untracked_depth; }
bool UntrackedScope::active() { return untracked_depth > 0; }

}  // namespace assay
