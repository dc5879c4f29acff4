#include "harness/core/json.h"

#include <cmath>
#include <unordered_set>
#include <vector>

#include "harness/core/error.h"

namespace assay {
namespace {

constexpr std::size_t kMaxDepth = 100;

/// Goes through a text without keeping it, and throws at what the library would let pass.
class StrictReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StrictReader(const std::string& what) : what_(what) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }

  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    throw Error(ErrorKind::data, what_ + ": JSON key \"" + name + "\" is given twice");
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw Error(ErrorKind::data, what_ + ": not valid JSON: " + error.what());
  }

 private:
  bool enter() {
    if (keys_.size() == kMaxDepth) throw Error(ErrorKind::data, what_ + ": JSON nested deeper than 100 levels");
    keys_.emplace_back();
    return true;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  const std::string& what_;
  std::vector<std::unordered_set<std::string>> keys_;
};

template <typename Value>
Value parse_strictly(std::string_view text, const std::string& what) {
  // The library would skip a byte order mark, and take a zero byte for the end of the text.
  if (text.starts_with("\xef\xbb\xbf")) throw Error(ErrorKind::data, what + ": JSON begins with a byte order mark");
  if (text.find('\0') != std::string_view::npos) throw Error(ErrorKind::data, what + ": JSON holds a zero byte");
  // Not by the parser's callback: with one, the library searches all of an object after each of its members.
  StrictReader reader(what);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return Value::parse(text.begin(), text.end());
}

}  // namespace

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string dump_json_pretty(const Json& value) {
  return value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json parse_json(std::string_view text, const std::string& what) { return parse_strictly<Json>(text, what); }

nlohmann::json parse_large_json(std::string_view text, const std::string& what) {
  return parse_strictly<nlohmann::json>(text, what);
}

void set_number(Json& object, const std::string& key, double value) {
  if (std::isfinite(value)) {
    object[key] = value;
    return;
  }
  object[key] = nullptr;
  object[key + "_reason"] = std::isnan(value) ? "not a number" : (value > 0 ? "infinite" : "minus infinite");
}

}  // namespace assay
