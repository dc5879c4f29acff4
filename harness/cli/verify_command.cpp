#include "harness/cli/verify_command.h"

#include <cstdio>

#include "harness/acceptance/rank_program.h"
#include "harness/core/error.h"
#include "harness/core/units.h"

namespace assay {
namespace {

Json optional_number(const CommandLine& line, const std::string& option) {
  const auto number = line.number(option);
  return number ? Json(*number) : Json();
}

// model.config.KEY=VALUE as a JSON object; a VALUE that is no JSON is a text.
std::string config_overrides(const std::vector<std::string>& overrides) {
  static const std::string prefix = "model.config.";
  Json config = Json::object();
  for (const auto& override : overrides) {
    const auto equals = override.find('=');
    if (override.rfind(prefix, 0) != 0) {
      throw Error(ErrorKind::usage, "verify takes model.config.KEY=VALUE only, not " + override);
    }
    const auto value = override.substr(equals + 1);
    const auto parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    config[override.substr(prefix.size(), equals - prefix.size())] = parsed.is_discarded() ? Json(value) : parsed;
  }
  return dump_json(config);
}

void print_text(const Json& result) {
  for (const auto& row : result["tensors"]) {
    const auto number = [&](const char* key) {
      return row[key].is_null() ? "not finite" : format_number(row[key].get<double>());
    };
    std::printf("%-9s %s: max abs error %s, max relative error %s, relative L2 error %s, cosine %s\n",
                row["equal_within"] ? "equal" : "DIFFERENT", row["name"].get<std::string>().c_str(),
                number("max_abs_error").c_str(), number("max_rel_error").c_str(), number("relative_l2_error").c_str(),
                number("cosine").c_str());
  }
  std::printf("loss %s, reference %s\n", dump_json(result["loss"]).c_str(),
              dump_json(result["reference_loss"]).c_str());
  const auto& tolerances = result["tolerances"];
  std::printf("tolerances for %s: logits absolute %s, gradients relative (L2) %s, loss absolute %s\n",
              tolerances["dtype"].get<std::string>().c_str(), dump_json(tolerances["atol"]).c_str(),
              dump_json(tolerances["rtol"]).c_str(), dump_json(tolerances["loss_atol"]).c_str());
  std::printf("%s\n", result["equal_within"] ? "equal within the tolerances" : "NOT equal within the tolerances");
}

}  // namespace

int run_verify_command(const CommandLine& line) {
  if (line.paths.size() != 2) {
    throw Error(ErrorKind::usage,
                "verify needs two paths: assay verify MODEL_DIR REFERENCE [model.config.KEY=VALUE ...]");
  }
  const Json job{{"kind", "verify"},
                 {"options",
                  {{"model", line.paths[0]},
                   {"reference", line.paths[1]},
                   {"config", config_overrides(line.overrides)},
                   {"atol", optional_number(line, "atol")},
                   {"rtol", optional_number(line, "rtol")},
                   {"loss_atol", optional_number(line, "loss-atol")}}}};
  const auto output = run_rank_program(job);
  if (output.out.empty()) {
    std::fprintf(stderr, "%s", output.err.c_str());
    return output.exit_code;
  }
  if (line.has("json")) {
    std::printf("%s", output.out.c_str());
  } else {
    print_text(parse_json(output.out, "result of verify"));
  }
  return output.exit_code;
}

}  // namespace assay
