#include "harness/memory/tracking_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "harness/device/meta_target.h"

namespace assay {
namespace {

thread_local std::shared_ptr<MemoryLedger> current_ledger;

// What is remembered of a block. On the CPU it lies in front of the data, so that giving back needs no lock and no
// search.
struct BlockHeader {
  std::shared_ptr<MemoryLedger> ledger;
  MemoryLedger::Block block;

  static BlockHeader begin(std::size_t bytes) {
    BlockHeader header;
    if (!current_ledger || bytes == 0 || UntrackedScope::active()) return header;
    const auto size = static_cast<std::int64_t>(bytes);
    const auto block = current_ledger->allocate(size);
    TORCH_CHECK_WITH(OutOfMemoryError, block.has_value(),
                     "device memory is full: ", current_ledger->out_of_memory()->sentence());
    header.ledger = current_ledger;
    header.block = *block;
    return header;
  }

  void end() {
    if (ledger) ledger->release(block);
  }
};

// The data keeps the alignment that c10 gives it.
constexpr std::size_t kHeaderBytes = c10::gAlignment;
static_assert(sizeof(BlockHeader) <= kHeaderBytes);

class TrackingCpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    // Numbers and staging of a dry run for CUDA are host memory, not the device's.
    BlockHeader header = meta_card() ? BlockHeader() : BlockHeader::begin(bytes);
    void* base = nullptr;
    try {
      base = c10::alloc_cpu(bytes + kHeaderBytes);
    } catch (const c10::Error& error) {
      header.end();
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the machine's memory is full: ", error.what_without_backtrace());
    }
    new (base) BlockHeader(std::move(header));
    void* data = static_cast<char*>(base) + kHeaderBytes;
    // oneDNN asks that data and context be the same.
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    void* base = static_cast<char*>(data) - kHeaderBytes;
    auto* header = std::launder(static_cast<BlockHeader*>(base));
    header->end();
    header->~BlockHeader();
    c10::free_cpu(base);
  }
};

class TrackingMetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(c10::kMeta)};
    // The deleter runs on the context, also for null data.
    return {nullptr, new BlockHeader(BlockHeader::begin(bytes)), &release, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void release(void* context) {
    auto* header = static_cast<BlockHeader*>(context);
    header->end();
    delete header;
  }
};

}  // namespace

void install_tracking_allocators() {
  static std::once_flag once;
  std::call_once(once, [] {
    static TrackingCpuAllocator cpu;
    static TrackingMetaAllocator meta;
    constexpr std::uint8_t priority = 100;
    c10::SetCPUAllocator(&cpu, priority);
    c10::SetAllocator(c10::kMeta, &meta, priority);
  });
}

LedgerScope::LedgerScope(std::shared_ptr<MemoryLedger> ledger)
    : outer_(std::exchange(current_ledger, std::move(ledger))) {}
LedgerScope::~LedgerScope() { current_ledger = std::move(outer_); }

}  // namespace assay
