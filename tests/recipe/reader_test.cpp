#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <variant>

#include "harness/recipe/recipe_fields.h"
#include "tests/recipe/recipe_file.h"

namespace assay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

/// What is said about KEY=VALUE on top of the smallest recipe, on the command line.
std::vector<std::string> said(const std::string& word) { return RecipeFile(kSmall).mistakes({word}); }

TEST(Reader, TenDifferentMistakesAreToldAtOnceWithLineAndColumn) {
  const RecipeFile file(
      "seeds: 3\n"
      "device_memory: 80G\n"
      "model: {path: m, config: {tie_word_embeddings: yes}}\n"
      "data:\n"
      "  format: synthetic\n"
      "  max_seq_length: 64\n"
      "train:\n"
      "  micro_batch_size: -1\n"
      "  max_steps: 010\n"
      "  max_steps: 11\n"
      "  learning_rate: 2e-5\n"
      "  eval_interval: [1, 2]\n"
      "  precision: fp23\n"
      "<<: {seed: 1}\n");
  EXPECT_THAT(
      file.mistakes(),
      ElementsAre(
          "r.yaml:1:1: seeds: unknown key; did you mean seed?",
          AllOf(StartsWith("r.yaml:2:16: device_memory: 80G "), HasSubstr("GiB (2^30 bytes) or GB (10^9 bytes)")),
          "r.yaml:3:48: model.config.tie_word_embeddings: yes is no boolean here; write true or false",
          "r.yaml:6:3: data.max_seq_length: unknown key; did you mean data.sequence_length?",
          "r.yaml:8:21: train.micro_batch_size: -1 is out of range, allowed: 1 to 1048576",
          "r.yaml:9:14: train.max_steps: 010 has a leading zero; write it without",
          "r.yaml:10:3: train.max_steps: given twice, first at line 9",
          "r.yaml:11:3: train.learning_rate: unknown key; did you mean optimizer.learning_rate?",
          "r.yaml:12:18: train.eval_interval: a list is given, expected is a whole number, allowed: 0 to 1000000000",
          AllOf(StartsWith("r.yaml:13:14: train.precision: fp23 is not one of the allowed: fp32, bf16, fp16"),
                HasSubstr("did you mean fp32?")),
          "r.yaml:14:1: <<: merge keys are not read; write the keys themselves"));
}

// K02: misspelt and misplaced keys, wrong case, an extra section, in files and on the command line.
TEST(Reader, AnUnknownKeyNamesTheNearestRightOne) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"optimizer.learning_rat", "optimizer.learning_rate"},
      {"learning_rate", "optimizer.learning_rate"},
      {"train.num-epochs", "train.epochs"},
      {"train.lora_r", "lora.r"},
      {"lora.lora_rank", "lora.r"},
      {"Seed", "seed"},
      {"trian", "train"},
      {"optimiser.name", "optimizer.name"},
      {"per_device_train_batch_size", "train.micro_batch_size"},
      {"save_steps", "checkpoint.interval"},
      {"train.gradient_checkpointing", "train.activation_checkpointing"},
      {"max_seq_length", "data.sequence_length"},
      {"num_train_epochs", "train.epochs"},
      {"train.lr", "optimizer.learning_rate"},
      {"output_dir", "--output DIR"},
      {"checkpoint.keep_lastest", "checkpoint.keep_latest"},
  };
  for (const auto& [key, right] : cases) {
    EXPECT_THAT(said(key + "=1"), ElementsAre("command line: " + key + ": unknown key; did you mean " + right + "?"));
  }
  EXPECT_THAT(RecipeFile(kSmall + "wandb: {project: x}\n").mistakes(),
              ElementsAre(StartsWith("r.yaml:3:1: wandb: unknown key")));
  EXPECT_THAT(
      RecipeFile(kSmall + "train.max_steps: 3\n").mistakes(),
      ElementsAre("r.yaml:3:1: train.max_steps: dotted keys are for the command line; write train: {max_steps: ...}"));
}

TEST(Reader, AKeyTwiceIsRefusedOnTheCommandLineToo) {
  EXPECT_THAT(RecipeFile(kSmall).mistakes({"seed=1", "seed=2"}), ElementsAre("command line: seed: given twice"));
}

// K11: numbers never come from booleans, booleans only from true and false, null only where it is documented.
TEST(Reader, BooleansNumbersAndNullAreNeverTakenForEachOther) {
  for (const char* word :
       {"train.max_steps=true", "train.max_steps=off", "train.max_steps=\"5\"", "optimizer.eps=true"}) {
    EXPECT_THAT(said(word), ElementsAre(HasSubstr("expected is a"))) << word;
  }
  for (const char* value :
       {"\"false\"", "no", "off", "yes", "on", "0", "1", "True", "FALSE", "y", "null", "", "[]", "{}"}) {
    EXPECT_EQ(said(std::string("checkpoint.save_at_end=") + value).size(), 1U) << value;
  }
  EXPECT_FALSE(RecipeFile(kSmall).load({"checkpoint.save_at_end=false"}).recipe.checkpoint.save_at_end);
  EXPECT_EQ(RecipeFile(kSmall + "train:\n  max_steps:\n  num_threads: ~\n").mistakes().size(), 2U);
  EXPECT_THAT(RecipeFile(kSmall + "train:\n").mistakes(), ElementsAre(StartsWith("r.yaml:3:1: train: null is given")));
  EXPECT_THAT(RecipeFile(kSmall + "resume: false\n").mistakes(),
              ElementsAre(HasSubstr("is a boolean, expected is a text")));
  EXPECT_THAT(RecipeFile(kSmall).mistakes({"tokenizer.path=null", "device_memory=~", "train.global_batch_size=null"}),
              IsEmpty());
}

