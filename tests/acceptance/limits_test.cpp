#include "harness/acceptance/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "harness/core/error.h"
#include "harness/core/files.h"
#include "tests/support/temporary_folder.h"

namespace assay {
namespace {

std::string mistakes_of(const std::string& text) {
  const TemporaryFolder folder;
  write_file_durably(folder.path / "x.yaml", text);
  try {
    load_limits(folder.path / "x.yaml");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::recipe);
    return error.what();
  }
}

TEST(Limits, TheFileForCpusHasAllThatTheStagesAskFor) {
  const auto limits = load_limits("recipes/limits/cpu.yaml");
  for (const char* name : {"collective_max_abs_error", "memory_deviation", "formula_deviation", "loss_slope",
                           "resume_difference", "share_of_median", "speed_of_median", "ceiling_fraction"}) {
    ASSERT_NE(limits.find(name), nullptr) << name;
  }
  EXPECT_EQ(limits.find("collective_max_abs_error")->value, 1e-5);  // guide 1
  EXPECT_EQ(limits.find("memory_deviation")->value, 0);             // to the byte
  EXPECT_EQ(limits.find("share_of_median")->value, 0.5);
}

TEST(Limits, KindsDecideWhatMeetsThem) {
  const Limit at_least{LimitKind::min, 2, "", ""}, at_most{LimitKind::max, 2, "", ""},
      within{LimitKind::within, 2, "", ""}, info{LimitKind::info, std::nullopt, "", ""};
  EXPECT_TRUE(at_least.met_by(2) && !at_least.met_by(1.999));
  EXPECT_TRUE(at_most.met_by(2) && !at_most.met_by(2.001));
  EXPECT_TRUE(within.met_by(-2) && !within.met_by(-2.1) && !within.met_by(2.1));
  EXPECT_TRUE(info.met_by(1e9));
  for (const auto& limit : {at_least, at_most, within, info}) EXPECT_FALSE(limit.met_by(std::nan("")));
  EXPECT_EQ(at_least.margin_of(3), 0.5);
  EXPECT_EQ(at_most.margin_of(3), -0.5);
  EXPECT_FALSE(info.margin_of(1));
}

TEST(Limits, EveryMistakeIsToldWithItsPlace) {
  const auto text = mistakes_of(
      "ceiling_fractoin: {kind: min, value: 1, unit: x, source: y}\n"
      "loss_slope: {kind: most, value: 1, unit: x, source: y}\n"
      "memory_deviation: {kind: within, value: many, unit: x, source: y}\n"
      "share_of_median: {kind: min, unit: x, source: y}\n"
      "resume_difference: {kind: max, value: 0, unit: x}\n"
      "formula_deviation: {kind: info, value: null, unit: x, source: \"\", colour: red}\n"
      "collective_max_abs_error: 3\n");
  for (const char* part :
       {"x.yaml:1:1: ceiling_fractoin: is no known limit; did you mean ceiling_fraction?", "x.yaml:2:20", "x.yaml:3:41",
        "share_of_median.value: is missing", "resume_difference.source: is missing",
        "formula_deviation.source: is empty", "formula_deviation.colour", "x.yaml:7:"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

TEST(Limits, AKindThatTurnsTheCheckAroundIsRefused) {
  const auto text = mistakes_of("share_of_median: {kind: max, value: 0.5, unit: x, source: y}\n");
  EXPECT_THAT(text, testing::HasSubstr("share_of_median.kind: is min or info, not max"));
  EXPECT_EQ(mistakes_of("share_of_median: {kind: info, value: 0.5, unit: x, source: y}\n"), "");
}

TEST(Limits, ANameGivenTwiceIsRefused) {
  EXPECT_NE(mistakes_of("loss_slope: {kind: info, unit: x, source: y}\nloss_slope: {kind: info, unit: x, source: y}\n"),
            "");
}

TEST(Limits, AnInfoNeedsNoValue) { EXPECT_EQ(mistakes_of("loss_slope: {kind: info, unit: x, source: y}\n"), ""); }

}  // namespace
}  // namespace assay
