#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "harness/core/error.h"
#include "harness/core/event.h"
#include "harness/core/files.h"
#include "harness/core/json.h"
#include "harness/core/text.h"
#include "harness/core/units.h"
#include "harness/core/xxh3.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

TEST(Units, BytesTellGBFromGiB) {
  EXPECT_EQ(parse_bytes("80GB"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("80GiB"), 85'899'345'920);
  EXPECT_EQ(parse_bytes("1.5GiB"), 1'610'612'736);
  EXPECT_EQ(parse_bytes("80 GiB"), 85'899'345'920);
  EXPECT_EQ(parse_bytes("1073741824"), 1'073'741'824);
  for (const char* refused :
       {"80G", "80 gb", "80gib", "-1GiB", "", "GiB", "0.3B", "1e400", "9e30GB", "nan", "1 GiB x"}) {
    EXPECT_FALSE(parse_bytes(refused)) << refused;
  }
  EXPECT_EQ(format_bytes(1'610'612'736), "1.50 GiB");
}

TEST(Units, NumbersAreWrittenTheShortestWayThatReadsBack) {
  EXPECT_EQ(format_number(2e-5), "2e-05");
  EXPECT_EQ(parse_number("2e-5"), 2e-5);
  EXPECT_FALSE(parse_number("inf"));
  EXPECT_FALSE(parse_number("1.0x"));
}

TEST(Text, DigitsLinesAndSizes) {
  const std::array<unsigned char, 3> bytes{0x00, 0x7f, 0xea};
  EXPECT_EQ(hex_of(bytes), "007fea");
  EXPECT_EQ(first_line("one\ntwo"), "one");
  EXPECT_EQ(first_line("one"), "one");
  EXPECT_EQ(text_of_sizes({2, 3}), "[2, 3]");
  EXPECT_EQ(text_of_sizes({}), "[]");
}

// Known values of XXH128 with seed 0.
TEST(Xxh3, HasTheKnownValuesAlsoInPieces) {
  EXPECT_EQ(xxh3_of(""), "99aa06d3014798d86001c324468d497f");
  const std::string text(1000, 'a');
  Xxh3 hash;
  hash.add("b", 1);
  hash.reset();
  hash.add(text.data(), 300);
  hash.add(text.data(), 700);
  EXPECT_EQ(hash.text(), xxh3_of(text));
  EXPECT_EQ(xxh3_of("a"), "a96faf705af16834e6c632b61e964e1f");
}

TEST(Error, KnowsWhereItWasMade) {
  const auto here = std::source_location::current();
  const Error error(ErrorKind::io, "a disk");
  EXPECT_EQ(error.where(), "core_test.cpp:" + std::to_string(here.line() + 1));
  EXPECT_STREQ(error.what(), "a disk");
}

TEST(Json, NonFiniteNumbersBecomeNullWithAReason) {
  Json report;
  set_number(report, "loss", std::numeric_limits<double>::quiet_NaN());
  set_number(report, "max", std::numeric_limits<double>::infinity());
  set_number(report, "step", 3.5);
  report["path"] = "a \"NaN\" path \xff";
  report["big"] = std::int64_t{9223372036854775807};
  const auto read = parse_json(dump_json(report), "report");
  EXPECT_TRUE(read["loss"].is_null());
  EXPECT_EQ(read["loss_reason"], "not a number");
  EXPECT_EQ(read["max_reason"], "infinite");
  EXPECT_EQ(read["step"], 3.5);
  EXPECT_EQ(read["big"].get<std::int64_t>(), 9223372036854775807);
  EXPECT_NE(read["path"].get<std::string>().find("\"NaN\""), std::string::npos);
}

TEST(Json, DuplicateKeysAndDeepNestingAreRefused) {
  EXPECT_THROW(parse_json(R"({"a": 1, "a": 2})", "x"), Error);
  EXPECT_THROW(parse_json(R"({"b": {"a": 1, "a": 2}})", "x"), Error);
  EXPECT_NO_THROW(parse_json(R"({"b": {"a": 1}, "c": {"a": 2}})", "x"));
  EXPECT_THROW(parse_json(std::string(200, '[') + std::string(200, ']'), "x"), Error);
}

TEST(Json, WhatTheLibraryWouldOverlookIsRefused) {
  EXPECT_THROW(parse_json(std::string("{}\0", 3), "text"), Error);
  EXPECT_THROW(parse_json(std::string("{}\0{\"a\":1}", 10), "text"), Error);
  EXPECT_THROW(parse_json("\xef\xbb\xbf{}", "text"), Error);
  EXPECT_THROW(parse_large_json(R"({"a":{"b":1},"a":2})", "text"), Error);
  EXPECT_EQ(parse_large_json(R"({"b":1,"a":{"b":2}})", "text").dump(), R"({"a":{"b":2},"b":1})");
}

TEST(Events, ALineCutShortByAKillIsLeftOut) {
  const TemporaryFolder folder;
  const auto path = folder.path / "rank_00000.jsonl";
  EventWriter writer(path, 0, 2);
  writer.write("step", 7, {{"loss", 1.5}});
  std::ofstream(path, std::ios::app) << R"({"kind":"st)";
  const auto events = read_events(path);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0]["kind"], "step");
  EXPECT_EQ(events[0]["step"], 7);
  EXPECT_EQ(events[0]["attempt"], 2);
  EXPECT_EQ(events[0]["loss"], 1.5);
}

TEST(Events, WhatWasCutShortIsRemovedBeforeTheNextAttempt) {
  const TemporaryFolder folder;
  const auto path = folder.path / "rank_00000.jsonl";
  std::ofstream(path) << R"({"kind":"st)";
  EventWriter(path, 0, 1).write("step", 1, Json::object());
  std::ofstream(path, std::ios::app) << R"({"kind":"st)";
  EventWriter(path, 0, 2).write("step", 2, Json::object());
  const auto events = read_events(path);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["step"], 1);
  EXPECT_EQ(events[1]["step"], 2);
}

TEST(Events, NothingIsLeftOfAnEventThatCouldNotBeWritten) {
  const TemporaryFolder folder;
  const auto path = folder.path / "rank_00000.jsonl";
  EventWriter writer(path, 0, 1);
  writer.write("step", 1, Json::object());
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit full{std::filesystem::file_size(path) + 20, before.rlim_max};
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &full);
  EXPECT_THROW(writer.write("step", 2, Json::object()), Error);
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  writer.write("step", 3, Json::object());
  const auto events = read_events(path);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1]["step"], 3);
}