TEST(Reader, NumbersAreReadAsPeopleWriteThem) {
  const auto rate = [](const std::string& text) {
    return RecipeFile(kSmall + "optimizer: {learning_rate: " + text + "}\n").load().recipe.optimizer.learning_rate;
  };
  EXPECT_EQ(rate("2e-5"), 0.00002);
  EXPECT_EQ(rate("2.0E-5"), 0.00002);
  EXPECT_EQ(rate(".5"), 0.5);
  EXPECT_EQ(rate("1"), 1.0);
  for (const char* value : {"1_000", "+5", "0x10", "1e3", "8.0", "5 ", "five", ".inf"}) {
    EXPECT_THAT(said(std::string("train.max_steps=") + value), ElementsAre(HasSubstr("whole number"))) << value;
  }
  for (const char* value : {"nan", ".inf", "inf", "1e999", "1,5", "0x1p-3", "00.5"}) {
    EXPECT_EQ(said(std::string("optimizer.learning_rate=") + value).size(), 1U) << value;
  }
}

/// Keys whose range holds 0: of everything else 0 is refused. Written down here from the meaning of each key.
const std::set<std::string> kMayBeZero{"seed",
                                       "train.max_grad_norm",
                                       "train.eval_interval",
                                       "optimizer.betas",
                                       "optimizer.weight_decay",
                                       "schedule.warmup_steps",
                                       "schedule.min_lr_ratio",
                                       "lora.lora_dropout",
                                       "checkpoint.interval",
                                       "plan.price_per_gpu_hour",
                                       "plan.price_per_gib_month",
                                       "plan.price_per_gib_traffic",
                                       "plan.build_price_per_gpu",
                                       "plan.reserve"};

// K03: each numeric key with -1, 0, a fraction, a huge value and a list.
TEST(Reader, EveryNumericKeyHasARange) {
  Recipe recipe;
  int checked = 0;
  for (const auto& field : recipe_fields(recipe)) {
    const bool whole = std::holds_alternative<std::int64_t*>(field.member) ||
                       std::holds_alternative<std::optional<std::int64_t>*>(field.member);
    const bool number =
        std::holds_alternative<double*>(field.member) || std::holds_alternative<std::optional<double>*>(field.member);
    if (!whole && !number) continue;
    ++checked;
    const auto out_of_range = [&](const std::string& value) {
      const auto lines = said(field.key + "=" + value);
      return !lines.empty() &&
             lines[0].starts_with("command line: " + field.key + ": " + value + " is out of range, allowed: ");
    };
    EXPECT_TRUE(out_of_range("-1")) << field.key;
    EXPECT_EQ(out_of_range("0"), !kMayBeZero.contains(field.key)) << field.key;
    EXPECT_TRUE(out_of_range("9223372036854775808")) << field.key;
    EXPECT_THAT(said(field.key + "=[1]"), ElementsAre(StartsWith("command line: " + field.key + ": a list is given")))
        << field.key;
    EXPECT_THAT(said(field.key + "={a: 1}"), ElementsAre(StartsWith("command line: " + field.key + ": a map is given")))
        << field.key;
    if (whole) {
      EXPECT_THAT(said(field.key + "=2.5"), ElementsAre(HasSubstr("2.5 is given, expected is a whole number")))
          << field.key;
    }
  }
  EXPECT_EQ(checked, 47);
}

TEST(Reader, PairsKeepTheirRange) {
  for (const char* value : {"0.9", "[0.9]", "[0.9, 0.95, 0.99]", "[0.9, 1]", "[-0.1, 0.9]", "{a: 1}"}) {
    EXPECT_EQ(said(std::string("optimizer.betas=") + value).size(), 1U) << value;
  }
  EXPECT_EQ(said("optimizer.betas=[a, b]").size(), 2U);
  EXPECT_EQ(RecipeFile(kSmall).load({"optimizer.betas=[0, 0.99]"}).recipe.optimizer.betas, (std::array{0.0, 0.99}));
}

