#include "harness/memory/pickle_reader.h"

#include <array>
#include <bit>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "harness/core/error.h"

namespace assay {
namespace {

using Kind = PickleValue::Kind;
using Items = PickleValue::Items;

constexpr std::size_t kMaxPushes = std::size_t{1} << 26;
constexpr std::size_t kMaxStack = std::size_t{1} << 20;
constexpr std::size_t kMaxMarks = 64;
constexpr int kMaxProtocol = 5;

std::string hex_byte(unsigned char byte) {
  std::array<char, 3> text{};
  std::snprintf(text.data(), text.size(), "%02x", byte);
  return text.data();
}

/// Why an opcode is refused, for those that a reader of pickles may meet.
std::string refusal_of(unsigned char opcode) {
  constexpr std::string_view calling{"cRioQPb\x81\x82\x83\x84\x92\x93"};
  const auto name = "opcode " + hex_byte(opcode);
  if (calling.find(static_cast<char>(opcode)) != std::string_view::npos)
    return name + " would import, build or call something; a memory snapshot holds plain values only";
  return name + " is none that a memory snapshot is made of";
}

}  // namespace

const Items& PickleValue::items() const {
  static const Items none;
  const auto* items = std::get_if<Items>(&data);
  return items == nullptr ? none : *items;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  if (kind != Kind::dict) return nullptr;
  const auto& pairs = items();
  for (std::size_t i = pairs.size(); i >= 2; i -= 2) {
    const auto& name = *pairs[i - 2];
    if (name.kind == Kind::text && std::get<std::string_view>(name.data) == key) return pairs[i - 1];
  }
  return nullptr;
}

/// The stack machine. Opcodes and their arguments: Lib/pickletools.py of CPython.
class PickleReader {
 public:
  explicit PickleReader(Pickle& pickle) : pickle_(pickle), bytes_(pickle.bytes_) {
    none_ = make(Kind::none, std::int64_t{0});
    booleans_ = {make(Kind::boolean, std::int64_t{0}), make(Kind::boolean, std::int64_t{1})};
    for (std::int64_t i = 0; i < 256; ++i) bytes_values_[static_cast<std::size_t>(i)] = make(Kind::integer, i);
  }

  const PickleValue* read() {
    if (bytes_.size() < 2 || take_byte() != 0x80)
      fail("this is no pickle of protocol 2 to 5, which starts with 80 hex");
    if (const auto protocol = take_byte(); protocol < 2 || protocol > kMaxProtocol)
      fail("protocol " + std::to_string(protocol) + " is not supported (2 to 5 are)");
    while (true) {
      start_ = position_;
      const auto opcode = take_byte();
      if (opcode == '.') return stopped();
      run(opcode);
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::data, pickle_.name_ + ": byte " + std::to_string(start_) + ": " + what);
  }

  std::string_view take(std::uint64_t count) {
    if (count > bytes_.size() - position_) fail("the pickle ends early; the file was cut, copy it again");
    const auto taken = bytes_.substr(position_, count);
    position_ += count;
    return taken;
  }

  unsigned char take_byte() { return static_cast<unsigned char>(take(1)[0]); }

  /// Little-endian.
  std::uint64_t take_unsigned(std::size_t count) {
    std::uint64_t value = 0;
    const auto taken = take(count);
    for (std::size_t i = 0; i < count; ++i)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
    return value;
  }

  /// Little-endian, two's complement, of any length.
  std::int64_t take_long(std::uint64_t count) {
    const auto taken = take(count);
    const bool negative = !taken.empty() && static_cast<signed char>(taken.back()) < 0;
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      const auto byte = static_cast<unsigned char>(taken[i]);
      if (i >= 8 && byte != (negative ? 0xff : 0)) fail("a whole number of more than 64 bits");
      if (i < 8) value = (value & ~(std::uint64_t{0xff} << (8 * i))) | (std::uint64_t{byte} << (8 * i));
    }
    if ((static_cast<std::int64_t>(value) < 0) != negative) fail("a whole number of more than 64 bits");
    return static_cast<std::int64_t>(value);
  }

  double take_double() {
    std::uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    return std::bit_cast<double>(bits);
  }

  PickleValue* make(Kind kind, std::variant<std::int64_t, double, std::string_view, Items> data) {
    return &pickle_.values_.emplace_back(PickleValue{kind, static_cast<std::int64_t>(start_), std::move(data)});
  }

  void push(PickleValue* value) {
    if (++num_pushes_ > kMaxPushes) fail("more than 2^26 values; record fewer events (max_entries)");
    if (stack_.size() >= kMaxStack) fail("values are nested too deep");
    stack_.push_back(value);
  }

