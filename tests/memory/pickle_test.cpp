#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/core/error.h"
#include "harness/memory/pickle_reader.h"
#include "harness/memory/pickle_writer.h"

namespace assay {
namespace {

using namespace std::string_literals;
using Kind = PickleValue::Kind;
using testing::HasSubstr;

std::int64_t integer(const PickleValue& value) { return std::get<std::int64_t>(value.data); }
std::string text(const PickleValue& value) { return std::string(std::get<std::string_view>(value.data)); }

/// What a pickle is refused with.
std::string refusal(const std::string& bytes) {
  try {
    const Pickle pickle(bytes, "p");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::data);
    return error.what();
  }
  return "accepted";
}

std::string from_hex(const std::string& digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
  return bytes;
}

TEST(PickleReader, ReadsWhatPythonWrites) {
  // pickle.dumps of CPython 3.11, protocols 2 to 5, of
  // {'a': [1, 300, 70000, -1, 2**40], 'b': (True, False, None), 'c': 0.5, 'e': (), 'd': b'xy'}, protocol 2 without 'd'.
  const std::vector<std::string> dumps{
      "80027d71002858010000006171015d7102284b014d2c014a701101004affffffff8a06000000000001655801000000627103"
      "88894e8771045801000000637105473fe0000000000000580100000065710629752e",
      "80037d71002858010000006171015d7102284b014d2c014a701101004affffffff8a06000000000001655801000000627103"
      "88894e8771045801000000637105473fe00000000000005801000000657106295801000000647107430278797108752e",
      "80049548000000000000007d94288c0161945d94284b014d2c014a701101004affffffff8a06000000000001658c01629488"
      "894e87948c016394473fe00000000000008c016594298c0164944302787994752e",
      "80059548000000000000007d94288c0161945d94284b014d2c014a701101004affffffff8a06000000000001658c01629488"
      "894e87948c016394473fe00000000000008c016594298c0164944302787994752e"};
  for (const auto& dump : dumps) {
    const Pickle pickle(from_hex(dump), "p");
    const auto& root = pickle.root();
    ASSERT_EQ(root.kind, Kind::dict);
    const auto& numbers = root.find("a")->items();
    ASSERT_EQ(numbers.size(), 5U);
    const std::vector<std::int64_t> expected{1, 300, 70000, -1, std::int64_t{1} << 40};
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(integer(*numbers[i]), expected[i]);
    const auto& tuple = root.find("b")->items();
    ASSERT_EQ(tuple.size(), 3U);
    EXPECT_EQ(integer(*tuple[0]), 1);
    EXPECT_EQ(tuple[1]->kind, Kind::boolean);
    EXPECT_EQ(tuple[2]->kind, Kind::none);
    EXPECT_EQ(std::get<double>(root.find("c")->data), 0.5);
    const auto* bytes = root.find("d");
    EXPECT_EQ(bytes == nullptr, &dump == &dumps[0]);
    if (bytes != nullptr) {
      EXPECT_EQ(bytes->kind, Kind::bytes);
      EXPECT_EQ(text(*bytes), "xy");
    }
    EXPECT_EQ(root.find("e")->kind, Kind::tuple);
    EXPECT_EQ(root.find("z"), nullptr);
  }
}

TEST(PickleReader, RefusesWhatCouldRun) {
  // os.system('true') as pickle.dumps writes it (protocol 2 and 4), and other ways to import, call and build.
  const std::vector<std::pair<std::string, std::string>> cases{
      {"\x80\x02"
       "cposix\nsystem\nq\x00X\x04\x00\x00\x00trueq\x01\x85q\x02Rq\x03."s,
       "p: byte 2: opcode 63 would import"},
      {"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."s, "p: byte 17: opcode 93 would import"},
      {"\x80\x02)R."s, "p: byte 3: opcode 52 would import"},
      {"\x80\x02}b."s, "p: byte 3: opcode 62 would import"},
      {"\x80\x02(iposix\nsystem\n."s, "p: byte 3: opcode 69 would import"},
      {"\x80\x02(o."s, "p: byte 3: opcode 6f would import"},
      {"\x80\x02))\x81."s, "p: byte 4: opcode 81 would import"},
      {"\x80\x04))}\x92."s, "p: byte 5: opcode 92 would import"},
      {"\x80\x02\x82\x01."s, "p: byte 2: opcode 82 would import"},
      {"\x80\x02Q."s, "p: byte 2: opcode 51 would import"},
      {"\x80\x02Pid\n."s, "p: byte 2: opcode 50 would import"},
  };
  for (const auto& [bytes, message] : cases) EXPECT_THAT(refusal(bytes), testing::StartsWith(message));
}

TEST(PickleReader, RefusesWhatIsNoPickle) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "p: byte 0: this is no pickle"},
      {"A 100 512 0\n", "p: byte 0: this is no pickle"},
      {"(dp0\n.", "p: byte 0: this is no pickle"},
      {"\x80\x01.", "p: byte 0: protocol 1 is not supported"},
      {"\x80\x06.", "p: byte 0: protocol 6 is not supported"},
      {"\x80\x02.", "p: byte 2: the pickle takes a value that is not there"},
      {"\x80\x02N", "p: byte 3: the pickle ends early"},
      {"\x80\x02NN.", "p: byte 4: values are left over"},
      {"\x80\x02(N.", "p: byte 4: values are left over"},
      {"\x80\x02X\x05\x00\x00\x00"
       "abc."s,
       "p: byte 2: the pickle ends early"},
      {"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s, "p: byte 2: the pickle ends early"},
      {"\x80\x04\x95\xff\x00\x00\x00\x00\x00\x00\x00N."s, "p: byte 2: a frame is longer than the file"},
      {"\x80\x02h\x00."s, "p: byte 2: the pickle refers to value 0"},
      {"\x80\x02j\xff\xff\xff\xff."s, "p: byte 2: the pickle refers to value 4294967295"},
      {"\x80\x02"
       "e.",
       "p: byte 2: the pickle goes back to a mark that is not there"},
      {"\x80\x02](Na.", "p: byte 5: the pickle takes a value that is not there"},
      {"\x80\x02NNa.", "p: byte 4: this is no list"},
      {"\x80\x02]NNs.", "p: byte 5: this is no dict"},
      {"\x80\x02}(Nu.", "p: byte 5: a key of a dict without its value"},
      {"\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s, "p: byte 2: a whole number of more than 64 bits"},
      {"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s, "p: byte 2: a whole number of more than 64 bits"},
      {"\x80\x02"s + std::string(65, '('), "p: byte 66: values are nested too deep"},
      {"\x80\x02"s + std::string((1 << 20) + 1, ']'), "p: byte 1048578: values are nested too deep"},
      {"\x80\x02I5\n.", "p: byte 2: opcode 49 is none that a memory snapshot is made of"},
  };
  for (const auto& [bytes, message] : cases) EXPECT_THAT(refusal(bytes), testing::StartsWith(message));
}

TEST(PickleReader, ValuesMayFormCycles) {
  const Pickle pickle(
      "\x80\x02]q\x00h\x00"
      "a."s,
      "p");
  ASSERT_EQ(pickle.root().items().size(), 1U);
  EXPECT_EQ(pickle.root().items()[0], &pickle.root());
}

TEST(PickleReader, WholeNumbersOfAllLengths) {
  const auto long1 = [](const std::string& digits) {
    const Pickle pickle("\x80\x02\x8a"s + static_cast<char>(digits.size()) + digits + ".", "p");
    return integer(pickle.root());
  };
  EXPECT_EQ(long1(""), 0);
  EXPECT_EQ(long1("\xff"s), -1);
  EXPECT_EQ(long1("\xff\x00"s), 255);
  EXPECT_EQ(long1("\x00\x00\x00\x00\x00\x00\x00\x80"s), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(long1("\xff\xff\xff\xff\xff\xff\xff\x7f\x00"s), std::numeric_limits<std::int64_t>::max());
}

TEST(PickleWriter, IsReadBack) {
  const std::vector<std::int64_t> numbers{0,
                                          255,
                                          256,
                                          -1,
                                          65536,
                                          (std::int64_t{1} << 31) - 1,
                                          -(std::int64_t{1} << 31),
                                          std::int64_t{1} << 31,
                                          std::int64_t{1} << 57};
  PickleWriter writer;
  writer.begin_dict();
  writer.text("many");
  writer.begin_list();
  for (int i = 0; i < 2500; ++i) writer.text("text " + std::to_string(i % 400));
  writer.end();
  writer.text("numbers");
  writer.begin_list();
  for (const auto number : numbers) writer.integer(number);
  writer.end();
  const auto kept = writer.keep();
  writer.text("again");
  writer.again(kept);
  writer.text("half");
  writer.real(-0.5);
  writer.text("flag");
  writer.boolean(true);
  writer.text("pair");
  writer.tuple(0, 7);
  writer.end();
  const Pickle pickle(writer.finish(), "p");
  const auto& root = pickle.root();
  const auto& many = root.find("many")->items();
  ASSERT_EQ(many.size(), 2500U);
  for (int i = 0; i < 2500; ++i) EXPECT_EQ(text(*many[static_cast<std::size_t>(i)]), "text " + std::to_string(i % 400));
  const auto& read = root.find("numbers")->items();
  ASSERT_EQ(read.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(integer(*read[i]), numbers[i]);
  EXPECT_EQ(root.find("again"), root.find("numbers"));
  EXPECT_EQ(std::get<double>(root.find("half")->data), -0.5);
  EXPECT_EQ(integer(*root.find("flag")), 1);
  EXPECT_EQ(integer(*root.find("pair")->items()[1]), 7);
}

}  // namespace
}  // namespace assay