// K08: 10^9 and 2^30 are told apart, a bare letter is refused by name.
TEST(Reader, SizesSayTheirUnit) {
  const auto bytes = [](const std::string& text) {
    return RecipeFile(kSmall + "device_memory: " + text + "\n").load().recipe.device_memory_bytes;
  };
  EXPECT_EQ(bytes("80GB"), 80'000'000'000);
  EXPECT_EQ(bytes("80GiB"), 85'899'345'920);
  EXPECT_EQ(bytes("\"1.5 GiB\""), 1'610'612'736);
  EXPECT_EQ(bytes("9223372036854775807"), 9223372036854775807);
  for (const char* value : {"80G", "80g", "80M"}) {
    EXPECT_THAT(said(std::string("device_memory=") + value), ElementsAre(HasSubstr("does not say which unit")))
        << value;
  }
  for (const char* value : {"80 gb", "-1", "0", "1.5", "-1GiB", "9223372036854775808", "[1]", "true", "080GiB"}) {
    EXPECT_EQ(said(std::string("device_memory=") + value).size(), 1U) << value;
  }
}

TEST(Reader, YamlBeyondPlainValuesIsRefusedByName) {
  EXPECT_THAT(RecipeFile(kSmall + "seed: &a 1\n").mistakes(), ElementsAre(HasSubstr("anchors (&a)")));
  EXPECT_THAT(RecipeFile(kSmall + "seed: &a 1\ntrain: {max_steps: *a}\n").mistakes(),
              ElementsAre(HasSubstr("anchors"), StartsWith("r.yaml:4:20: train.max_steps: aliases")));
  EXPECT_THAT(RecipeFile(kSmall + "seed: !!int 1\n").mistakes(), ElementsAre(HasSubstr("tags")));
  EXPECT_THAT(RecipeFile(kSmall + "? [a]\n: 1\n").mistakes(), ElementsAre(HasSubstr("a key must be a name")));
  EXPECT_THAT(RecipeFile(kSmall + "---\nseed: 1\n").mistakes(), ElementsAre(HasSubstr("second document")));
  EXPECT_THAT(RecipeFile(kSmall + "train: {max_steps: 1\n").mistakes(), ElementsAre(HasSubstr("not valid YAML")));
  EXPECT_THAT(RecipeFile("").mistakes(), ElementsAre(HasSubstr("expected is a map of recipe keys")));
  EXPECT_THAT(RecipeFile("- 1\n").mistakes(), ElementsAre(StartsWith("r.yaml:1:1: a list is given")));
  EXPECT_THAT(RecipeFile("seed: " + std::string(200, '[') + std::string(200, ']')).mistakes(),
              ElementsAre(HasSubstr("nested deeper")));
}

// K09: any legal name of a file reaches the recipe unchanged.
TEST(Reader, PathsMayHoldAnyCharacter) {
  for (const std::string path :
       {"a b", "it's", "x;y", "$HOME", "-x", "a\nb", "a: b", "a #b", "x,y", "&a", "*a", "!a", "a/", "ä"}) {
    EXPECT_EQ(RecipeFile(kSmall).load({"model.path=" + path}).recipe.model.path, path);
  }
  EXPECT_EQ(RecipeFile(kSmall).load({"model.path=\"[x] \\\"y\\\"\""}).recipe.model.path, "[x] \"y\"");
  EXPECT_EQ(RecipeFile(kSmall, "a b'c.yaml").load().recipe.name, "a b'c");
}

TEST(Reader, ConfigKeysAreOverriddenOneByOne) {
  const RecipeFile file(
      "model: {path: m, config: {num_hidden_layers: 2, rope_parameters: {rope_type: llama3}}}\ndata: {format: "
      "synthetic}\n");
  const auto config = [&](const std::vector<std::string>& words) { return file.load(words).recipe.model.config; };
  EXPECT_EQ(
      config({"model.config.num_hidden_layers=3", "model.config.rope_parameters.factor=8.5", "model.config.name=x"}),
      R"({"num_hidden_layers":3,"rope_parameters":{"rope_type":"llama3","factor":8.5},"name":"x"})");
  EXPECT_EQ(config({"model.config={}"}), "{}");
  EXPECT_THAT(file.mistakes({"model.config.num_hidden_layers.x=3"}), ElementsAre(HasSubstr("is no map")));
  EXPECT_THAT(file.mistakes({"model.config=3"}), ElementsAre(HasSubstr("expected is a map")));
}

TEST(Reader, DataPathsHaveThreeForms) {
  const auto paths = [](const std::string& value) {
    return RecipeFile(kSmall).load({"data.path=" + value}).recipe.data.path;
  };
  EXPECT_EQ(paths("a"), (std::vector<DataPath>{{"a", 1}}));
  EXPECT_EQ(paths("[a, b c]"), (std::vector<DataPath>{{"a", 1}, {"b c", 1}}));
  EXPECT_EQ(paths("[{path: a, weight: 1.0}, b]"), (std::vector<DataPath>{{"a", 1}, {"b", 1}}));
  for (const char* value : {"[{weight: 1}]", "[{path: a, weight: 0}]", "[{path: a, wait: 1}]", "[[a]]", "[1]"}) {
    EXPECT_EQ(said(std::string("data.path=") + value).size(), 1U) << value;
  }
}

TEST(Reader, AMissingFileIsNoRecipe) { EXPECT_THROW(load_recipe("/nonexistent/r.yaml", {}, {}), Error); }

}  // namespace
}  // namespace assay