TEST(Files, Sha256IsTheStandardOne) {
  EXPECT_EQ(sha256_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Files, PathsThatCannotBeAreMistakesOfTheUser) {
  const TemporaryFolder folder;
  const auto loop = folder.path / "loop";
  std::filesystem::create_symlink(loop, loop);
  for (const auto& path : {loop, folder.path / std::string(300, 'x'), folder.path / "none"}) {
    try {
      require_path("data.path", path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::data);
      EXPECT_TRUE(std::string(error.what()).starts_with("data.path: ")) << error.what();
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    }
  }
  EXPECT_NO_THROW(require_path("data.path", folder.path));
  const auto kind_of = [&](std::errc code) {
    return error_of(std::filesystem::filesystem_error("status", loop, std::make_error_code(code))).kind();
  };
  EXPECT_EQ(kind_of(std::errc::too_many_symbolic_link_levels), ErrorKind::data);
  EXPECT_EQ(kind_of(std::errc::filename_too_long), ErrorKind::data);
  EXPECT_EQ(kind_of(std::errc::no_space_on_device), ErrorKind::io);
}

TEST(Errors, KindsDecideTheExitCode) {
  EXPECT_EQ(exit_code_of(ErrorKind::data), 2);
  EXPECT_EQ(exit_code_of(ErrorKind::memory), 1);
  EXPECT_EQ(exit_code_of(ErrorKind::numeric), 1);
  EXPECT_EQ(exit_code_of(ErrorKind::communication), 3);
  EXPECT_EQ(error_kind_from_name(name_of(ErrorKind::device)), ErrorKind::device);
}

}  // namespace
}  // namespace assay
