#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace assay {

/// Writes a pickle of protocol 4 from the opcodes that Python and PyTorch's memory viewer (MemoryViz.js) both read.
/// Values come in order: begin_dict(), then key and value by turns, end(). Texts are written once and referred to.
class PickleWriter {
 public:
  void begin_dict();
  void begin_list();
  void end();  ///< of the innermost dict or list
  void text(std::string_view value);
  void integer(std::int64_t value);
  void real(double value);
  void boolean(bool value);
  void tuple(std::int64_t first, std::int64_t second);

  /// Keeps the value that was just ended, for again().
  std::uint32_t keep();
  void again(std::uint32_t kept);

  /// The pickle, once all is ended.
  std::string finish();

 private:
  struct Open {
    bool list = false;
    std::int64_t num_values = 0;
  };
  void byte(unsigned char value) { bytes_.push_back(static_cast<char>(value)); }
  void little_endian(std::uint64_t value, std::size_t count);
  void put_integer(std::int64_t value);
  void get(std::uint32_t index);
  void value_ended();

  std::string bytes_{"\x80\x04", 2};
  std::vector<Open> open_;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::uint32_t num_kept_ = 0;
};

}  // namespace assay
