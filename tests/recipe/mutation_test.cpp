#include <gtest/gtest.h>

#include <random>

#include "tests/recipe/recipe_file.h"

namespace assay {
namespace {

const std::string kValid =
    "# comment\nname: x\nmode: full\nseed: 42\ndevice_memory: 80GiB\nmodel: {path: m, config: {num_hidden_layers: 2}}\n"
    "tokenizer: {path: bytes}\ndata:\n  path: [{path: a, weight: 1}, b]\n  sequence_length: 128\n"
    "train:\n  micro_batch_size: 2\n  loss_scale: {initial: 65536}\noptimizer: {learning_rate: 2e-5, betas: [0.9, "
    "0.95]}\n"
    "lora:\n  target_modules:\n    - q_proj\n    - \"v_proj\"\n  rank_pattern: {}\naccept:\n  stages: [train]\n";

/// Cuts, doubles, swaps and overwrites pieces; the pieces are what YAML is made of.
std::string mutated(std::string text, std::mt19937& random) {
  static const std::vector<std::string> pieces{":",     ": ",
                                               "\n",    "  ",
                                               "- ",    "[",
                                               "]",     "{",
                                               "}",     "'",
                                               "\"",    "&a ",
                                               "*a",    "!!int ",
                                               "<<",    "#",
                                               "|\n",   ">\n",
                                               "null",  "true",
                                               "-1",    "1e999",
                                               "\xff",  "?",
                                               "%",     "---\n",
                                               "...\n", "\t",
                                               ",",     "~",
                                               "\\",    "é",
                                               "0",     "9223372036854775808",
                                               "train", "@",
                                               "`",     "\r\n"};
  const auto pick = [&](std::size_t size) { return std::uniform_int_distribution<std::size_t>(0, size)(random); };
  for (auto changes = 1 + pick(3); changes > 0; --changes) {
    const auto at = pick(text.size());
    const auto length = std::min(pick(12), text.size() - at);
    switch (pick(3)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, pieces[pick(pieces.size() - 1)]);
        break;
      case 2:
        text.replace(at, length, pieces[pick(pieces.size() - 1)]);
        break;
      default:
        text.insert(at, text.substr(at, length * 3));
        break;
    }
  }
  return text;
}

TEST(Mutations, LoadOrAreRefusedAsRecipesAndNothingElse) {
  std::mt19937 random(20261130);
  const RecipeFile file(kValid);
  ASSERT_TRUE(file.mistakes().empty());
  int loaded = 0, refused = 0;
  for (int i = 0; i < 1500; ++i) {
    const auto text = mutated(kValid, random);
    file.write(text);
    try {
      const auto recipe = file.load();
      ++loaded;
      if (i % 8 == 0) {
        EXPECT_EQ(RecipeFile(recipe_to_yaml(recipe)).load().recipe, recipe.recipe) << text;
      }
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.kind(), ErrorKind::recipe) << text;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << text;
    }
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 500);
}

}  // namespace
}  // namespace assay