  /// A value that must be there, above the last mark.
  PickleValue* pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("the pickle takes a value that is not there");
    auto* value = stack_.back();
    stack_.pop_back();
    return value;
  }

  PickleValue* top(Kind kind) {
    auto* value = pop();
    stack_.push_back(value);
    if (value->kind != kind) fail(std::string("this is no ") + (kind == Kind::list ? "list" : "dict") + " to add to");
    return value;
  }

  Items pop_to_mark() {
    if (marks_.empty()) fail("the pickle goes back to a mark that is not there");
    Items items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  void push_tuple(std::size_t count) {
    Items items(count);
    for (std::size_t i = count; i > 0; --i) items[i - 1] = pop();
    push(make(Kind::tuple, std::move(items)));
  }

  void add(Kind kind, const Items& more) {
    auto& items = std::get<Items>(top(kind)->data);
    items.insert(items.end(), more.begin(), more.end());
  }

  void add_pairs(const Items& more) {
    if (more.size() % 2 != 0) fail("a key of a dict without its value");
    add(Kind::dict, more);
  }

  void put(std::uint64_t index) {
    auto* value = pop();
    stack_.push_back(value);
    memo_[index] = value;
  }

  void get(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("the pickle refers to value " + std::to_string(index) + ", which it never stored");
    push(found->second);
  }

  void push_text(std::size_t length_bytes) { push(make(Kind::text, take(take_unsigned(length_bytes)))); }
  void push_bytes(std::size_t length_bytes) { push(make(Kind::bytes, take(take_unsigned(length_bytes)))); }
  void push_integer(std::int64_t value) { push(make(Kind::integer, value)); }

  const PickleValue* stopped() {
    const auto* value = pop();
    if (!stack_.empty() || !marks_.empty()) fail("values are left over at the end of the pickle");
    return value;
  }

  void run(unsigned char opcode) {
    if (!run_scalar(opcode) && !run_container(opcode)) fail(refusal_of(opcode));
  }

  bool run_scalar(unsigned char opcode) {
    switch (opcode) {
      case 'N':  // NONE
        push(none_);
        break;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push(booleans_[opcode == 0x88]);
        break;
      case 'J':  // BININT
        push_integer(static_cast<std::int32_t>(take_unsigned(4)));
        break;
      case 'K':  // BININT1
        push(bytes_values_[take_byte()]);
        break;
      case 'M':  // BININT2
        push_integer(static_cast<std::int64_t>(take_unsigned(2)));
        break;
      case 0x8a:  // LONG1
        push_integer(take_long(take_byte()));
        break;
      case 0x8b:  // LONG4
        push_integer(take_long(take_unsigned(4)));
        break;
      case 'G':  // BINFLOAT
        push(make(Kind::real, take_double()));
        break;
      case 0x8c:  // SHORT_BINUNICODE
        push_text(1);
        break;
      case 'X':  // BINUNICODE
        push_text(4);
        break;
      case 0x8d:  // BINUNICODE8
        push_text(8);
        break;
      case 'C':  // SHORT_BINBYTES
        push_bytes(1);
        break;
      case 'B':  // BINBYTES
        push_bytes(4);
        break;
      case 0x8e:  // BINBYTES8
        push_bytes(8);
        break;
      case 0x95:  // FRAME
        if (take_unsigned(8) > bytes_.size() - position_) fail("a frame is longer than the file; the file was cut");
        break;
      default:
        return false;
    }
    return true;
  }

  bool run_container(unsigned char opcode) {
    switch (opcode) {
      case ']':  // EMPTY_LIST
        push(make(Kind::list, Items{}));
        break;
      case '}':  // EMPTY_DICT
        push(make(Kind::dict, Items{}));
        break;
      case ')':  // EMPTY_TUPLE
        push_tuple(0);
        break;
      case 0x85:  // TUPLE1, TUPLE2, TUPLE3
      case 0x86:
      case 0x87:
        push_tuple(opcode - std::size_t{0x84});
        break;
      case '(':  // MARK
        if (marks_.size() == kMaxMarks) fail("values are nested too deep (more than 64 levels)");
        marks_.push_back(stack_.size());
        break;
      case 't': {  // TUPLE
        auto items = pop_to_mark();
        push(make(Kind::tuple, std::move(items)));
        break;
      }
      case 'a': {  // APPEND
        const auto* value = pop();
        add(Kind::list, {value});
        break;
      }
      case 'e': {  // APPENDS
        const auto items = pop_to_mark();
        add(Kind::list, items);
        break;
      }
      case 's': {  // SETITEM
        const auto* value = pop();
        const auto* key = pop();
        add_pairs({key, value});
        break;
      }
      case 'u': {  // SETITEMS
        const auto items = pop_to_mark();
        add_pairs(items);
        break;
      }
      case 'q':  // BINPUT, LONG_BINPUT, MEMOIZE
        put(take_byte());
        break;
      case 'r':
        put(take_unsigned(4));
        break;
      case 0x94:
        put(memo_.size());
        break;
      case 'h':  // BINGET, LONG_BINGET
        get(take_byte());
        break;
      case 'j':
        get(take_unsigned(4));
        break;
      default:
        return false;
    }
    return true;
  }

  Pickle& pickle_;
  std::string_view bytes_;
  std::size_t position_ = 0;
  std::size_t start_ = 0;  ///< of the opcode in work
  std::size_t num_pushes_ = 0;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, PickleValue*> memo_;
  PickleValue* none_ = nullptr;
  std::array<PickleValue*, 2> booleans_{};
  std::array<PickleValue*, 256> bytes_values_{};
};

Pickle::Pickle(std::string bytes, std::string name) : bytes_(std::move(bytes)), name_(std::move(name)) {
  root_ = PickleReader(*this).read();
}

void Pickle::fail(const PickleValue& value, const std::string& what) const {
  throw Error(ErrorKind::data, name_ + ": byte " + std::to_string(value.offset) + ": " + what);
}

}  // namespace assay
