#include "harness/train/tensor_hash.h"

#include <array>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace assay {

namespace {

XXH3_state_t* as_state(const std::shared_ptr<void>& pointer) { return static_cast<XXH3_state_t*>(pointer.get()); }

}  // namespace

TensorHash::TensorHash() : state_(XXH3_createState(), [](XXH3_state_t* state) { XXH3_freeState(state); }) {
  XXH3_128bits_reset(as_state(state_));
}

void TensorHash::add(const void* data, std::size_t size) { XXH3_128bits_update(as_state(state_), data, size); }

std::string TensorHash::text() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(as_state(state_));
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

}  // namespace assay
