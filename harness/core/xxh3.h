#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace assay {

/// XXH3-128 of bytes that come in pieces.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;

  void add(const void* data, std::size_t size);
  /// Of all that was added since the beginning or the last reset(), 32 hexadecimal digits.
  std::string text() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-128 of the bytes, 32 hexadecimal digits.
std::string xxh3_of(std::string_view bytes);

}  // namespace assay
