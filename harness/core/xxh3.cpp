#include "harness/core/xxh3.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "harness/core/text.h"

namespace assay {
namespace {

std::string text_of(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return hex_of(canonical.digest);
}

}  // namespace

struct Xxh3::State {
  XXH3_state_t state;
};

Xxh3::Xxh3() : state_(std::make_unique<State>()) { reset(); }
Xxh3::~Xxh3() = default;

void Xxh3::add(const void* data, std::size_t size) { XXH3_128bits_update(&state_->state, data, size); }

std::string Xxh3::text() const { return text_of(XXH3_128bits_digest(&state_->state)); }

void Xxh3::reset() { XXH3_128bits_reset(&state_->state); }

std::string xxh3_of(std::string_view bytes) { return text_of(XXH3_128bits(bytes.data(), bytes.size())); }

}  // namespace assay
